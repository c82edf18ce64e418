"""Case A1: one portion, many buyers in several processes, one winner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING

import pytest

from engine.domain import ReservationStatus
from tests.admitted import TENANT, AdmittedEngine, admitted_engine
from tests.audit import audit, snapshot
from tests.concurrency.contention import Crowd, contend
from tests.concurrency.schemes import POOL, Engine

if TYPE_CHECKING:
    from api.servers import RedisServer


@pytest.fixture
async def admitted(redis_server: RedisServer) -> AsyncIterator[AdmittedEngine]:
    async with admitted_engine(redis_server.url) as made:
        yield made
        audit(await snapshot(made.redis, made.keys, TENANT))


@pytest.mark.parametrize("buyers", [(3, 3, 2, 2), (50, 50, 50, 50)], ids=["10", "200"])
async def test_one_portion_and_buyers_in_four_processes(
    admitted: AdmittedEngine, processes: Executor, buyers: tuple[int, ...]
) -> None:
    """None of them pays yet."""
    await admitted.define(POOL, 1)
    assert contend(processes, admitted.settings, [Crowd(Engine(pays=False), each) for each in buyers]) == 0
    state = await admitted.engine.read_pool(TENANT, POOL)
    assert (state.completed, state.reserved, state.available) == (0, 1, 0)
    seen = await snapshot(admitted.redis, admitted.keys, TENANT)
    (winner,) = seen.records.values()
    assert winner.status is ReservationStatus.RESERVED
    assert len(seen.entries) == 2
    keys, of = await admitted.redis.keys("*"), admitted.keys
    places = [of.mark, of.outbox, of.tenant(TENANT), of.expiries(TENANT), of.records(TENANT, winner.id)]
    assert sorted(keys) == sorted(places)


async def test_as_many_win_as_there_are_portions(admitted: AdmittedEngine, processes: Executor) -> None:
    await admitted.define(POOL, 30)
    assert contend(processes, admitted.settings, [Crowd(Engine(), 50)] * 4) == 30
    state = await admitted.engine.read_pool(TENANT, POOL)
    assert (state.completed, state.reserved, state.available) == (30, 0, 0)
