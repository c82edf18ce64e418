"""Cases I1, I3 and J3: callers that give up, answers that never come, servers that sleep. Nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from engine.domain import Outcome
from engine.errors import NotReady
from tests.admitted import TENANT
from tests.audit import audit, snapshot
from tests.frozen import SECOND, T0, Frozen, frozen_engine
from tests.proxy import Proxy, proxied

if TYPE_CHECKING:
    from api.servers import RedisServer

Slow = tuple[Frozen, Proxy]


@pytest.fixture
async def slow(redis_server: RedisServer) -> AsyncIterator[Slow]:
    """An engine of few connections behind a proxy."""
    async with (
        proxied(redis_server.port) as (proxy, url),
        frozen_engine(url, redis_connections=3, redis_timeout_seconds=5, redis_retries=1) as frozen,
    ):
        await frozen.define("soup", 1_000)
        yield frozen, proxy
        audit(await snapshot(frozen.redis, frozen.keys, TENANT))


@pytest.fixture
async def impatient(redis_server: RedisServer) -> AsyncIterator[Slow]:
    """One that waits a fifth of a second and asks once more."""
    async with (
        proxied(redis_server.port) as (proxy, url),
        frozen_engine(url, redis_connections=3, redis_timeout_seconds=0.2, redis_retries=1) as frozen,
    ):
        await frozen.define("soup", 10)
        yield frozen, proxy
        audit(await snapshot(frozen.redis, frozen.keys, TENANT))


async def give_up(proxy: Proxy, *calls: asyncio.Task[object]) -> None:
    """Cancel calls whose questions are on their way and whose answers are not."""
    await proxy.asked(proxy.requests + len(calls))
    for call in calls:
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        assert call.cancelled()


async def test_after_a_call_given_up_in_flight_each_gets_its_own_answer(slow: Slow) -> None:
    frozen, proxy = slow
    for number in range(1, 101):
        await frozen.take(f"r{number}", ("soup", number % 7 + 1), ttl_ms=number * SECOND)
    proxy.hold()
    await give_up(
        proxy,
        asyncio.create_task(frozen.reserve("given-up", ("soup", 5))),
        asyncio.create_task(frozen.engine.read(TENANT, "r1")),
    )
    proxy.let_go()

    async def own(number: int) -> None:
        made = await frozen.engine.read(TENANT, f"r{number}")
        assert (made.expires_at_ms, made.claims[0].quantity) == (T0 + number * SECOND, number % 7 + 1)

    async def new(number: int) -> None:
        made = await frozen.take(f"n{number}", ("soup", 1), ttl_ms=(1000 + number) * SECOND)
        assert made.expires_at_ms == T0 + (1000 + number) * SECOND

    await asyncio.gather(*(call for number in range(1, 101) for call in (own(number), new(number))))
    assert not (await frozen.reserve("given-up", ("soup", 5))).created


@pytest.mark.parametrize("act", ["complete", "release", "extend"])
async def test_an_act_given_up_in_flight_is_done_or_not_and_can_be_repeated(slow: Slow, act: str) -> None:
    frozen, proxy = slow
    await frozen.take("r1", ("soup", 1), ttl_ms=10 * SECOND)
    arguments = {"complete": ("pay-1",), "release": (), "extend": (60 * SECOND,)}[act]
    proxy.hold()
    await give_up(proxy, asyncio.create_task(getattr(frozen.engine, act)(TENANT, "r1", *arguments)))
    proxy.let_go()
    again = await getattr(frozen.engine, act)(TENANT, "r1", *arguments)
    assert (await frozen.engine.read(TENANT, "r1")).version == 2
    assert len(await frozen.entries()) == 3
    if act != "extend":
        assert again.outcome in {Outcome.ALREADY_COMPLETED, Outcome.ALREADY_RELEASED}


async def test_a_caller_that_leaves_before_the_call_leaves_nothing(slow: Slow) -> None:
    """What still waits in this process, behind calls under way, is not sent for somebody who has gone."""
    frozen, proxy = slow
    proxy.hold()
    requests = proxy.requests
    under_way = [asyncio.create_task(frozen.reserve(f"r{n}", ("soup", 1))) for n in range(70)]
    await proxy.asked(requests + 2)
    waiting = asyncio.create_task(frozen.reserve("gone", ("soup", 1)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    proxy.let_go()
    await asyncio.gather(*under_way)
    assert await frozen.record("gone") is None
    assert await frozen.counts("soup") == (0, 70, 930)


async def test_a_lost_answer_is_asked_for_again_and_counts_once(impatient: Slow) -> None:
    frozen, proxy = impatient
    proxy.losing = 1
    granted = await frozen.reserve("r1", ("soup", 1))
    # The first question was heard, so the second finds what it made.
    assert (granted.created, granted.reservation.alive) == (False, True)
    assert await frozen.counts("soup") == (0, 1, 9)
    proxy.losing = 1
    assert (await frozen.engine.complete(TENANT, "r1", "pay-1")).outcome is Outcome.ALREADY_COMPLETED
    assert await frozen.counts("soup") == (1, 0, 9)
    assert len(await frozen.entries()) == 3


async def test_answers_lost_for_good_are_not_ready_and_never_more_than_two_questions(impatient: Slow) -> None:
    frozen, proxy = impatient
    proxy.losing = 2
    with pytest.raises(NotReady):
        await frozen.reserve("r1", ("soup", 1))
    assert proxy.losing == 0
    assert frozen.admitted.state.lost.is_set()
    # Whether it is still admitted is for admission to say; here it is, and the reservation is there.
    assert not (await frozen.reserve("r1", ("soup", 1))).created
    assert len(await frozen.entries()) == 2


async def test_a_server_that_sleeps_past_the_time_out_reserves_once(own_redis_server: RedisServer) -> None:
    async with frozen_engine(own_redis_server.url, redis_timeout_seconds=0.2, redis_retries=1) as frozen:
        await frozen.define("soup", 10)
        process = own_redis_server.pid
        assert process is not None
        os.kill(process, signal.SIGSTOP)
        try:
            with pytest.raises(NotReady):
                await frozen.reserve("r1", ("soup", 1))
        finally:
            os.kill(process, signal.SIGCONT)
        granted = await frozen.reserve("r1", ("soup", 1))
        assert not granted.created
        assert await frozen.counts("soup") == (0, 1, 9)
        assert len(await frozen.entries()) == 2
        audit(await snapshot(frozen.redis, frozen.keys, TENANT))


async def test_a_server_that_is_full_refuses_and_goes_on_when_there_is_room(own_redis_server: RedisServer) -> None:
    """It grants nothing and loses nothing, and it is still the server that was admitted."""
    async with frozen_engine(own_redis_server.url) as frozen:
        await frozen.define("soup", 9)
        await frozen.take("before", ("soup", 2))
        await frozen.redis.config_set("maxmemory", "1")
        with pytest.raises(NotReady):
            await frozen.take("full", ("soup", 1))
        assert (await frozen.engine.read(TENANT, "before")).alive
        await frozen.redis.config_set("maxmemory", "0")
        await frozen.take("after", ("soup", 3))
        assert (await frozen.engine.read_pool(TENANT, "soup")).reserved == 5
        audit(await snapshot(frozen.redis, frozen.keys, TENANT))
