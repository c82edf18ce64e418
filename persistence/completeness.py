"""Whether data that survived holds everything that reached Postgres by another way than the outbox.

A checkout commits its reservation directly, and a definition is committed before it is pushed. Both may be in
Postgres while a server that came back lost its last moments, although its outbox reaches the committed offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from redis.asyncio import Redis
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.keys import Keys, partition_of
from engine.records import decode_pool
from engine.settings import Settings
from persistence.tables import Pool
from persistence.tables.sandbox import SandboxClock

LOOKED_UP_AT_ONCE = 1000

_ALIVE = text("select tenant, id from reservations where status = 'reserved' and expires_at_ms > :now_ms")


async def find_missing(connection: AsyncConnection, redis: Redis, settings: Settings, build: int) -> str | None:
    """What the data of this build lacks, in a word for the reason of an epoch; None when it is complete.

    To be asked when no script can write any more and no commit that relies on an earlier epoch is under way.
    """
    async with connection.begin():
        offset_ms = int(await connection.scalar(select(SandboxClock.offset_ms)) or 0) if settings.sandbox else 0
        seconds, _ = await redis.time()
        alive = [
            (str(tenant), str(identifier))
            for tenant, identifier in await connection.execute(_ALIVE, {"now_ms": int(seconds) * 1000 + offset_ms})
        ]
        pushed = [
            (str(tenant), str(pool), int(rev))
            for tenant, pool, rev in await connection.execute(
                select(Pool.tenant, Pool.id, Pool.pushed_rev).where(Pool.pushed_rev > 0)
            )
        ]

    def keys(tenant: str) -> Keys:
        return Keys(settings.prefix, partition_of(tenant, settings.partitions), build)

    records = [(keys(tenant).records(tenant, identifier), identifier) for tenant, identifier in alive]
    if None in await _fields(redis, records):
        return "reservation_missing"
    stored = await _fields(redis, [(keys(tenant).tenant(tenant), pool) for tenant, pool, _ in pushed])
    for (tenant, pool, rev), field in zip(pushed, stored, strict=True):
        if field is None or decode_pool(tenant, pool, field).definition.rev < rev:
            return "definition_missing"
    return None


async def _fields(redis: Redis, places: Iterable[tuple[str, str]]) -> list[str | None]:
    """Hash fields, in pipelines of bounded size."""
    left, values = iter(places), []
    while some := list(islice(left, LOOKED_UP_AT_ONCE)):
        pipeline = redis.pipeline(transaction=False)
        for key, name in some:
            pipeline.hget(key, name)
        values += await pipeline.execute()
    return values
