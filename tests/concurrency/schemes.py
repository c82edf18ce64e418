"""Ways of giving out portions: three that are often built first, and the engine."""

from __future__ import annotations

from dataclasses import dataclass

from redis.asyncio import Redis

from engine.admission import AdmissionState, Admitted
from engine.domain import Claim, ReservationRequest
from engine.errors import Refused
from engine.reservations import ReservationEngine
from engine.settings import Settings
from tests.admitted import TENANT, Lookup

POOL = "portions"


@dataclass(frozen=True)
class CountPayments:
    """A portion is taken when it is paid; whoever comes before that finds it free."""

    cap: int

    async def come(self, redis: Redis, settings: Settings, buyer: str) -> bool:  # noqa: ARG002
        return int(await redis.get("paid") or 0) < self.cap

    async def pay(self, redis: Redis, settings: Settings, buyer: str, told: bool) -> bool:  # noqa: ARG002
        if told:
            await redis.incr("paid")
        return told


@dataclass(frozen=True)
class CountStarts:
    """A portion is taken when a checkout starts; nobody gives it back when the buyer walks away."""

    cap: int
    pays: bool = True

    async def come(self, redis: Redis, settings: Settings, buyer: str) -> bool:  # noqa: ARG002
        return int(await redis.incr("started")) <= self.cap

    async def pay(self, redis: Redis, settings: Settings, buyer: str, told: bool) -> bool:  # noqa: ARG002
        return told and self.pays


@dataclass(frozen=True)
class AddAndTakeBack:
    """INCRBY, and back again when that was too much: others see units taken that nobody gets."""

    cap: int
    quantity: int = 1

    async def come(self, redis: Redis, settings: Settings, buyer: str) -> int:  # noqa: ARG002
        return int(await redis.incrby("used", self.quantity))

    async def pay(self, redis: Redis, settings: Settings, buyer: str, told: int) -> bool:  # noqa: ARG002
        if told > self.cap:
            await redis.decrby("used", self.quantity)
        return told <= self.cap


@dataclass(frozen=True)
class Engine:
    """Lastportion, admitted as epoch 1. The cap is the pool's."""

    quantity: int = 1
    pays: bool = True

    async def come(self, redis: Redis, settings: Settings, buyer: str) -> bool:
        request = ReservationRequest(TENANT, buyer, (Claim(POOL, self.quantity),), 60_000)
        try:
            return (await self._engine(redis, settings).reserve(request)).created
        except Refused:
            return False

    async def pay(self, redis: Redis, settings: Settings, buyer: str, told: bool) -> bool:
        if told and self.pays:
            await self._engine(redis, settings).complete(TENANT, buyer, f"pay-{buyer}")
        return told and self.pays

    def _engine(self, redis: Redis, settings: Settings) -> ReservationEngine:
        state = AdmissionState()
        state.admit(Admitted(1, 1))
        return ReservationEngine(redis, settings, state, Lookup())
