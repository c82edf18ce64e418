"""Rule 3: units come back by themselves, are given back once, and no call works off more than a bounded number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from engine.domain import MOST_IN_ONE_CALL, Claim, Granted, Outcome, PoolStatus
from engine.errors import IllegalTransition, NotReady
from engine.keys import CLOCK_FIELD
from tests.admitted import TENANT, admitted_engine
from tests.audit import snapshot
from tests.frozen import MINUTE, SECOND, T0, Frozen, request

if TYPE_CHECKING:
    from tests.conftest import RedisBackend

MOST_DROPS = 1000


async def fill(frozen: Frozen, pool: str, seconds: int, *, prefix: str = "f") -> None:
    """One unit ending in each of so many seconds from now on."""
    for start in range(0, seconds, MOST_IN_ONE_CALL):
        requests = [
            request(f"{prefix}{n}", (pool, 1), ttl_ms=n * SECOND)
            for n in range(start + 1, min(seconds, start + MOST_IN_ONE_CALL) + 1)
        ]
        answers = await frozen.engine.reserve_many(requests)
        assert all(isinstance(answer, Granted) for answer in answers)


async def test_two_seconds_are_counted_and_then_not_with_nobody_helping(redis_backend: RedisBackend) -> None:
    """On the server's own clock: the answers alone tell when the two seconds have passed."""
    async with admitted_engine(redis_backend.url, sandbox=False) as admitted:
        await admitted.define("soup", 1)
        made = (await admitted.engine.reserve(request("r1", ("soup", 1), ttl_ms=2000))).reservation
        assert (await admitted.engine.read_pool(TENANT, "soup")).available == 0
        seen = await admitted.engine.read(TENANT, "r1")
        while seen.now_ms < made.expires_at_ms:
            assert seen.alive
            seen = await admitted.engine.read(TENANT, "r1")
        assert 2000 <= made.expires_at_ms - made.created_at_ms < 3000
        assert seen.expired
        assert (await admitted.engine.read_pool(TENANT, "soup")).available == 1
        assert (await admitted.engine.reserve(request("r2", ("soup", 1)))).created
        # Production's scripts pay no regard to a test clock.
        await admitted.redis.hset(admitted.keys.tenant(TENANT), CLOCK_FIELD, str(MINUTE * 60))
        assert (await admitted.engine.read(TENANT, "r2")).alive


async def test_the_sandbox_clock_is_added_to_the_servers(redis_backend: RedisBackend) -> None:
    async with admitted_engine(redis_backend.url) as admitted:
        await admitted.define("soup", 1)
        await admitted.engine.reserve(request("r1", ("soup", 1)))
        await admitted.engine.move_clock(TENANT, MINUTE + SECOND)
        assert (await admitted.engine.read(TENANT, "r1")).expired
        # Forward only.
        await admitted.engine.move_clock(TENANT, 1)
        assert (await admitted.engine.read(TENANT, "r1")).expired
        made = (await admitted.engine.reserve(request("r2", ("soup", 1)))).reservation
        assert abs(made.created_at_ms - await admitted.engine.now_ms(TENANT)) < MINUTE
        assert made.created_at_ms - await admitted.engine.now_ms() > MINUTE - SECOND


async def test_units_that_end_together_all_come_back_at_once(frozen: Frozen, redis_backend: RedisBackend) -> None:
    """Case I5: 100,000 live, of which 1,000 end at one instant; then the rest, all in one second too.

    The stand-in for Redis is slow, so there are fewer there.
    """
    cap, due = (100_000, 1_000) if redis_backend.real else (2_000, 200)
    frozen.audited = False
    await frozen.define("seats", cap)
    for start in range(0, cap, 20_000):
        requests = [
            request(f"r{n}", ("seats", 1), ttl_ms=30 * SECOND if n < due else MINUTE)
            for n in range(start, min(cap, start + 20_000))
        ]
        answers = await frozen.engine.reserve_many(requests)
        assert all(isinstance(answer, Granted) for answer in answers)
    refusal = await frozen.refused("one more", ("seats", 1))
    assert (refusal.outcome, refusal.retry_at_ms) == (Outcome.ALL_RESERVED, T0 + 30 * SECOND)
    await frozen.pass_ms(30 * SECOND)
    frozen.watch_drops()
    answers = await frozen.engine.reserve_many([request(f"n{n}", ("seats", 1)) for n in range(due + 50)])
    assert sum(isinstance(answer, Granted) for answer in answers) == due
    assert frozen.drops[0] == 1
    assert await frozen.counts("seats") == (0, cap, 0)
    await frozen.pass_ms(30 * SECOND)
    frozen.watch_drops()
    await frozen.take("all the rest", ("seats", cap - due))
    assert frozen.drops == [1]
    assert await frozen.counts("seats") == (0, cap, 0)


