"""Rules 5 and 8: release, extend and cancel name the state they expect, and give units back once."""

from __future__ import annotations

import asyncio

import pytest

from engine.domain import Outcome, ReservationStatus
from engine.errors import IllegalTransition, Unknown
from tests.admitted import TENANT
from tests.frozen import DAY, MINUTE, SECOND, T0, Frozen


async def test_released_a_thousand_times_gives_units_back_once(frozen: Frozen) -> None:
    """Case B8."""
    await frozen.define("soup", 5)
    await frozen.take("r1", ("soup", 2))
    await frozen.take("r2", ("soup", 3))
    outcomes = await asyncio.gather(*(frozen.engine.release(TENANT, "r1") for _ in range(1000)))
    words = [settled.outcome for settled in outcomes]
    assert (words.count(Outcome.RELEASED), words.count(Outcome.ALREADY_RELEASED)) == (1, 999)
    assert await frozen.counts("soup") == (0, 3, 2)
    assert len(await frozen.entries()) == 4


async def test_a_released_reservation_says_when(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await frozen.pass_ms(1234)
    made = (await frozen.engine.release(TENANT, "r1")).reservation
    assert (made.status, made.ended_at_ms, made.version) == (ReservationStatus.RELEASED, T0 + 1234, 2)
    assert (made.alive, made.expired) == (False, False)
    await frozen.pass_ms(DAY)
    assert (await frozen.engine.release(TENANT, "r1")).reservation.ended_at_ms == T0 + 1234


async def test_release_gives_back_every_claim_of_a_shared_second(frozen: Frozen) -> None:
    await frozen.define("gate", None)
    await frozen.define("soup", 9)
    await frozen.take("r1", ("gate", 3), ("soup", 3))
    await frozen.take("r2", ("gate", 4), ("soup", 4))
    await frozen.engine.release(TENANT, "r1")
    assert await frozen.counts("gate") == (0, 4, None)
    assert await frozen.counts("soup") == (0, 4, 5)
    await frozen.engine.release(TENANT, "r2")
    assert await frozen.counts("soup") == (0, 0, 9)
    assert await frozen.redis.zcard(frozen.keys.expiries(TENANT)) == 0


async def test_releasing_what_was_cancelled_or_never_was(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await frozen.engine.complete(TENANT, "r1")
    await frozen.engine.cancel(TENANT, "r1", restock=False)
    with pytest.raises(IllegalTransition) as caught:
        await frozen.engine.release(TENANT, "r1")
    assert caught.value.details == {"status": "cancelled"}
    with pytest.raises(Unknown):
        await frozen.engine.release(TENANT, "nobody")
    assert await frozen.counts("soup") == (1, 0, 0)


async def test_extend_sets_the_later_end(frozen: Frozen) -> None:
    await frozen.define("soup", 2)
    await frozen.take("r1", ("soup", 1), ttl_ms=40 * SECOND)
    await frozen.take("r2", ("soup", 1), ttl_ms=40 * SECOND)
    await frozen.pass_ms(10 * SECOND)
    kept = await frozen.engine.extend(TENANT, "r1", 20 * SECOND)
    assert (kept.expires_at_ms, kept.version) == (T0 + 40 * SECOND, 1)
    moved = await frozen.engine.extend(TENANT, "r1", 31 * SECOND + 1)
    assert (moved.expires_at_ms, moved.version) == (T0 + 42 * SECOND, 2)
    # One that changes nothing says nothing to Postgres.
    assert len(await frozen.entries()) == 4
    await frozen.at(T0 + 40 * SECOND)
    assert await frozen.counts("soup") == (0, 1, 1)
    assert (await frozen.engine.read(TENANT, "r1")).alive
    await frozen.at(T0 + 42 * SECOND)
    assert await frozen.counts("soup") == (0, 0, 2)


async def test_extending_many_times_counts_once(frozen: Frozen) -> None:
    await frozen.define("gate", None)
    await frozen.define("soup", 3, per_customer=2)
    await frozen.take("r1", ("gate", 2), ("soup", 2), customer="ada")
    for number in range(20):
        await frozen.pass_ms(SECOND)
        await frozen.engine.extend(TENANT, "r1", MINUTE)
        await frozen.engine.extend(TENANT, "r1", MINUTE)
        assert await frozen.counts("soup") == (0, 2, 1), number
    assert await frozen.redis.zcard(frozen.keys.expiries(TENANT)) == 2
    assert (await frozen.engine.complete(TENANT, "r1")).reservation.late is False
    assert await frozen.counts("gate") == (2, 0, None)


async def test_extend_is_bound_to_thirty_days_from_the_making(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1), ttl_ms=7 * DAY)
    for _ in range(6):
        await frozen.pass_ms(5 * DAY)
        made = await frozen.engine.extend(TENANT, "r1", 7 * DAY)
        assert made.expires_at_ms == min(frozen.now_ms + 7 * DAY, T0 + 30 * DAY)
        if frozen.now_ms == T0 + 25 * DAY:
            break
    await frozen.at(T0 + 30 * DAY)
    with pytest.raises(IllegalTransition):
        await frozen.engine.extend(TENANT, "r1", MINUTE)


@pytest.mark.parametrize("state", ["expired", "released", "completed", "cancelled"])
async def test_only_the_living_are_extended(frozen: Frozen, state: str) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    if state == "expired":
        await frozen.pass_ms(MINUTE)
    elif state == "released":
        await frozen.engine.release(TENANT, "r1")
    else:
        await frozen.engine.complete(TENANT, "r1")
    if state == "cancelled":
        await frozen.engine.cancel(TENANT, "r1", restock=True)
    before, entries = await frozen.record("r1"), len(await frozen.entries())
    with pytest.raises(IllegalTransition) as caught:
        await frozen.engine.extend(TENANT, "r1", MINUTE)
    assert caught.value.details == {"status": state}
    assert (await frozen.record("r1"), len(await frozen.entries())) == (before, entries)
    with pytest.raises(Unknown):
        await frozen.engine.extend(TENANT, "nobody", MINUTE)


@pytest.mark.parametrize("restock", [True, False])
async def test_cancel_with_and_without_restock(frozen: Frozen, restock: bool) -> None:
    await frozen.define("soup", 3)
    await frozen.define("gate", None)
    await frozen.take("r1", ("soup", 2), ("gate", 2))
    await frozen.engine.complete(TENANT, "r1", "pay-1")
    await frozen.pass_ms(DAY)
    settled = await frozen.engine.cancel(TENANT, "r1", restock=restock)
    made = settled.reservation
    assert (settled.outcome, made.status, made.restocked) == (Outcome.CANCELLED, ReservationStatus.CANCELLED, restock)
    assert (made.ended_at_ms, made.completed_at_ms, made.payment_ref) == (T0 + DAY, T0, "pay-1")
    left = (0, 0, 3) if restock else (2, 0, 1)
    assert await frozen.counts("soup") == left
    # What the first said counts; a repeat that says otherwise changes nothing.
    again = await frozen.engine.cancel(TENANT, "r1", restock=not restock)
    assert (again.outcome, again.reservation) == (Outcome.ALREADY_CANCELLED, made)
    assert await frozen.counts("soup") == left
    assert (await frozen.counts("gate"))[0] == (0 if restock else 2)


@pytest.mark.parametrize("state", ["reserved", "expired", "released"])
async def test_only_the_completed_are_cancelled(frozen: Frozen, state: str) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    if state == "expired":
        await frozen.pass_ms(MINUTE)
    elif state == "released":
        await frozen.engine.release(TENANT, "r1")
    before = await frozen.record("r1")
    with pytest.raises(IllegalTransition) as caught:
        await frozen.engine.cancel(TENANT, "r1", restock=True)
    assert caught.value.details == {"status": state}
    assert await frozen.record("r1") == before
    with pytest.raises(Unknown):
        await frozen.engine.cancel(TENANT, "nobody", restock=True)
