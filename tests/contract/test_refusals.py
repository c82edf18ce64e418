"""Rule 1: which claim a refusal names and why, in which order of precedence, and with what details."""

from __future__ import annotations

from typing import Any

import pytest

from engine.domain import Outcome, PoolStatus
from engine.errors import Invalid
from tests.admitted import TENANT
from tests.frozen import MINUTE, SECOND, T0, Frozen

PAST, FUTURE = T0 - MINUTE, T0 + MINUTE

PRECEDENCE: list[tuple[Outcome, dict[str, Any]]] = [
    (Outcome.PAUSED, {"status": PoolStatus.PAUSED, "opens_at_ms": FUTURE, "closes_at_ms": PAST, "per_customer": 1}),
    (Outcome.CLOSED, {"status": PoolStatus.CLOSED, "opens_at_ms": FUTURE, "per_customer": 1}),
    (Outcome.CLOSED, {"opens_at_ms": FUTURE, "closes_at_ms": PAST, "per_customer": 1}),
    (Outcome.NOT_OPEN, {"opens_at_ms": FUTURE, "closes_at_ms": FUTURE + 1, "per_customer": 1}),
    (Outcome.LIMIT_REACHED, {"opens_at_ms": PAST, "closes_at_ms": FUTURE, "per_customer": 1}),
    (Outcome.SOLD_OUT, {"opens_at_ms": PAST, "closes_at_ms": FUTURE, "per_customer": 9}),
]


@pytest.mark.parametrize(("outcome", "rules"), PRECEDENCE, ids=[f"{n}-{each[0]}" for n, each in enumerate(PRECEDENCE)])
async def test_precedence_within_a_pool(frozen: Frozen, outcome: Outcome, rules: dict[str, Any]) -> None:
    """Every pool here is sold out and the customer holds one already; each row takes the strongest reason away."""
    await frozen.define("soup", 1, per_customer=9)
    await frozen.take("held", ("soup", 1), customer="ada")
    await frozen.engine.complete(TENANT, "held")
    await frozen.define("soup", 1, **rules)
    refusal = await frozen.refused("r1", ("soup", 1), customer="ada")
    assert (refusal.outcome, refusal.pool, refusal.available) == (outcome, "soup", 0)
    assert refusal.opens_at_ms == (FUTURE if outcome is Outcome.NOT_OPEN else None)


async def test_sold_out_comes_before_all_reserved(frozen: Frozen) -> None:
    await frozen.define("soup", 3)
    await frozen.take("done", ("soup", 2))
    await frozen.engine.complete(TENANT, "done")
    await frozen.take("live", ("soup", 1), ttl_ms=90 * SECOND)
    # Two would not fit even if nobody else held any; one would.
    sold_out = await frozen.refused("r1", ("soup", 2))
    assert (sold_out.outcome, sold_out.available, sold_out.retry_at_ms) == (Outcome.SOLD_OUT, 0, None)
    all_reserved = await frozen.refused("r2", ("soup", 1))
    assert (all_reserved.outcome, all_reserved.retry_at_ms) == (Outcome.ALL_RESERVED, T0 + 90 * SECOND)


async def test_what_is_left_is_told_when_it_is_too_little(frozen: Frozen) -> None:
    await frozen.define("soup", 5)
    await frozen.take("r1", ("soup", 3))
    refusal = await frozen.refused("r2", ("soup", 3))
    assert (refusal.outcome, refusal.available) == (Outcome.ALL_RESERVED, 2)
    refusal = await frozen.refused("r3", ("soup", 6))
    assert (refusal.outcome, refusal.available) == (Outcome.SOLD_OUT, 2)


async def test_retry_at_is_the_earliest_end_among_the_live(frozen: Frozen) -> None:
    await frozen.define("soup", 4)
    for identifier, ttl_s in (("late", 300), ("early", 20), ("middle", 100), ("early-too", 20)):
        await frozen.take(identifier, ("soup", 1), ttl_ms=ttl_s * SECOND)

    async def retry_at_s() -> int:
        refusal = await frozen.refused("buyer", ("soup", 4))
        assert refusal.retry_at_ms is not None
        return (refusal.retry_at_ms - T0) // SECOND

    assert await retry_at_s() == 20
    await frozen.engine.release(TENANT, "early")
    assert await retry_at_s() == 20
    await frozen.engine.release(TENANT, "early-too")
    assert await retry_at_s() == 100
    await frozen.engine.extend(TENANT, "middle", 400 * SECOND)
    assert await retry_at_s() == 300
    await frozen.pass_ms(300 * SECOND)
    assert await retry_at_s() == 400
    assert (await frozen.engine.read_pool(TENANT, "soup")).next_expiry_at_ms == T0 + 400 * SECOND


async def test_the_first_claim_in_request_order_is_named(frozen: Frozen) -> None:
    await frozen.define("full", 0)
    await frozen.define("paused", 5, status=PoolStatus.PAUSED)
    await frozen.define("fine", 5)
    # Not the one with the stronger reason: order first, precedence within a claim.
    refusal = await frozen.refused("r1", ("fine", 1), ("full", 1), ("paused", 1), ("nowhere", 1))
    assert (refusal.outcome, refusal.pool) == (Outcome.SOLD_OUT, "full")
    refusal = await frozen.refused("r1", ("nowhere", 1), ("paused", 1), ("full", 1))
    assert (refusal.outcome, refusal.pool) == (Outcome.UNKNOWN_POOL, "nowhere")
    assert await frozen.counts("fine") == (0, 0, 5)


async def test_limit_reached_names_who_holds(frozen: Frozen) -> None:
    await frozen.define("soup", 9, per_customer=2)
    await frozen.take("first", ("soup", 1), customer="ada")
    await frozen.take("second", ("soup", 1), customer="ada")
    refusal = await frozen.refused("third", ("soup", 1), customer="ada")
    assert (refusal.outcome, refusal.held_by, refusal.available) == (Outcome.LIMIT_REACHED, "first", 7)
    await frozen.engine.complete(TENANT, "first")
    assert (await frozen.refused("third", ("soup", 1), customer="ada")).held_by == "second"
    await frozen.engine.complete(TENANT, "second")
    assert (await frozen.refused("third", ("soup", 1), customer="ada")).held_by is None


async def test_a_limited_pool_needs_a_customer(frozen: Frozen) -> None:
    await frozen.define("soup", 9, per_customer=2)
    with pytest.raises(Invalid) as caught:
        await frozen.reserve("r1", ("soup", 1))
    assert list(caught.value.details["fields"]) == ["customer"]
    assert await frozen.counts("soup") == (0, 0, 9)
    assert len(await frozen.entries()) == 1
