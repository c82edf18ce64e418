"""A real Redis that dies, comes back empty, older or whole, or is another server's replica."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from api.servers import RedisServer
from engine.admission import Admitted
from engine.errors import NotReady
from persistence.repositories.reservations import upsert_reservations
from tests.deployment import TENANT, Deployment, deployed, eventually, in_background


@asynccontextmanager
async def _selling(server: RedisServer, database_url: str) -> AsyncIterator[Deployment]:
    async with deployed(server.url, database_url) as process:
        await process.define("seats", 100)
        await process.reserve("paid", ("seats", 3))
        await process.engine.complete(TENANT, "paid", "pay-1")
        await process.reserve("held", ("seats", 4))
        yield process


async def _counts(process: Deployment) -> tuple[int, int]:
    pool = await process.engine.read_pool(TENANT, "seats")
    return pool.completed, pool.reserved


async def _reason(process: Deployment) -> str:
    return str((await process.rows("select reason from redis_epochs order by epoch desc"))[0].reason)


async def test_comes_back_empty(own_redis_server: RedisServer, database_url: str) -> None:
    async with _selling(own_redis_server, database_url) as process:
        await process.drain()
        own_redis_server.kill()
        with pytest.raises(NotReady):
            await process.reserve("while-away", ("seats", 1))
        shutil.rmtree(own_redis_server.data_dir)
        own_redis_server.start()
        with pytest.raises(NotReady):
            await process.reserve("too-early", ("seats", 1))
        await process.admission.ensure()
        assert process.admitted == Admitted(2, 2)
        assert await _counts(process) == (3, 4)


async def test_comes_back_whole_with_a_tail_that_postgres_lacks(
    own_redis_server: RedisServer, database_url: str
) -> None:
    """The data is kept, what Postgres lacked is stored first, and no old script is loaded."""
    async with _selling(own_redis_server, database_url) as process:
        own_redis_server.restart()
        with pytest.raises(NotReady):
            await process.reserve("too-early", ("seats", 1))
        await process.admission.ensure()
        assert process.admitted == Admitted(2, 1)
        assert await _reason(process) == "identity_changed"
        stored = {row.id: row.status for row in await process.rows("select * from reservations")}
        assert stored == {"paid": "completed", "held": "reserved"}
        assert await _counts(process) == (3, 4)
        await process.reserve("next", ("seats", 1))
        assert await process.drain() == 1


async def test_comes_back_older_than_postgres(own_redis_server: RedisServer, database_url: str, tmp_path: Path) -> None:
    """A copy of its files from before: it knows less than Postgres, so Postgres tells it."""
    async with _selling(own_redis_server, database_url) as process:
        await process.drain()
        own_redis_server.stop()
        shutil.copytree(own_redis_server.data_dir, tmp_path / "older")
        own_redis_server.start()
        await process.admission.ensure()
        await process.reserve("later", ("seats", 5))
        await process.drain()
        own_redis_server.stop()
        shutil.rmtree(own_redis_server.data_dir)
        shutil.copytree(tmp_path / "older", own_redis_server.data_dir)
        own_redis_server.start()
        async with in_background(process.admission.watch()):
            await eventually(lambda: _is_epoch(process, 3))
        assert await _reason(process) == "mark_missing"
        assert await _counts(process) == (3, 9)
        assert await process.drain() == 0


async def _comes_back_as_of(server: RedisServer, copy: Path) -> None:
    """Killed, and back with the files of an earlier moment of the same epoch."""
    server.kill()
    shutil.rmtree(server.data_dir)
    shutil.copytree(copy, server.data_dir)
    server.start()


async def test_comes_back_without_what_a_checkout_committed(
    own_redis_server: RedisServer, database_url: str, tmp_path: Path
) -> None:
    """Its outbox reaches the offset, but a checkout's reservation was committed past it: its units must be held."""
    async with _selling(own_redis_server, database_url) as process:
        await process.redis.config_set("appendfsync", "always")
        await process.drain()
        shutil.copytree(own_redis_server.data_dir, tmp_path / "before")
        granted = await process.reserve("in-checkout", ("seats", 6))
        async with process.database.begin() as connection:
            await upsert_reservations(connection, [granted.reservation])
        await _comes_back_as_of(own_redis_server, tmp_path / "before")
        await process.admission.ensure()
        assert await _reason(process) == "reservation_missing"
        assert await _counts(process) == (3, 10)
        # Epoch 2 kept the data and was given up for one that rebuilt it.
        assert process.admitted == Admitted(3, 2)


async def test_comes_back_without_a_definition_that_was_pushed(
    own_redis_server: RedisServer, database_url: str, tmp_path: Path
) -> None:
    async with _selling(own_redis_server, database_url) as process:
        await process.redis.config_set("appendfsync", "always")
        await process.drain()
        shutil.copytree(own_redis_server.data_dir, tmp_path / "before")
        await process.define("seats", 7)
        await _comes_back_as_of(own_redis_server, tmp_path / "before")
        await process.admission.ensure()
        assert await _reason(process) == "definition_missing"
        assert (await process.engine.read_pool(TENANT, "seats")).definition.cap == 7
        assert await _counts(process) == (3, 4)


async def test_comes_back_older_within_one_epoch(
    own_redis_server: RedisServer, database_url: str, tmp_path: Path
) -> None:
    async with _selling(own_redis_server, database_url) as process:
        own_redis_server.stop()
        shutil.copytree(own_redis_server.data_dir, tmp_path / "older")
        own_redis_server.start()
        # Nobody admits it: the tail goes to Postgres as it would have before the server stopped.
        await process.drain()
        own_redis_server.stop()
        await process.change("update outbox_offsets set seq = seq + 1 where seq > 0")
        own_redis_server.start()
        await process.admission.ensure()
        assert await _reason(process) == "tail_behind"
        assert process.admitted == Admitted(2, 2)
        assert await _counts(process) == (3, 4)


async def _is_epoch(process: Deployment, epoch: int) -> bool:
    return process.state.admitted is not None and process.admitted.epoch == epoch


async def test_a_watching_process_comes_back_by_itself(own_redis_server: RedisServer, database_url: str) -> None:
    async with (
        _selling(own_redis_server, database_url) as process,
        deployed(own_redis_server.url, database_url) as other,
        in_background(process.admission.watch()),
        in_background(other.admission.watch()),
        in_background(process.persister.run(asyncio.Event())),
    ):
        for epoch in (2, 3):
            own_redis_server.kill()
            own_redis_server.start()
            await eventually(lambda wanted=epoch: _is_epoch(process, wanted))  # type: ignore[misc]
            await eventually(lambda wanted=epoch: _is_epoch(other, wanted))  # type: ignore[misc]
            assert (await other.reserve(f"in-{epoch}", ("seats", 1))).created

        async def all_stored() -> bool:
            return len(await process.rows("select id from reservations")) == 4

        await eventually(all_stored)


async def test_a_replica_is_not_admitted(
    own_redis_server: RedisServer, redis_server: RedisServer, database_url: str
) -> None:
    async with _selling(own_redis_server, database_url) as process:
        await process.redis.replicaof("127.0.0.1", redis_server.port)
        with pytest.raises(NotReady, match="not a master"):
            await process.admission.is_current()
        with pytest.raises(NotReady, match="not a master"):
            await process.admission.ensure()
        await process.redis.replicaof("NO", "ONE")
        # Promoted: it now holds what its master had, which is nothing.
        assert not await process.admission.is_current()
