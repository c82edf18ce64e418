"""One process of a deployment, without HTTP: both servers, admission, engine, definitions and persister."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from redis.asyncio import Redis
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncEngine

from engine.admission import AdmissionState, Admitted
from engine.domain import Claim, Granted, PoolDefinition, PoolState, ReservationRequest
from engine.keys import Keys, partition_of
from engine.redis_client import create_redis
from engine.reservations import ReservationEngine
from engine.settings import Settings
from persistence.admission import Admission
from persistence.database import create_engine_from
from persistence.definitions import PoolDefinitions
from persistence.persister import Persister
from persistence.repeats import Repeats
from persistence.repositories.reservations import ReservationRepository

TENANT = "school"
TTL_MS = 600_000


@dataclass(slots=True)
class Deployment:
    """What a test of persistence works with."""

    settings: Settings
    database: AsyncEngine
    redis: Redis
    reader: Redis
    state: AdmissionState
    admission: Admission
    engine: ReservationEngine
    definitions: PoolDefinitions
    persister: Persister

    @property
    def admitted(self) -> Admitted:
        assert self.state.admitted is not None
        return self.state.admitted

    def keys(self, tenant: str = TENANT, build: int | None = None) -> Keys:
        """The keys of a tenant's partition in the admitted build, or another."""
        partition = partition_of(tenant, self.settings.partitions)
        return Keys(self.settings.prefix, partition, build or self.admitted.build)

    async def define(self, pool: str, cap: int | None, tenant: str = TENANT, **changes: Any) -> PoolState:
        """Commit and push a pool's definition."""
        return await self.definitions.put(tenant, replace(PoolDefinition(tenant, pool, cap, 0), **changes))

    async def reserve(self, identifier: str, *claims: tuple[str, int], tenant: str = TENANT, **changes: Any) -> Granted:
        """Reserve (pool, quantity) pairs for ten minutes."""
        wanted = tuple(Claim(pool, quantity) for pool, quantity in claims)
        return await self.engine.reserve(replace(ReservationRequest(tenant, identifier, wanted, TTL_MS), **changes))

    async def sell(self) -> None:
        """Three completed units of ``seats`` and four reserved ones, all of it in Postgres."""
        await self.reserve("paid", ("seats", 3), customer="ann")
        await self.engine.complete(TENANT, "paid", "pay-1")
        await self.reserve("held", ("seats", 4))
        await self.persister.drain()

    async def counts(self) -> tuple[int, int]:
        """Completed and reserved units of ``seats``."""
        pool = await self.engine.read_pool(TENANT, "seats")
        return pool.completed, pool.reserved

    async def epochs(self) -> list[tuple[int, int, bool, str]]:
        """Every epoch ever begun: its number, build, whether it was admitted, and why it began."""
        rows = await self.rows("select * from redis_epochs order by epoch")
        return [(row.epoch, row.build, row.admitted_at is not None, row.reason) for row in rows]

    async def rows(self, query: str, **parameters: object) -> Sequence[Row[Any]]:
        """Whatever a query finds in Postgres."""
        async with self.database.connect() as connection:
            return (await connection.execute(text(query), parameters)).all()

    async def change(self, statement: str, **parameters: object) -> None:
        """Change Postgres behind the back of what is tested."""
        async with self.database.begin() as connection:
            await connection.execute(text(statement), parameters)

    async def drain(self) -> int:
        """Persist everything, over a fresh connection: the server may have been another one before."""
        await self.reader.connection_pool.disconnect()
        return await self.persister.drain()

    def another_persister(self, *, releases: bool = False) -> Persister:
        """A second persister on the same servers, with or without what releases repeated ids."""
        release = Repeats(self.database, self.engine).release if releases else None
        return Persister(self.settings, self.database, self.reader, self.state, release)


@asynccontextmanager
async def deployed(
    redis_url: str, database_url: str, *, admit: bool = True, **settings: object
) -> AsyncIterator[Deployment]:
    """A process of a deployment with few partitions; admitted once, and not watching unless the test starts it."""
    chosen = Settings.model_validate(
        {"redis_url": redis_url, "database_url": database_url, "partitions": 4, **settings}
    )
    database, redis, state = create_engine_from(chosen), create_redis(chosen), AdmissionState()
    reader = create_redis(chosen, blocking=True)
    admission = Admission(chosen, database, redis, state)
    engine = ReservationEngine(redis, chosen, state, ReservationRepository(database))
    definitions = PoolDefinitions(database, engine, state)
    persister = Persister(chosen, database, reader, state, Repeats(database, engine).release)
    try:
        if admit:
            await admission.ensure()
        yield Deployment(chosen, database, redis, reader, state, admission, engine, definitions, persister)
    finally:
        await reader.aclose()
        await redis.aclose()
        await database.dispose()


@asynccontextmanager
async def in_background(work: Awaitable[object]) -> AsyncIterator[None]:
    """Run something that has no end beside the block, and end it with the block; its errors are the test's."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def eventually(holds: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    """Wait until something that another task or server does has happened."""
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110  (what happens elsewhere sets no event here)
            await asyncio.sleep(0.02)
