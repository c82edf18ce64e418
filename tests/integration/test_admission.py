"""Admission: what makes a Redis usable, and that nothing is granted before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from psycopg import sql
from sqlalchemy.exc import ProgrammingError

from api.servers import PostgresServer
from engine.admission import Admitted
from engine.domain import Granted
from engine.errors import BacklogFull, NotReady, StorageUnavailable
from persistence.admission import PartitionsChanged
from persistence.identity import UnsafeRedis
from persistence.migrations import migrate
from tests.conftest import RedisBackend
from tests.deployment import TENANT, Deployment, deployed, eventually, in_background


@pytest.fixture
async def process(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Deployment]:
    async with deployed(redis_backend.url, database_url) as made:
        await made.define("seats", 100)
        yield made


async def test_flushed_under_running_processes(process: Deployment, database_url: str) -> None:
    """Nothing is granted between the loss and admission, and the counts are those from before."""
    await process.sell()
    grants: list[Granted] = []
    refusals = 0
    async with deployed(process.settings.redis_url, database_url) as other:
        before = process.admitted
        assert other.admitted == before

        async def buy(on: Deployment, name: str) -> None:
            nonlocal refusals
            for number in range(10_000):
                try:
                    grants.append(await on.reserve(f"{name}-{number}", ("seats", 1)))
                except NotReady:
                    refusals += 1
                if on.state.admitted not in (None, before):
                    return
                await asyncio.sleep(0.001)

        await process.redis.flushall()
        with pytest.raises(NotReady):
            await process.reserve("too-early", ("seats", 1))
        async with in_background(process.admission.watch()), in_background(other.admission.watch()):
            await asyncio.gather(buy(process, "one"), buy(other, "two"))
            await process.state.ready.wait()
            await other.state.ready.wait()
        assert refusals
        assert process.admitted == other.admitted == Admitted(before.epoch + 1, before.build + 1)
        assert await process.counts() == (3, 4 + len(grants))
        assert await process.engine.read(TENANT, "paid")
        for grant in grants:
            assert grant.created
            assert (await other.engine.read(TENANT, grant.reservation.id)).alive


async def test_a_flushed_script_cache_is_loaded_again(process: Deployment) -> None:
    await process.sell()
    before = process.admitted
    await process.redis.script_flush()
    async with in_background(process.admission.watch()):
        with pytest.raises(NotReady):
            await process.reserve("now", ("seats", 1))
        await asyncio.wait_for(process.state.ready.wait(), 20)
    assert process.admitted == before
    assert (await process.reserve("now", ("seats", 1))).created
    assert await process.counts() == (3, 5)
    assert len(await process.epochs()) == 1


async def test_one_tenants_hash_alone_is_lost(process: Deployment) -> None:
    await process.define("seats", 5, tenant="kitchen")
    await process.sell()
    await process.redis.delete(process.keys().tenant(TENANT))
    async with in_background(process.admission.watch()):
        with pytest.raises(NotReady):
            await process.reserve("now", ("seats", 1))

        async def back() -> bool:
            return process.state.admitted is not None and process.admitted.epoch == 2

        await eventually(back)
    assert await process.counts() == (3, 4)
    assert (await process.epochs())[-1][3] == "tenant_missing"


async def test_a_missing_mark_means_lost(process: Deployment) -> None:
    await process.sell()
    await process.redis.delete(process.keys().mark)
    assert not await process.admission.is_current()
    await process.admission.ensure()
    assert (await process.epochs())[-1] == (2, 2, True, "mark_missing")
    assert await process.counts() == (3, 4)


async def test_an_outbox_behind_postgres_means_rolled_back(process: Deployment) -> None:
    await process.sell()
    await process.redis.xtrim(process.keys().outbox, maxlen=0, approximate=False)
    assert not await process.admission.is_current()
    await process.admission.ensure()
    assert (await process.epochs())[-1] == (2, 2, True, "tail_behind")
    assert await process.counts() == (3, 4)


async def test_two_at_once_begin_one_epoch(redis_backend: RedisBackend, database_url: str) -> None:
    async with (
        deployed(redis_backend.url, database_url, admit=False) as one,
        deployed(redis_backend.url, database_url, admit=False) as two,
    ):
        await asyncio.gather(one.admission.ensure(), two.admission.ensure())
        assert one.admitted == two.admitted
        await one.define("seats", 100)
        await two.sell()
        await one.redis.flushall()
        await asyncio.gather(one.admission.ensure(), two.admission.ensure())
        assert one.admitted == two.admitted
        assert [epoch[:3] for epoch in await one.epochs()] == [(1, 1, True), (2, 2, True)]
        assert await one.counts() == await two.counts() == (3, 4)


async def test_definitions_committed_meanwhile_arrive(process: Deployment) -> None:
    """A first pool of a tenant whose push met the loss is in the rebuild, or pushed after it."""
    await process.redis.flushall()
    with pytest.raises(NotReady):
        await process.define("table", 2, tenant="bistro")
    await process.admission.ensure()
    assert await process.definitions.push_pending() == 1
    assert (await process.engine.read_pool("bistro", "table")).available == 2
    assert (await process.reserve("r", ("table", 1), tenant="bistro")).created


async def test_reserving_goes_on_without_postgres_until_the_outbox_is_full(
    redis_backend: RedisBackend, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with deployed(redis_backend.url, database_url, outbox_limit=10) as process:
        await process.define("seats", 100)

        def away(*_: object) -> None:
            raise StorageUnavailable

        with monkeypatch.context() as patched:
            patched.setattr("persistence.admission.transaction", away)
            patched.setattr("persistence.admission.own_connection", away)
            for number in range(10):
                assert (await process.reserve(f"r{number}", ("seats", 1))).created
                process.state.lost.set()
                assert await process.admission.is_current()
            with pytest.raises(BacklogFull):
                await process.reserve("one-too-many", ("seats", 1))
            # Settling has head-room above it.
            await process.engine.complete(TENANT, "r0")
        assert await process.persister.drain() == 11
        assert await process.admission.is_current()
        assert (await process.reserve("again", ("seats", 1))).created


async def test_another_number_of_partitions_is_refused(process: Deployment, database_url: str) -> None:
    async with deployed(process.settings.redis_url, database_url, admit=False, partitions=8) as other:
        with pytest.raises(PartitionsChanged, match="installed with 4"):
            await other.admission.ensure()
        assert other.state.admitted is None


async def test_redis_from_an_earlier_database_is_left_behind(process: Deployment, database_url: str) -> None:
    """Keys that another database wrote under the same prefix neither stop the first admission nor are believed."""
    await process.sell()
    await process.change("truncate redis_epochs, outbox_offsets, pools, reservations cascade")
    await process.change("alter sequence redis_epoch restart")
    async with deployed(process.settings.redis_url, database_url) as fresh:
        assert fresh.admitted == Admitted(2, 2)
        await fresh.define("seats", 100)
        assert await fresh.counts() == (0, 0)
        with pytest.raises(NotReady):
            await process.reserve("stale", ("seats", 1))


async def test_unsafe_redis_is_refused_by_name(redis_server: object, database_url: str) -> None:
    url: str = redis_server.url  # type: ignore[attr-defined]
    async with deployed(url, database_url, admit=False) as process:
        await process.redis.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with pytest.raises(UnsafeRedis, match="maxmemory-policy is 'allkeys-lru'"):
                await process.admission.check_safe()
            with pytest.raises(UnsafeRedis, match="LASTPORTION_REDIS_ALLOW_UNSAFE"):
                await process.admission.ensure()
            assert process.state.admitted is None
        finally:
            await process.redis.config_set("maxmemory-policy", "noeviction")
        await process.redis.config_set("appendonly", "no")
        try:
            with pytest.raises(UnsafeRedis, match="appendonly"):
                await process.admission.check_safe()
            async with deployed(url, database_url, redis_allow_unsafe=True) as meant:
                assert meant.admitted.epoch == 1
        finally:
            await process.redis.config_set("appendonly", "yes")


async def test_tasks_that_start_before_the_tables_wait_for_them(
    redis_backend: RedisBackend, postgres_server: PostgresServer
) -> None:
    name = f"unmigrated_{uuid4().hex[:12]}"
    postgres_server.ensure_database(name)
    async with deployed(redis_backend.url, postgres_server.url_of(name), admit=False) as process:
        with pytest.raises(ProgrammingError):
            await process.admission.ensure()
        async with in_background(process.admission.watch()), in_background(process.persister.run(asyncio.Event())):
            await asyncio.sleep(0)
            await migrate(process.settings)
            await asyncio.wait_for(process.state.ready.wait(), 20)
            await process.define("seats", 1)
            await process.reserve("a", ("seats", 1))

            async def stored() -> bool:
                return bool(await process.rows("select from reservations"))

            await eventually(stored)
    with postgres_server.connect() as connection:
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