@pytest.mark.parametrize("call", ["reserve", "batch", "read", "complete", "hold"])
async def test_no_call_drops_more_than_a_thousand_buckets(frozen: Frozen, call: str) -> None:
    """3,100 seconds are due in three pools; who comes next sweeps in bounded steps, then gets the exact answer."""
    for pool, seconds in (("a", 1_500), ("b", 1_200), ("c", 400)):
        await frozen.define(pool, seconds)
        await fill(frozen, pool, seconds, prefix=pool)
    await frozen.pass_ms(1_500 * SECOND)
    frozen.watch_drops()
    if call == "reserve":
        await frozen.take("new", ("a", 1_500), ("b", 1_200), ("c", 400))
    elif call == "batch":
        requests = [request("new-a", ("a", 1_500)), request("new-b", ("b", 1_200)), request("new-c", ("c", 400))]
        answers = await frozen.engine.reserve_many(requests)
        assert all(isinstance(answer, Granted) for answer in answers)
    elif call == "read":
        states = await frozen.engine.read_pools(TENANT, ["a", "b", "c"])
        assert [state.available for state in states if state] == [1_500, 1_200, 400]
    elif call == "hold":
        assert (await frozen.engine.hold(TENANT, "a1", MINUTE)).outcome is Outcome.HELD
        assert frozen.drops == [MOST_DROPS, 500]
        assert (await frozen.counts("a")) == (0, 1, 1_499)
        assert await frozen.engine.read_pools(TENANT, ["b", "c"])
    else:
        settled = await frozen.engine.complete(TENANT, "a1")
        assert (settled.reservation.late, settled.reservation.over_cap) == (True, 0)
        assert await frozen.engine.read_pools(TENANT, ["b", "c"])
        assert sum(frozen.drops) == 3_100
        assert (await frozen.counts("a")) == (1, 0, 1_499)
    assert max(frozen.drops) == MOST_DROPS
    assert sum(frozen.drops) == 3_100


async def test_with_due_buckets_left_a_call_may_grant_but_not_refuse(frozen: Frozen) -> None:
    await frozen.define("soup", 2_600)
    await fill(frozen, "soup", 2_500)
    await frozen.pass_ms(2_500 * SECOND)
    frozen.watch_drops()
    # 100 were free anyway: granted in the first call, with due buckets left over.
    await frozen.take("fits", ("soup", 100))
    assert frozen.drops == [1000]
    # Does not fit on the count of the next call, so that one may not refuse; fits on the exact count.
    await frozen.take("fits after sweeping", ("soup", 2_500))
    assert frozen.drops == [1000, 1000, 500]
    assert (await frozen.refused("too many", ("soup", 1))).outcome is Outcome.ALL_RESERVED


@pytest.mark.parametrize(
    "reason", [Outcome.PAUSED, Outcome.CLOSED, Outcome.NOT_OPEN, Outcome.LIMIT_REACHED, Outcome.SOLD_OUT]
)
async def test_a_refusal_of_any_kind_tells_what_is_left_exactly(frozen: Frozen, reason: Outcome) -> None:
    """2,500 seconds are due; told after the first thousand, a buyer would hear of units that nobody holds any more."""
    await frozen.define("soup", 2_600)
    await fill(frozen, "soup", 2_500)
    await frozen.pass_ms(2_500 * SECOND)
    rules: dict[Outcome, dict[str, Any]] = {
        Outcome.PAUSED: {"status": PoolStatus.PAUSED},
        Outcome.CLOSED: {"closes_at_ms": frozen.now_ms},
        Outcome.NOT_OPEN: {"opens_at_ms": frozen.now_ms + 1},
        Outcome.LIMIT_REACHED: {"per_customer": 1},
    }
    await frozen.define("soup", 2_600, **rules.get(reason, {}))
    refusal = await frozen.refused("r1", ("soup", 2_601), customer="ada")
    assert (refusal.outcome, refusal.available) == (reason, 2_600)


