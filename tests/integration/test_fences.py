"""The fences of an epoch: what read, ran or was interrupted before it changes nothing after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.exceptions import ResponseError

from engine import scripts
from engine.admission import Admitted
from engine.errors import NotReady
from persistence import rebuild, succession
from persistence.applying import batch_of, store_batch
from persistence.outbox import read_entries
from persistence.repositories.epochs import require_epoch
from persistence.repositories.offsets import OffsetMoved, load_offsets
from tests.conftest import RedisBackend
from tests.deployment import TENANT, Deployment, deployed, eventually
from tests.fuse import Fuse, Interrupted


@pytest.fixture
async def process(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Deployment]:
    async with deployed(redis_backend.url, database_url) as made:
        await made.define("seats", 100)
        yield made


async def test_an_old_script_writes_nothing_after_a_new_epoch(process: Deployment) -> None:
    """Also on a server that still has it loaded, and into data that still looks whole."""
    await process.sell()
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
    await process.sell()
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
    await process.sell()
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
        assert await other.counts() == (3, 4)
        assert {row.id for row in await other.rows("select id from reservations")} == {"paid", "held"}


async def test_it_commits_nothing_during_the_rebuild_either(
    process: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    await process.sell()
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
    assert await process.counts() == (3, 4)


async def test_an_interrupted_rebuild_starts_over(process: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    for tenant in ("bakery", "zoo"):
        await process.define("seats", 5, tenant=tenant)
    await process.sell()
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

    assert [epoch[:3] for epoch in await process.epochs()] == [(1, 1, True), (2, 2, False), (3, 3, True)]
    assert await process.counts() == (3, 4)
    builds = {key.split(":")[2] async for key in process.redis.scan_iter(match="lp:{*}:*")}
    assert builds == {"3"}


async def test_interrupted_at_any_call_while_it_keeps_the_data(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that changed its identity and lost nothing, with a tail that Postgres lacks each time."""
    async with deployed("fakeredis://keeps", database_url, partitions=2) as process:
        await process.define("seats", None)
        await process.sell()
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
            assert await process.counts() == (3, 4 + allowed + 1)
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
        await process.sell()
        for identifier in ("before", "missing", "behind"):
            await process.reserve(identifier, ("seats", 1))
        assert await process.redis.xdel(process.keys().outbox, "1-5")
        await process.redis.delete(f"{process.settings.prefix}:identity")
        await process.admission.ensure()
        assert process.admitted == Admitted(2, 2)
        assert await process.counts() == (3, 5)
        assert (await process.engine.read(TENANT, "before")).alive


async def test_what_an_ended_epoch_granted_is_not_committed(process: Deployment) -> None:
    """A checkout commits what a script granted; a rebuild that does not know of it must have made it impossible."""
    granted_under = process.admitted.epoch
    async with process.database.begin() as connection:
        await require_epoch(connection, process.settings.prefix, granted_under)
        await process.redis.flushall()
        admitting = asyncio.create_task(process.admission.ensure())

        async def has_begun() -> bool:
            return len(await process.epochs()) == 2

        await eventually(has_begun)
        # The rebuild waits for this transaction, so that what it commits is in what the rebuild reads.
        done, _ = await asyncio.wait({admitting}, timeout=0.3)
        assert not done
    await asyncio.wait_for(admitting, 20)
    async with process.database.begin() as connection:
        with pytest.raises(NotReady):
            await require_epoch(connection, process.settings.prefix, granted_under)
