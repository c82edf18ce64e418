"""That the race test can fail: the same contention breaks the three ways of counting that are often built first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from tests.admitted import TENANT, AdmittedEngine, admitted_engine
from tests.concurrency.contention import Crowd, contend
from tests.concurrency.schemes import POOL, AddAndTakeBack, CountPayments, CountStarts, Engine

if TYPE_CHECKING:
    from api.servers import RedisServer


@pytest.fixture
async def admitted(redis_server: RedisServer) -> AsyncIterator[AdmittedEngine]:
    """An engine, and beside it plain keys for the others, with one portion."""
    async with admitted_engine(redis_server.url) as made:
        await made.define(POOL, 1)
        yield made


async def number(redis: Redis, key: str) -> int:
    return int(await redis.get(key) or 0)


async def test_counting_payments_sells_a_hundred_of_one(admitted: AdmittedEngine, processes: Executor) -> None:
    assert contend(processes, admitted.settings, [Crowd(CountPayments(cap=1), 25)] * 4) == 100
    assert await number(admitted.redis, "paid") == 100
    assert contend(processes, admitted.settings, [Crowd(Engine(), 25)] * 4) == 1


async def test_counting_starts_loses_the_portion_for_ever(admitted: AdmittedEngine, processes: Executor) -> None:
    assert contend(processes, admitted.settings, [Crowd(CountStarts(cap=1, pays=False), 25)] * 4) == 0
    # The one who got it walked away; whoever comes later finds nothing, and nothing was sold.
    assert contend(processes, admitted.settings, [Crowd(CountStarts(cap=1), 25)] * 4) == 0
    assert await number(admitted.redis, "started") == 200
    assert contend(processes, admitted.settings, [Crowd(Engine(pays=False), 25)] * 4) == 0
    await admitted.set_clock(61_000)
    assert contend(processes, admitted.settings, [Crowd(Engine(), 26)] * 4) == 1


async def test_adding_and_taking_back_refuses_a_portion_that_is_free(
    admitted: AdmittedEngine, processes: Executor
) -> None:
    """Somebody wants two, which do not fit; until that is taken back, those who want one find none."""
    plan = [Crowd(AddAndTakeBack(cap=1, quantity=2), 1), *[Crowd(AddAndTakeBack(cap=1), 33)] * 3]
    assert contend(processes, admitted.settings, plan, in_turn=True) == 0
    assert await number(admitted.redis, "used") == 0
    plan = [Crowd(Engine(quantity=2), 1), *[Crowd(Engine(), 33)] * 3]
    assert contend(processes, admitted.settings, plan, in_turn=True) == 1


async def test_adding_and_taking_back_leaks_when_a_process_dies_between(
    admitted: AdmittedEngine, processes: Executor
) -> None:
    dying = Crowd(AddAndTakeBack(cap=1, quantity=2), 1, dies_after_coming=True)
    plan = [dying, *[Crowd(AddAndTakeBack(cap=1), 33)] * 3]
    assert contend(processes, admitted.settings, plan, in_turn=True) == 0
    assert contend(processes, admitted.settings, [Crowd(AddAndTakeBack(cap=1), 25)] * 4) == 0
    assert await number(admitted.redis, "used") == 2
    plan = [Crowd(Engine(quantity=2), 1, dies_after_coming=True), *[Crowd(Engine(), 33)] * 3]
    assert contend(processes, admitted.settings, plan, in_turn=True) == 1
    assert (await admitted.engine.read_pool(TENANT, POOL)).completed == 1
