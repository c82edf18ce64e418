"""Rule 9: a customer limit knows its own reservations, through every end that a reservation may take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from engine.domain import Granted, Outcome
from engine.keys import Keys
from tests.admitted import TENANT
from tests.audit import audit, snapshot
from tests.frozen import MINUTE, SECOND, Frozen, frozen_engine, request

if TYPE_CHECKING:
    from tests.conftest import RedisBackend


async def limit_reached(frozen: Frozen, identifier: str, quantity: int, customer: str = "ada") -> bool:
    return (await frozen.refused(identifier, ("soup", quantity), customer=customer)).outcome is Outcome.LIMIT_REACHED


async def test_units_are_limited_for_each_customer_apart(frozen: Frozen) -> None:
    await frozen.define("soup", 9, per_customer=2)
    await frozen.take("a1", ("soup", 2), customer="ada")
    assert await limit_reached(frozen, "a2", 1)
    await frozen.take("b1", ("soup", 2), customer="bob")
    assert await limit_reached(frozen, "b2", 1, "bob")


async def test_more_than_the_limit_in_one_request(frozen: Frozen) -> None:
    await frozen.define("soup", 9, per_customer=2)
    refusal = await frozen.refused("a1", ("soup", 1), ("soup", 2), customer="ada")
    assert (refusal.outcome, refusal.held_by) == (Outcome.LIMIT_REACHED, None)


@pytest.mark.parametrize("end", ["release", "expiry", "cancel with restock"])
async def test_an_end_gives_the_customer_the_units_back(frozen: Frozen, end: str) -> None:
    await frozen.define("soup", 9, per_customer=1)
    await frozen.take("a1", ("soup", 1), customer="ada")
    if end == "release":
        await frozen.engine.release(TENANT, "a1")
    elif end == "expiry":
        await frozen.pass_ms(MINUTE)
    else:
        await frozen.engine.complete(TENANT, "a1")
        await frozen.engine.cancel(TENANT, "a1", restock=True)
    await frozen.take("a2", ("soup", 1), customer="ada")
    assert await limit_reached(frozen, "a3", 1)


@pytest.mark.parametrize("cancelled", [False, True], ids=["completed", "cancelled without restock"])
async def test_sold_units_keep_counting_for_good(frozen: Frozen, cancelled: bool) -> None:
    await frozen.define("soup", 9, per_customer=1)
    await frozen.take("a1", ("soup", 1), customer="ada")
    await frozen.engine.complete(TENANT, "a1")
    if cancelled:
        await frozen.engine.cancel(TENANT, "a1", restock=False)
    await frozen.pass_ms(30 * MINUTE)
    assert await limit_reached(frozen, "a2", 1)


async def test_a_limit_added_in_the_middle_of_a_sale(frozen: Frozen) -> None:
    await frozen.define("soup", 9)
    await frozen.take("before", ("soup", 1), customer="ada")
    await frozen.take("nobody", ("soup", 1))
    await frozen.define("soup", 9, per_customer=1)
    # What was reserved under no limit counts from the moment it completes, and not before.
    await frozen.take("after", ("soup", 1), customer="ada")
    assert await limit_reached(frozen, "third", 1)
    await frozen.engine.release(TENANT, "before")
    assert await limit_reached(frozen, "third", 1)
    await frozen.engine.release(TENANT, "after")
    await frozen.take("fourth", ("soup", 1), customer="ada")
    await frozen.engine.complete(TENANT, "fourth")
    assert await limit_reached(frozen, "fifth", 1)
    assert (await frozen.engine.complete(TENANT, "nobody")).outcome is Outcome.COMPLETED
    assert await frozen.counts("soup") == (2, 0, 7)


async def test_what_was_reserved_before_the_limit_counts_once_completed(frozen: Frozen) -> None:
    await frozen.define("soup", 9)
    await frozen.take("before", ("soup", 1), customer="ada")
    await frozen.define("soup", 9, per_customer=1)
    await frozen.engine.complete(TENANT, "before")
    assert await limit_reached(frozen, "after", 1)
    await frozen.engine.cancel(TENANT, "before", restock=True)
    await frozen.take("after", ("soup", 1), customer="ada")


async def test_a_limit_that_goes_and_comes_back_finds_the_same_counts(frozen: Frozen) -> None:
    await frozen.define("soup", 9, per_customer=1)
    await frozen.take("a1", ("soup", 1), customer="ada")
    await frozen.define("soup", 9)
    await frozen.take("a2", ("soup", 3), customer="ada")
    await frozen.engine.release(TENANT, "a1")
    await frozen.engine.complete(TENANT, "a2")
    await frozen.define("soup", 9, per_customer=1)
    # No limit held when a2 was reserved and completed, and a1 is gone.
    await frozen.take("a3", ("soup", 1), customer="ada")
    assert await limit_reached(frozen, "a4", 1)


async def test_a_limit_lowered_below_what_is_held(frozen: Frozen) -> None:
    await frozen.define("soup", 9, per_customer=3)
    await frozen.take("a1", ("soup", 3), customer="ada")
    await frozen.define("soup", 9, per_customer=1)
    assert await limit_reached(frozen, "a2", 1)
    assert (await frozen.engine.complete(TENANT, "a1")).outcome is Outcome.COMPLETED


async def test_extending_keeps_the_hold(frozen: Frozen) -> None:
    await frozen.define("soup", 9, per_customer=1)
    await frozen.take("a1", ("soup", 1), customer="ada", ttl_ms=10 * SECOND)
    await frozen.engine.extend(TENANT, "a1", MINUTE)
    await frozen.pass_ms(30 * SECOND)
    assert (await frozen.refused("a2", ("soup", 1), customer="ada")).held_by == "a1"
    await frozen.pass_ms(30 * SECOND)
    await frozen.take("a2", ("soup", 1), customer="ada")


async def test_several_limits_in_one_reservation_move_together(frozen: Frozen) -> None:
    await frozen.define("gate", 9)
    await frozen.define("soup", 9, per_customer=2)
    await frozen.define("bread", 9, per_customer=1)
    reservation = await frozen.take("a1", ("gate", 1), ("soup", 1), ("bread", 1), customer="ada")
    assert reservation.counted == (False, True, True)
    refusal = await frozen.refused("a2", ("gate", 1), ("soup", 1), ("bread", 1), customer="ada")
    assert (refusal.pool, refusal.held_by) == ("bread", "a1")
    await frozen.take("a2", ("gate", 1), ("soup", 1), customer="ada")
    await frozen.engine.release(TENANT, "a1")
    await frozen.take("a3", ("soup", 1), ("bread", 1), customer="ada")


@pytest.mark.parametrize("customer", ["a|b", "a,b", "a%7Cb", "a;b:c", "{1}", "Zoë 😀", "0", " ", "!build", "||"])
async def test_customers_of_any_name_are_told_apart(frozen: Frozen, customer: str) -> None:
    await frozen.define("soup", 9, per_customer=1)
    await frozen.take("x1", ("soup", 1), customer=customer)
    await frozen.take("x2", ("soup", 1), customer=customer + "x")
    assert (await frozen.refused("x3", ("soup", 1), customer=customer)).held_by == "x1"
    assert (await frozen.engine.read(TENANT, "x1")).customer == customer
    await frozen.engine.complete(TENANT, "x1")
    assert await frozen.redis.hget(frozen.keys.tenant(TENANT), Keys.customer_field("soup", customer)) == "1"


async def test_customers_who_walk_away_leave_no_counter(frozen: Frozen) -> None:
    await frozen.define("soup", 9, per_customer=1)
    before = await frozen.redis.hlen(frozen.keys.tenant(TENANT))
    await frozen.take("a1", ("soup", 1), customer="ada")
    await frozen.engine.release(TENANT, "a1")
    await frozen.take("b1", ("soup", 1), customer="bob")
    await frozen.engine.complete(TENANT, "b1")
    await frozen.engine.cancel(TENANT, "b1", restock=True)
    assert await frozen.redis.hlen(frozen.keys.tenant(TENANT)) == before


async def test_what_was_swept_counts_no_more_when_the_clock_steps_back(frozen: Frozen) -> None:
    """The pool gave the units away at their end, so the customer does not hold them either."""
    await frozen.define("soup", 9, per_customer=1)
    await frozen.take("a1", ("soup", 1), customer="ada")
    await frozen.pass_ms(MINUTE)
    assert await frozen.counts("soup") == (0, 0, 9)
    await frozen.pass_ms(-5 * SECOND)
    await frozen.take("a2", ("soup", 1), customer="ada")
    assert (await frozen.refused("a3", ("soup", 1), customer="ada")).held_by == "a2"


async def test_what_is_due_counts_no_more_though_not_swept_yet(frozen: Frozen) -> None:
    """More seconds are due than one call drops, and the customer's own is the last of them."""
    await frozen.define("soup", None, per_customer=1)
    requests = [request(f"r{n}", ("soup", 1), ttl_ms=n * SECOND, customer=f"c{n}") for n in range(1, 1_201)]
    assert all(isinstance(answer, Granted) for answer in await frozen.engine.reserve_many(requests))
    await frozen.pass_ms(1_200 * SECOND)
    await frozen.take("again", ("soup", 1), customer="c1200")
    assert (await frozen.refused("more", ("soup", 1), customer="c1200")).held_by == "again"


async def test_what_one_call_left_unswept_is_still_held_when_the_clock_steps_back(redis_backend: RedisBackend) -> None:
    """A grant with due buckets left over must not forget a holding whose units are still counted."""
    async with frozen_engine(redis_backend.url, sweep_budget=1) as frozen:
        await frozen.define("soup", 9, per_customer=2)
        await frozen.take("first", ("soup", 1), ttl_ms=SECOND, customer="bob")
        await frozen.take("a1", ("soup", 1), ttl_ms=2 * SECOND, customer="ada")
        await frozen.pass_ms(2 * SECOND)
        await frozen.take("a2", ("soup", 1), customer="ada")
        await frozen.pass_ms(-SECOND)
        assert (await frozen.engine.read(TENANT, "a1")).alive
        assert (await frozen.refused("a3", ("soup", 1), customer="ada")).held_by == "a1"
        audit(await snapshot(frozen.redis, frozen.keys, TENANT))
