"""Rebuilding Redis from Postgres, into key names of a new build: definitions, completed counts, live reservations.

What is written equals what the scripts would have written had nothing been lost, except that pools begin as swept
up to now. Nothing reads the new keys before the epoch is admitted, and a tenant's build mark is written last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

import structlog
from redis.asyncio import Redis
from redis.typing import EncodableT, FieldT
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.domain import LatePayment, PoolDefinition, PoolStatus, Reservation, ReservationStatus
from engine.keys import BUILD_FIELD, CLOCK_FIELD, Keys, partition_of
from engine.records import (
    Holding,
    bucket,
    encode_definition,
    encode_holdings,
    encode_pool,
    encode_reservation,
)
from engine.settings import Settings
from persistence.repositories.reservations import SELECT_RESERVATIONS, reservation_of
from persistence.tables import Pool
from persistence.tables.sandbox import SandboxClock

log = structlog.stdlib.get_logger(__name__)

FIELDS_IN_ONE_SEND = 2000
REPORT_EVERY = 100_000

_SNAPSHOT = text("set transaction isolation level repeatable read read only")

_COMPLETED = text("""
select claim.pool, case when claim.counted then reservation.customer end as customer,
    sum(claim.quantity)::bigint as units
from reservations as reservation
join reservation_claims as claim
    on claim.tenant = reservation.tenant and claim.reservation_id = reservation.id
where reservation.tenant = :tenant
    and (reservation.status = 'completed' or (reservation.status = 'cancelled' and not reservation.restocked))
group by 1, 2
""")

_KEPT = text(
    SELECT_RESERVATIONS
    + """
where tenant = :tenant and case status
    when 'reserved' then expires_at_ms
    when 'completed' then completed_at_ms
    else ended_at_ms
end > :ended_after_ms
"""
)


@dataclass(slots=True)
class _Tenant:
    """What goes into one tenant's keys."""

    name: str
    keys: Keys
    definitions: dict[str, PoolDefinition] = field(default_factory=dict)
    completed: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    by_customer: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    holdings: defaultdict[tuple[str, str], list[Holding]] = field(default_factory=lambda: defaultdict(list))
    buckets: defaultdict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))

    def add_live(self, reservation: Reservation) -> None:
        second = reservation.expires_at_ms // 1000
        for claim, counted in zip(reservation.claims, reservation.counted, strict=True):
            self.buckets[claim.pool, second] += claim.quantity
            if counted and reservation.customer is not None:
                holding = Holding(reservation.id, claim.quantity, second)
                self.holdings[claim.pool, reservation.customer].append(holding)

    def fields(self, swept_to_s: int) -> dict[str, str]:
        """The tenant hash, but for its build mark."""
        reserved: defaultdict[str, int] = defaultdict(int)
        first: dict[str, int] = {}
        for (pool, second), units in self.buckets.items():
            reserved[pool] += units
            first[pool] = min(second, first.get(pool, second))
        fields = {
            pool: encode_pool(
                encode_definition(definition), self.completed[pool], reserved[pool], first.get(pool, 0), swept_to_s
            )
            for pool, definition in self.definitions.items()
        }
        fields |= {bucket(pool, second): str(units) for (pool, second), units in self.buckets.items()}
        for pool, customer in self.by_customer.keys() | self.holdings.keys():
            counter = encode_holdings(self.by_customer[pool, customer], self.holdings[pool, customer])
            fields[Keys.customer_field(pool, customer)] = counter
        return fields