async def test_rolling_ends_with_not_now(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.reservations.MOST_ROLLS", 1)
    await frozen.define("soup", 1_100)
    await fill(frozen, "soup", 1_100)
    await frozen.pass_ms(1_100 * SECOND)
    with pytest.raises(NotReady):
        await frozen.reserve("r1", ("soup", 1_100))
    # What was swept stays swept, so trying again gets there.
    await frozen.take("r1", ("soup", 1_100))


@pytest.mark.parametrize("looked", [False, True], ids=["unswept", "swept"])
@pytest.mark.parametrize("act", ["release", "complete"])
async def test_an_act_after_the_end_counts_nothing_twice(frozen: Frozen, act: str, looked: bool) -> None:
    await frozen.define("soup", 3)
    await frozen.take("r1", ("soup", 1))
    await frozen.take("r2", ("soup", 2), ttl_ms=2 * MINUTE)
    await frozen.pass_ms(MINUTE)
    if looked:
        assert await frozen.counts("soup") == (0, 2, 1)
    await getattr(frozen.engine, act)(TENANT, "r1")
    sold = 1 if act == "complete" else 0
    assert await frozen.counts("soup") == (sold, 2, 1 - sold)


@pytest.mark.parametrize("act", ["release", "complete", "extend", "hold", "read", "reserve again"])
async def test_a_clock_that_steps_back_revives_nothing(frozen: Frozen, act: str) -> None:
    """Swept at its end, five seconds later the clock reads less than the end: the units were already given away."""
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await frozen.pass_ms(MINUTE)
    other = await frozen.take("r2", ("soup", 1), ttl_ms=10 * SECOND)
    await frozen.pass_ms(-5 * SECOND)
    assert frozen.now_ms < T0 + MINUTE
    assert (await frozen.engine.read(TENANT, "r2")).alive
    assert other.expires_at_ms > T0 + MINUTE
    if act == "release":
        assert (await frozen.engine.release(TENANT, "r1")).outcome is Outcome.RELEASED
    elif act == "complete":
        settled = await frozen.engine.complete(TENANT, "r1", "pay-1")
        assert (settled.outcome, settled.reservation.late, settled.reservation.over_cap) == (Outcome.COMPLETED, True, 1)
        assert await frozen.counts("soup") == (1, 1, 0)
        return
    elif act == "extend":
        with pytest.raises(IllegalTransition):
            await frozen.engine.extend(TENANT, "r1", MINUTE)
    elif act == "hold":
        assert (await frozen.engine.hold(TENANT, "r1", MINUTE)).outcome is Outcome.NOT_HELD
    elif act == "read":
        assert (await frozen.engine.read(TENANT, "r1")).expired
    else:
        again = await frozen.reserve("r1", ("soup", 1))
        assert not again.created
        assert again.reservation.expired
    assert await frozen.counts("soup") == (0, 1, 0)


async def test_what_is_made_after_a_step_back_outlives_what_was_swept(frozen: Frozen) -> None:
    """Its second was swept already, so it ends a second after that; otherwise it would never have counted."""
    await frozen.define("soup", 2)
    await frozen.take("r1", ("soup", 1), ttl_ms=10 * SECOND)
    await frozen.pass_ms(10 * SECOND)
    assert await frozen.counts("soup") == (0, 0, 2)
    await frozen.pass_ms(-5 * SECOND)
    made = await frozen.take("r2", ("soup", 1), ttl_ms=2 * SECOND)
    assert made.expires_at_ms == T0 + 11 * SECOND
    assert await frozen.counts("soup") == (0, 1, 1)
    assert (await frozen.engine.read(TENANT, "r2")).expires_at_ms == T0 + 11 * SECOND
    await frozen.at(T0 + 11 * SECOND)
    assert await frozen.counts("soup") == (0, 0, 2)


async def test_one_pool_swept_and_the_other_not_when_the_clock_steps_back(frozen: Frozen) -> None:
    """A reservation lives only while all its claims count; each pool gives back what it still counts, once."""
    await frozen.define("swept", 1)
    await frozen.define("waiting", 1)
    await frozen.take("r1", ("swept", 1), ("waiting", 1))
    await frozen.pass_ms(MINUTE)
    assert await frozen.counts("swept") == (0, 0, 1)
    await frozen.pass_ms(-5 * SECOND)
    assert (await frozen.engine.read(TENANT, "r1")).expired
    assert await frozen.counts("waiting") == (0, 1, 0)
    await frozen.engine.release(TENANT, "r1")
    assert await frozen.counts("swept") == (0, 0, 1)
    assert await frozen.counts("waiting") == (0, 0, 1)


async def test_claims_of_one_pool_swept_apart_stay_right_for_the_customer(frozen: Frozen) -> None:
    await frozen.define("soup", 5, per_customer=1)
    await frozen.take("r1", ("soup", 1), customer="ada")
    await frozen.pass_ms(MINUTE)
    await frozen.take("r2", ("soup", 1), customer="ada")
    await frozen.pass_ms(-5 * SECOND)
    assert (await frozen.refused("r3", ("soup", 1), customer="ada")).held_by == "r2"
    await frozen.engine.release(TENANT, "r1")
    assert (await frozen.refused("r3", ("soup", 1), customer="ada")).held_by == "r2"


async def test_sweeping_writes_no_entry(frozen: Frozen) -> None:
    await frozen.define("soup", 3)
    await frozen.take("r1", ("soup", 3))
    await frozen.pass_ms(MINUTE)
    assert await frozen.counts("soup") == (0, 0, 3)
    seen = await snapshot(frozen.redis, frozen.keys, TENANT)
    assert len(seen.entries) == 2
    assert seen.pools["soup"].swept_to_s == (T0 + MINUTE) // 1000
    assert (seen.buckets, seen.members, seen.pools["soup"].first_s) == ({}, [], 0)


async def test_a_batch_is_judged_after_the_sweep_like_a_single_one(frozen: Frozen) -> None:
    await frozen.define("a", 2)
    await frozen.define("b", 1)
    await frozen.take("old", ("a", 2), ("b", 1))
    await frozen.pass_ms(MINUTE)
    answers = await frozen.engine.reserve_many(
        [request("n1", ("a", 1), ("b", 1)), request("n2", ("a", 1), ("b", 1)), request("n3", ("a", 1))]
    )
    assert [isinstance(answer, Granted) for answer in answers] == [True, False, True]
    made = answers[0]
    assert isinstance(made, Granted)
    assert made.reservation.claims == (Claim("a", 1), Claim("b", 1))
