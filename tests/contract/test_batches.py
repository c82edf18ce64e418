"""Many reservations in one script call: each on its own, in order, as if they had come one after the other."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from engine.domain import MOST_CLAIMS, MOST_IN_ONE_CALL, Granted, Outcome, PoolStatus, ReservationRequest
from engine.errors import IdConflict, Invalid, LastportionError, Refused
from tests.admitted import TENANT
from tests.audit import snapshot
from tests.frozen import MINUTE, SECOND, Frozen, request


def brief(answer: Granted | LastportionError) -> tuple[Any, ...]:
    """What a caller would see of an answer."""
    if isinstance(answer, Granted):
        return "granted", answer.created, answer.reservation
    if isinstance(answer, Refused):
        return "refused", answer.refusal
    return type(answer).__name__, answer.details


async def test_each_on_its_own(frozen: Frozen) -> None:
    await frozen.define("soup", 3)
    await frozen.define("one", 9, per_customer=1)
    answers = await frozen.engine.reserve_many(
        [
            request("a", ("soup", 2)),
            request("b", ("soup", 2)),
            request("c", ("soup", 1), ("one", 1), customer="ada"),
            request("d", ("one", 1), customer="ada"),
            request("e", ("one", 1)),
            request("f", ("nowhere", 1)),
            request("a", ("soup", 2)),
            request("a", ("soup", 1)),
            request("g", ("one", 1), customer="bob"),
        ]
    )
    kinds = [
        answer.refusal.outcome if isinstance(answer, Refused) else getattr(answer, "created", type(answer))
        for answer in answers
    ]
    assert kinds == [
        True,
        Outcome.ALL_RESERVED,
        True,
        Outcome.LIMIT_REACHED,
        Invalid,
        Outcome.UNKNOWN_POOL,
        False,
        IdConflict,
        True,
    ]
    limit = answers[3]
    assert isinstance(limit, Refused)
    assert limit.refusal.held_by == "c"
    assert await frozen.counts("soup") == (0, 3, 0)
    assert await frozen.counts("one") == (0, 2, 7)


async def test_a_request_that_can_not_be_right_stands_alone(frozen: Frozen) -> None:
    await frozen.define("soup", 3)
    answers = await frozen.engine.reserve_many([request("a"), request("b", ("soup", 1))])
    assert [type(answer) for answer in answers] == [Invalid, Granted]


async def test_five_hundred_fill_a_pool_exactly(frozen: Frozen) -> None:
    await frozen.define("soup", 300)
    answers = await frozen.engine.reserve_many([request(f"r{n}", ("soup", 1)) for n in range(500)])
    assert sum(isinstance(answer, Granted) for answer in answers) == 300
    assert await frozen.counts("soup") == (0, 300, 0)


async def test_requests_that_wait_go_together(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = frozen.redis.evalsha

    async def evalsha(sha: str, numkeys: int, *rest: str) -> Any:
        calls.append(numkeys - 3)
        return await original(sha, numkeys, *rest)

    monkeypatch.setattr(frozen.redis, "evalsha", evalsha)
    await frozen.define("soup", None)
    calls.clear()
    await asyncio.gather(*(frozen.reserve(f"r{n}", ("soup", 1)) for n in range(500)))
    assert sum(calls) == 500
    assert max(calls) == MOST_IN_ONE_CALL
    assert len(calls) <= 500 // MOST_IN_ONE_CALL + 3


async def test_the_widest_requests_fit_a_call(frozen: Frozen) -> None:
    pools = [f"p{number}" for number in range(MOST_CLAIMS)]
    for pool in pools:
        await frozen.define(pool, 70, per_customer=1)
    requests = [request(f"r{n}", *((pool, 1) for pool in pools), customer=f"c{n}") for n in range(80)]
    answers = await frozen.engine.reserve_many(requests)
    # Which of them is not said: of a tenant's calls two are under way at a time.
    assert sum(isinstance(answer, Granted) for answer in answers) == 70
    assert [await frozen.counts(pool) for pool in pools] == [(0, 70, 0)] * MOST_CLAIMS


def random_requests(seed: int) -> list[ReservationRequest]:
    """Requests that meet every rule: shared pools, ids that repeat, limits, windows, ends in the same second."""
    chance = random.Random(seed)  # noqa: S311 - a sequence that can be had again, no secret
    pools = ["plain", "small", "limited", "paused", "unlimited", "nowhere"]
    weights = [6, 6, 6, 1, 3, 1]
    return [
        request(
            f"r{chance.randrange(40)}",
            *{
                pool: (pool, chance.randint(1, 3)) for pool in chance.choices(pools, weights, k=chance.randint(1, 3))
            }.values(),
            ttl_ms=chance.choice([SECOND, 2 * SECOND, MINUTE]),
            customer=chance.choice(["ada", "bob", None]),
        )
        for _ in range(60)
    ]


@pytest.mark.parametrize("seed", range(6))
async def test_one_call_with_many_is_the_same_as_many_calls_with_one(frozen: Frozen, seed: int) -> None:
    """Single and batched reserving are scripts of their own; the same requests must get the same answers from both."""
    requests = random_requests(seed)

    async def prepared() -> None:
        await frozen.redis.delete(
            frozen.keys.tenant(TENANT),
            frozen.keys.expiries(TENANT),
            *(frozen.keys.records_shard(TENANT, shard) for shard in range(64)),
        )
        frozen.admitted.revision = 0
        await frozen.at(1_800_000_000_123)
        await frozen.define("plain", 30)
        await frozen.define("small", 5)
        await frozen.define("limited", 12, per_customer=4)
        await frozen.define("paused", 5, status=PoolStatus.PAUSED)
        await frozen.define("unlimited", None)
        # Something is due, and was swept before the clock stepped back, in one of the pools.
        await frozen.take("old-1", ("small", 5), ("plain", 20), ("limited", 2), ttl_ms=5 * SECOND, customer="ada")
        await frozen.pass_ms(6 * SECOND)
        await frozen.counts("small")
        await frozen.pass_ms(-4 * SECOND)

    await prepared()
    single = [brief((await frozen.engine.reserve_many([each]))[0]) for each in requests]
    after_single = await snapshot(frozen.redis, frozen.keys, TENANT)
    await prepared()
    batched = [brief(answer) for answer in await frozen.engine.reserve_many(requests)]
    after_batched = await snapshot(frozen.redis, frozen.keys, TENANT)
    assert batched == single
    assert {answer[0] for answer in single} >= {"granted", "refused", "IdConflict"}
    assert after_batched.pools == after_single.pools
    assert after_batched.buckets == after_single.buckets
    assert after_batched.records == after_single.records
    assert after_batched.counters == after_single.counters
    # The outbox goes on over both runs, so its entries are not those of one history.
    frozen.audited = False
