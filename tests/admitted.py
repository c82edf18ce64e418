"""An engine on an admitted Redis without Postgres, for tests of the scripts; and a clock that they can set."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from redis.asyncio import Redis

from engine import scripts
from engine.admission import AdmissionState, Admitted
from engine.domain import LatePayment, PoolDefinition, PoolState, PoolStatus, Reservation
from engine.keys import CLOCK_FIELD, Keys
from engine.redis_client import create_redis
from engine.reservations import ReservationEngine
from engine.settings import Settings

TENANT = "school"


@dataclass
class Lookup:
    """Stands for Postgres: what it would answer is put into it by the test."""

    reservations: dict[tuple[str, str], Reservation] = field(default_factory=dict)
    tenants: set[str] = field(default_factory=lambda: {TENANT})

    async def find_reservation(self, tenant: str, identifier: str) -> Reservation | None:
        return self.reservations.get((tenant, identifier))

    async def has_pools(self, tenant: str) -> bool:
        return tenant in self.tenants


@dataclass
class AdmittedEngine:
    """What a test of the scripts works with."""

    engine: ReservationEngine
    redis: Redis
    keys: Keys
    settings: Settings
    state: AdmissionState
    lookup: Lookup
    revision: int = 0

    async def define(
        self,
        pool: str,
        cap: int | None,
        *,
        opens_at_ms: int | None = None,
        closes_at_ms: int | None = None,
        status: PoolStatus = PoolStatus.ACTIVE,
        per_customer: int | None = None,
        late_payment: LatePayment = LatePayment.HONOUR,
    ) -> PoolState:
        """Define a pool of the test's tenant under the next revision."""
        self.revision += 1
        definition = PoolDefinition(
            TENANT, pool, cap, self.revision, opens_at_ms, closes_at_ms, status, per_customer, late_payment
        )
        return await self.engine.define_pool(definition, first_of_tenant=self.revision == 1)

    async def set_clock(self, offset_ms: int) -> None:
        """Set the scripts' clock ahead of (or behind) the server's; unlike the sandbox's it may go back."""
        await self.redis.hset(self.keys.tenant(TENANT), CLOCK_FIELD, str(offset_ms))


@asynccontextmanager
async def admitted_engine(url: str, **settings: object) -> AsyncIterator[AdmittedEngine]:
    """Admit an empty Redis as epoch 1, build 1, with the sandbox's clock. One partition, so that keys are known."""
    chosen = Settings.model_validate({"redis_url": url, "partitions": 1, "sandbox": True, **settings})
    redis = create_redis(chosen)
    state, lookup, admitted = AdmissionState(), Lookup(), Admitted(epoch=1, build=1)
    keys = Keys(chosen.prefix, 0, admitted.build)
    assert await scripts.begin_epoch(redis, keys.outbox, keys.mark, "", admitted)
    await scripts.load(redis, admitted, sandbox=chosen.sandbox)
    state.admit(admitted)
    try:
        yield AdmittedEngine(ReservationEngine(redis, chosen, state, lookup), redis, keys, chosen, state, lookup)
    finally:
        await redis.aclose()
