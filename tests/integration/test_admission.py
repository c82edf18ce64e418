"""Admission: what makes a Redis usable, and that nothing is granted before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.exceptions import ResponseError

from engine import scripts
from engine.admission import Admitted
from engine.domain import Granted, PoolState
from engine.errors import BacklogFull, NotReady, StorageUnavailable
from persistence import rebuild, succession
from persistence.admission import PartitionsChanged
from persistence.applying import batch_of, store_batch
from persistence.identity import UnsafeRedis
from persistence.outbox import read_entries
from persistence.repositories.epochs import require_epoch
from persistence.repositories.offsets import OffsetMoved, load_offsets
from tests.conftest import RedisBackend
from tests.deployment import TENANT, Deployment, deployed, eventually, in_background
from tests.fuse import Fuse, Interrupted


@pytest.fixture
async def process(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Deployment]:
    async with deployed(redis_backend.url, database_url) as made:
        await made.define("seats", 100)
        yield made


async def _sell(process: Deployment) -> None:
    """Three completed units and four reserved ones, all of it in Postgres."""
    await process.reserve("paid", ("seats", 3), customer="ann")
    await process.engine.complete(TENANT, "paid", "pay-1")
    await process.reserve("held", ("seats", 4))
    await process.persister.drain()


async def _counts(process: Deployment) -> tuple[int, int]:
    pool: PoolState = await process.engine.read_pool(TENANT, "seats")
    return pool.completed, pool.reserved


async def _epochs(process: Deployment) -> list[tuple[int, int, bool, str]]:
    rows = await process.rows("select * from redis_epochs order by epoch")
    return [(row.epoch, row.build, row.admitted_at is not None, row.reason) for row in rows]


async def test_flushed_under_running_processes(process: Deployment, database_url: str) -> None:
    """Nothing is granted between the loss and admission, and the counts are those from before."""
    await _sell(process)
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
        assert await _counts(process) == (3, 4 + len(grants))
        assert await process.engine.read(TENANT, "paid")
        for grant in grants:
            assert grant.created
            assert (await other.engine.read(TENANT, grant.reservation.id)).alive


async def test_a_flushed_script_cache_is_loaded_again(process: Deployment) -> None:
    await _sell(process)
    before = process.admitted
    await process.redis.script_flush()
    async with in_background(process.admission.watch()):
        with pytest.raises(NotReady):
            await process.reserve("now", ("seats", 1))
        await asyncio.wait_for(process.state.ready.wait(), 20)
    assert process.admitted == before
    assert (await process.reserve("now", ("seats", 1))).created
    assert await _counts(process) == (3, 5)
    assert len(await _epochs(process)) == 1


async def test_one_tenants_hash_alone_is_lost(process: Deployment) -> None:
    await process.define("seats", 5, tenant="kitchen")
    await _sell(process)
    await process.redis.delete(process.keys().tenant(TENANT))
    async with in_background(process.admission.watch()):
        with pytest.raises(NotReady):
            await process.reserve("now", ("seats", 1))

        async def back() -> bool:
            return process.state.admitted is not None and process.admitted.epoch == 2

        await eventually(back)
    assert await _counts(process) == (3, 4)
    assert (await _epochs(process))[-1][3] == "tenant_missing"


async def test_a_missing_mark_means_lost(process: Deployment) -> None:
    await _sell(process)
    await process.redis.delete(process.keys().mark)
    assert not await process.admission.is_current()
    await process.admission.ensure()
    assert (await _epochs(process))[-1] == (2, 2, True, "mark_missing")
    assert await _counts(process) == (3, 4)


async def test_an_outbox_behind_postgres_means_rolled_back(process: Deployment) -> None:
    await _sell(process)
    await process.redis.xtrim(process.keys().outbox, maxlen=0, approximate=False)
    assert not await process.admission.is_current()
    await process.admission.ensure()
    assert (await _epochs(process))[-1] == (2, 2, True, "tail_behind")
    assert await _counts(process) == (3, 4)


async def test_an_old_script_writes_nothing_after_a_new_epoch(process: Deployment) -> None:
    """Also on a server that still has it loaded, and into data that still looks whole."""
    await _sell(process)
    old, keys = process.admitted, process.keys()
    kept = await process.redis.hgetall(keys.tenant(TENANT))
    await process.redis.delete(keys.mark)
    await process.admission.ensure()
    # As if the old build had not been removed yet.
    await process.redis.hset(keys.tenant(TENANT), mapping=kept)
    await process.redis.xadd(keys.outbox, {"k": "e"}, id=f"{process.admitted.epoch}-0")
    process.state.admit(old)

    with pytest.raises(NotReady):
        await process.reserve("stale", ("seats", 1))

    assert await process.redis.hgetall(keys.tenant(TENANT)) == kept
    assert process.state.admitted is None
    assert process.state.lost.is_set()


async def test_the_fence_stands_while_the_old_build_is_removed(
    process: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outbox outlives the tenants' hashes: between the two a script of the old epoch is still refused."""
    await _sell(process)
    old, keys = process.admitted, process.keys()
    await process.redis.delete(keys.mark)
    seen: list[tuple[bool, bool]] = []
    unlink = process.redis.unlink

    async def watched(*names: str) -> int:
        tenant_is_there, outbox_is_there = [
            await process.redis.exists(key) for key in (keys.tenant(TENANT), keys.outbox)
        ]
        seen.append((bool(tenant_is_there), bool(outbox_is_there)))
        if tenant_is_there:
            old_release = scripts.sha_of(scripts.RELEASE, old, process.settings.sandbox)
            with pytest.raises(ResponseError):
                await process.redis.evalsha(
                    old_release, 4, keys.tenant(TENANT), keys.expiries(TENANT), keys.outbox,
                    keys.records(TENANT, "held"), TENANT, "held", "",
                )  # fmt: skip
        return int(await unlink(*names))

    monkeypatch.setattr(process.redis, "unlink", watched)
    await process.admission.ensure()
    assert seen[0] == (True, True)
    assert seen[-1] == (False, True)
    assert not [key async for key in process.redis.scan_iter(match=f"*:{old.build}:*")]