class _Sender:
    """Collects hash fields and sends them in pipelines of bounded size."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: defaultdict[str, dict[FieldT, EncodableT]] = defaultdict(dict)
        self._count = 0

    async def add(self, key: str, name: str, value: str) -> None:
        self._waiting[key][name] = value
        self._count += 1
        if self._count >= FIELDS_IN_ONE_SEND:
            await self.flush()

    async def flush(self) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for key, fields in self._waiting.items():
            pipeline.hset(key, mapping=fields)
        self._waiting.clear()
        self._count = 0
        await pipeline.execute()


async def rebuild(connection: AsyncConnection, redis: Redis, settings: Settings, build: int) -> None:
    """Write every tenant's keys of a new build from one snapshot of Postgres.

    The caller has fenced the builds before: nothing that a script did since may reach Postgres later.
    """
    async with connection.begin():
        await connection.execute(_SNAPSHOT)
        offset_ms = await _clock_offset_ms(connection) if settings.sandbox else 0
        seconds, micros = await redis.time()
        now_ms = int(seconds) * 1000 + int(micros) // 1000 + offset_ms
        tenants = list(await connection.scalars(select(Pool.tenant).distinct().order_by(Pool.tenant)))
        log.info("rebuild_begins", build=build, tenants=len(tenants))
        records = 0
        for name in tenants:
            tenant = _Tenant(name, Keys(settings.prefix, partition_of(name, settings.partitions), build))
            await _read_pools(connection, tenant)
            records += await _copy_records(connection, redis, settings, tenant, now_ms)
            await _write_tenant(redis, tenant, now_ms // 1000, offset_ms)
        log.info("rebuild_written", build=build, tenants=len(tenants), records=records)


async def _clock_offset_ms(connection: AsyncConnection) -> int:
    return int(await connection.scalar(select(SandboxClock.offset_ms)) or 0)


async def _read_pools(connection: AsyncConnection, tenant: _Tenant) -> None:
    for row in await connection.execute(select(Pool).where(Pool.tenant == tenant.name)):
        tenant.definitions[row.id] = PoolDefinition(
            tenant=row.tenant,
            pool=row.id,
            cap=row.cap,
            rev=row.rev,
            opens_at_ms=row.opens_at_ms,
            closes_at_ms=row.closes_at_ms,
            status=PoolStatus(row.status),
            per_customer=row.per_customer,
            late_payment=LatePayment(row.late_payment),
        )
    for row in await connection.execute(_COMPLETED, {"tenant": tenant.name}):
        tenant.completed[row.pool] += row.units
        if row.customer is not None:
            tenant.by_customer[row.pool, row.customer] += row.units


async def _copy_records(
    connection: AsyncConnection, redis: Redis, settings: Settings, tenant: _Tenant, now_ms: int
) -> int:
    """Write the records that Redis keeps, and gather what is alive; answers how many were written."""
    sender = _Sender(redis)
    written = 0
    ended_after_ms = now_ms - settings.retention_seconds * 1000
    parameters = {"tenant": tenant.name, "ended_after_ms": ended_after_ms}
    async with connection.stream(_KEPT, parameters) as rows:
        async for row in rows:
            reservation = reservation_of(row)
            key = tenant.keys.records(tenant.name, reservation.id)
            await sender.add(key, reservation.id, encode_reservation(reservation))
            if reservation.status is ReservationStatus.RESERVED and reservation.expires_at_ms > now_ms:
                tenant.add_live(reservation)
            written += 1
            if written % REPORT_EVERY == 0:
                log.info("rebuild_goes_on", tenant=tenant.name, records=written)
    await sender.flush()
    return written


async def _write_tenant(redis: Redis, tenant: _Tenant, swept_to_s: int, offset_ms: int) -> None:
    key = tenant.keys.tenant(tenant.name)
    sender = _Sender(redis)
    for name, value in tenant.fields(swept_to_s).items():
        await sender.add(key, name, value)
    await sender.flush()
    await _write_expiries(redis, tenant.keys.expiries(tenant.name), {bucket(*where): 0.0 for where in tenant.buckets})
    if offset_ms:
        await redis.hset(key, CLOCK_FIELD, str(offset_ms))
    # Without this mark the tenant answers "not ready", so it stands for everything above.
    await redis.hset(key, BUILD_FIELD, str(tenant.keys.build))


async def _write_expiries(redis: Redis, key: str, members: Mapping[str, float]) -> None:
    left = iter(members.items())
    while some := dict(islice(left, FIELDS_IN_ONE_SEND)):
        await redis.zadd(key, some)
