"""Persisters as real processes, killed in the middle of their work: nothing is lost, nothing stands there twice."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from asyncio.subprocess import DEVNULL, Process
from collections import Counter

from api.servers import RedisServer
from engine.keys import RECORD_SHARDS
from engine.records import decode_reservation
from tests.conftest import REPOSITORY
from tests.deployment import TENANT, Deployment, deployed, eventually

ROUNDS = 3
IN_ONE_ROUND = 1500


async def _persister(process: Deployment) -> Process:
    settings = {
        "LASTPORTION_REDIS_URL": process.settings.redis_url,
        "LASTPORTION_DATABASE_URL": process.settings.database_url,
        "LASTPORTION_PARTITIONS": str(process.settings.partitions),
        # Small batches, so that there are many lines to be killed at.
        "LASTPORTION_PERSIST_BATCH": "20",
    }
    command = [sys.executable, "-m", "api.cli", "persist"]
    return await asyncio.create_subprocess_exec(
        *command, cwd=REPOSITORY, env=os.environ | settings, stdout=DEVNULL, stderr=DEVNULL
    )


async def _trade(process: Deployment, round_: int, chance: random.Random) -> None:
    async def one(number: int) -> None:
        identifier = f"{round_}-{number}"
        await process.reserve(identifier, ("seats", 1), customer=f"c{number % 50}")
        end = chance.choice(("complete", "release", "extend", "leave"))
        if end == "complete":
            await process.engine.complete(TENANT, identifier, f"pay-{identifier}")
        elif end == "release":
            await process.engine.release(TENANT, identifier)
        elif end == "extend":
            await process.engine.extend(TENANT, identifier, 900_000)

    await asyncio.gather(*(one(number) for number in range(IN_ONE_ROUND)))


async def _stored(process: Deployment) -> int:
    (row,) = await process.rows("select sum(seq) as total from outbox_offsets")
    return int(row.total or 0)


async def test_killed_again_and_again(redis_server: RedisServer, database_url: str) -> None:
    chance = random.Random(20261130)  # noqa: S311  (chooses what to do, guards nothing)
    async with deployed(redis_server.url, database_url) as process:
        await process.define("seats", None)
        for round_ in range(ROUNDS):
            await _trade(process, round_, chance)
            before = await _stored(process)
            # Two at once: one works, and the other takes over where the first was killed.
            persisters = [await _persister(process), await _persister(process)]
            try:
                await eventually(lambda before=before: _moved(process, before), 60)  # type: ignore[misc]
            finally:
                for persister in chance.sample(persisters, 2):
                    await asyncio.sleep(chance.random() / 50)
                    persister.kill()
                    await persister.wait()
        await process.drain()

        in_redis = {}
        for shard in range(RECORD_SHARDS):
            for identifier, text in (await process.redis.hgetall(process.keys().records_shard(TENANT, shard))).items():
                record = decode_reservation(TENANT, identifier, text)
                in_redis[identifier] = (record.status.value, record.version, record.expires_at_ms, record.payment_ref)
        rows = await process.rows("select id, status, version, expires_at_ms, payment_ref from reservations")
        assert {row.id: tuple(row)[1:] for row in rows} == in_redis
        assert len(rows) == ROUNDS * IN_ONE_ROUND
        assert len(await process.rows("select from reservation_claims")) == len(rows)
        assert not await process.rows("select from set_aside_entries")
        statuses = Counter(row.status for row in rows)
        pool = await process.engine.read_pool(TENANT, "seats")
        assert (pool.completed, pool.reserved) == (statuses["completed"], statuses["reserved"])


async def _moved(process: Deployment, before: int) -> bool:
    return await _stored(process) > before