async def test_a_persister_that_read_before_the_loss_commits_nothing(process: Deployment, database_url: str) -> None:
    await _sell(process)
    async with process.database.connect() as connection:
        offsets = await load_offsets(connection)
    partition, keys = process.keys().partition, process.keys()
    await process.reserve("read-then-lost", ("seats", 1))
    read = await read_entries(process.redis, {partition: keys.outbox}, offsets, 100)
    stale = batch_of(offsets, read[partition])
    await process.redis.flushall()
    async with deployed(process.settings.redis_url, database_url) as other:
        with pytest.raises(OffsetMoved):
            await store_batch(other.database, stale)
        assert await _counts(other) == (3, 4)
        assert {row.id for row in await other.rows("select id from reservations")} == {"paid", "held"}


async def test_it_commits_nothing_during_the_rebuild_either(
    process: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _sell(process)
    async with process.database.connect() as connection:
        offsets = await load_offsets(connection)
    partition, keys = process.keys().partition, process.keys()
    await process.reserve("read-then-lost", ("seats", 1))
    read = await read_entries(process.redis, {partition: keys.outbox}, offsets, 100)
    stale = batch_of(offsets, read[partition])
    await process.redis.flushall()
    rebuilt = succession.rebuild
    tried = False

    async def commit_then_rebuild(*arguments: object) -> None:
        nonlocal tried
        tried = True
        with pytest.raises(OffsetMoved):
            await store_batch(process.database, stale)
        await rebuilt(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(succession, "rebuild", commit_then_rebuild)
    await process.admission.ensure()
    assert tried
    assert await _counts(process) == (3, 4)


async def test_two_at_once_begin_one_epoch(redis_backend: RedisBackend, database_url: str) -> None:
    async with (
        deployed(redis_backend.url, database_url, admit=False) as one,
        deployed(redis_backend.url, database_url, admit=False) as two,
    ):
        await asyncio.gather(one.admission.ensure(), two.admission.ensure())
        assert one.admitted == two.admitted
        await one.define("seats", 100)
        await _sell(two)
        await one.redis.flushall()
        await asyncio.gather(one.admission.ensure(), two.admission.ensure())
        assert one.admitted == two.admitted
        assert [epoch[:3] for epoch in await _epochs(one)] == [(1, 1, True), (2, 2, True)]
        assert await _counts(one) == await _counts(two) == (3, 4)


async def test_an_interrupted_rebuild_starts_over(process: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    for tenant in ("bakery", "zoo"):
        await process.define("seats", 5, tenant=tenant)
    await _sell(process)
    await process.redis.flushall()
    written = rebuild._write_tenant

    async def die_at_the_last(redis: object, tenant: rebuild._Tenant, *rest: int) -> None:
        if tenant.name == "zoo":
            raise ConnectionResetError
        await written(redis, tenant, *rest)  # type: ignore[arg-type,call-arg]

    with monkeypatch.context() as patched:
        patched.setattr(rebuild, "_write_tenant", die_at_the_last)
        with pytest.raises(ConnectionResetError):
            await process.admission.ensure()
    with pytest.raises(NotReady):
        await process.reserve("too-early", ("seats", 1))

    await process.admission.ensure()

    assert [epoch[:3] for epoch in await _epochs(process)] == [(1, 1, True), (2, 2, False), (3, 3, True)]
    assert await _counts(process) == (3, 4)
    builds = {key.split(":")[2] async for key in process.redis.scan_iter(match="lp:{*}:*")}
    assert builds == {"3"}


async def test_interrupted_at_any_call_while_it_keeps_the_data(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that changed its identity and lost nothing, with a tail that Postgres lacks each time."""
    async with deployed("fakeredis://keeps", database_url, partitions=2) as process:
        await process.define("seats", None)
        await _sell(process)
        fuse = Fuse(monkeypatch)
        for allowed in range(200):
            await process.reserve(f"tail-{allowed}", ("seats", 1))
            await process.redis.delete(f"{process.settings.prefix}:identity")
            fuse.left = allowed
            try:
                await process.admission.ensure()
            except Interrupted:
                fuse.left = None
                await process.admission.ensure()
            fell = fuse.left is None
            fuse.left = None
            assert process.admitted.build == 1
            assert await _counts(process) == (3, 4 + allowed + 1)
            assert len(await process.rows("select from reservations")) == 2 + allowed + 1
            if not fell:
                break
        assert not fell
        await process.reserve("next", ("seats", 1))
        assert await process.persister.drain() == 1


async def test_a_tail_with_a_gap_is_not_kept(database_url: str) -> None:
    """What stands behind the gap can't be trusted to be all: the data is rebuilt from what Postgres could take."""
    async with deployed("fakeredis://gap", database_url, partitions=1) as process:
        await process.define("seats", 100)
        await _sell(process)
        for identifier in ("before", "missing", "behind"):
            await process.reserve(identifier, ("seats", 1))
        assert await process.redis.xdel(process.keys().outbox, "1-5")
        await process.redis.delete(f"{process.settings.prefix}:identity")
        await process.admission.ensure()
        assert process.admitted == Admitted(2, 2)
        assert await _counts(process) == (3, 5)
        assert (await process.engine.read(TENANT, "before")).alive


async def test_definitions_committed_meanwhile_arrive(process: Deployment) -> None:
    """A first pool of a tenant whose push met the loss is in the rebuild, or pushed after it."""
    await process.redis.flushall()
    with pytest.raises(NotReady):
        await process.define("table", 2, tenant="bistro")
    await process.admission.ensure()
    assert await process.definitions.push_pending() == 1
    assert (await process.engine.read_pool("bistro", "table")).available == 2
    assert (await process.reserve("r", ("table", 1), tenant="bistro")).created


async def test_what_an_ended_epoch_granted_is_not_committed(process: Deployment) -> None:
    """A checkout commits what a script granted; a rebuild that does not know of it must have made it impossible."""
    granted_under = process.admitted.epoch
    async with process.database.begin() as connection:
        await require_epoch(connection, process.settings.prefix, granted_under)
        await process.redis.flushall()
        admitting = asyncio.create_task(process.admission.ensure())

        async def has_begun() -> bool:
            return len(await _epochs(process)) == 2

        await eventually(has_begun)
        # The rebuild waits for this transaction, so that what it commits is in what the rebuild reads.
        done, _ = await asyncio.wait({admitting}, timeout=0.3)
        assert not done
    await asyncio.wait_for(admitting, 20)
    async with process.database.begin() as connection:
        with pytest.raises(NotReady):
            await require_epoch(connection, process.settings.prefix, granted_under)


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
    await _sell(process)
    await process.change("truncate redis_epochs, outbox_offsets, pools, reservations cascade")
    await process.change("alter sequence redis_epoch restart")
    async with deployed(process.settings.redis_url, database_url) as fresh:
        assert fresh.admitted == Admitted(2, 2)
        await fresh.define("seats", 100)
        assert await _counts(fresh) == (0, 0)
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
