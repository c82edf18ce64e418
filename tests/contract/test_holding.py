"""Rule 7: units of a delayed payment are kept for long, and taken again where there is room if they had gone back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from engine.domain import LatePayment, Outcome, PoolStatus
from tests.admitted import TENANT
from tests.audit import snapshot
from tests.frozen import DAY, MINUTE, SECOND, T0, Frozen
from tests.holding import FORTNIGHT, held, not_held

if TYPE_CHECKING:
    pass


async def test_one_that_is_alive_is_kept_longer_than_any_bound(frozen: Frozen) -> None:
    await frozen.define("soup", 3)
    await frozen.take("r1", ("soup", 2))
    await frozen.take("r2", ("soup", 1), ttl_ms=2 * MINUTE)
    assert await held(frozen, ttl_ms=40 * DAY) == T0 + 40 * DAY
    await frozen.pass_ms(2 * MINUTE)
    assert await frozen.counts("soup") == (0, 2, 1)
    assert (await frozen.engine.read_pool(TENANT, "soup")).next_expiry_at_ms == T0 + 40 * DAY
    await frozen.pass_ms(40 * DAY)
    assert await frozen.counts("soup") == (0, 0, 3)


async def test_the_end_is_rounded_up_to_a_second(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    assert await held(frozen, ttl_ms=2 * MINUTE + 1) == T0 + 2 * MINUTE + SECOND


@pytest.mark.parametrize("ttl_ms", [1, MINUTE - SECOND, MINUTE])
async def test_one_that_lives_that_long_anyway_stays_as_it_is(frozen: Frozen, ttl_ms: int) -> None:
    await frozen.define("soup", 1)
    made = await frozen.take("r1", ("soup", 1))
    before = await frozen.record("r1")
    settled = await frozen.engine.hold(TENANT, "r1", ttl_ms)
    assert (settled.outcome, settled.reservation.expires_at_ms) == (Outcome.HELD, made.expires_at_ms)
    assert settled.reservation.alive
    assert await frozen.record("r1") == before
    assert len(await frozen.entries()) == 2


@pytest.mark.parametrize("looked", [False, True], ids=["unswept", "swept"])
@pytest.mark.parametrize("late_ms", [0, 1, 5 * MINUTE])
async def test_one_that_expired_takes_the_very_last_units_again(frozen: Frozen, looked: bool, late_ms: int) -> None:
    """Exactly full afterwards; the millisecond of its end is after it."""
    await frozen.define("soup", 5)
    await frozen.take("sold", ("soup", 1))
    await frozen.engine.complete(TENANT, "sold")
    await frozen.take("r1", ("soup", 2))
    await frozen.pass_ms(MINUTE + late_ms)
    if looked:
        assert await frozen.counts("soup") == (1, 0, 4)
    await frozen.take("other", ("soup", 2))
    assert await held(frozen) == -(-(frozen.now_ms + FORTNIGHT) // SECOND) * SECOND
    assert await frozen.counts("soup") == (1, 4, 0)
    assert (await frozen.engine.read_pool(TENANT, "soup")).next_expiry_at_ms == T0 + 2 * MINUTE + (
        -(-late_ms // SECOND) * SECOND
    )


async def test_a_millisecond_before_its_end_nobody_can_be_in_its_way(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await frozen.define("soup", 0)
    await frozen.pass_ms(MINUTE - 1)
    await held(frozen)
    assert await frozen.counts("soup") == (0, 1, 0)


@pytest.mark.parametrize("looked", [False, True], ids=["unswept", "swept"])
@pytest.mark.parametrize("sold", [False, True], ids=["reserved", "sold"])
async def test_one_unit_short_is_not_held(frozen: Frozen, looked: bool, sold: bool) -> None:
    await frozen.define("soup", 4)
    await frozen.take("r1", ("soup", 2))
    await frozen.take("other", ("soup", 2), ttl_ms=2 * MINUTE)
    await frozen.pass_ms(MINUTE)
    if looked:
        await frozen.counts("soup")
    await frozen.take("one more", ("soup", 1))
    if sold:
        await frozen.engine.complete(TENANT, "one more")
    await not_held(frozen)
    assert await frozen.counts("soup") == ((1, 2, 1) if sold else (0, 3, 1))


async def test_sold_out_meanwhile(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await frozen.pass_ms(MINUTE)
    await frozen.take("r2", ("soup", 1))
    await frozen.engine.complete(TENANT, "r2")
    await not_held(frozen)
    # The money may come all the same, and is then judged as any late payment.
    settled = await frozen.engine.complete(TENANT, "r1", "pay-1")
    assert (settled.outcome, settled.reservation.late, settled.reservation.over_cap) == (Outcome.COMPLETED, True, 1)


async def test_not_held_now_may_be_held_when_there_is_room_again(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await frozen.pass_ms(MINUTE)
    await frozen.take("r2", ("soup", 1))
    await not_held(frozen)
    await frozen.engine.release(TENANT, "r2")
    await held(frozen)
    assert await frozen.counts("soup") == (0, 1, 0)


async def test_among_several_pools_one_without_room_is_enough(frozen: Frozen) -> None:
    await frozen.define("gate", None)
    for pool in ("soup", "bread"):
        await frozen.define(pool, 1)
    await frozen.take("r1", ("gate", 2), ("soup", 1), ("bread", 1))
    await frozen.pass_ms(MINUTE)
    await frozen.take("r2", ("bread", 1))
    await not_held(frozen)
    seen = await snapshot(frozen.redis, frozen.keys, TENANT)
    assert {name: pool.state.reserved for name, pool in seen.pools.items()} == {"gate": 0, "soup": 0, "bread": 1}
    await frozen.engine.release(TENANT, "r2")
    await held(frozen)
    for pool, units in (("gate", 2), ("soup", 1), ("bread", 1)):
        assert (await frozen.counts(pool))[1] == units


@pytest.mark.parametrize(
    "rules",
    [
        {"status": PoolStatus.PAUSED},
        {"status": PoolStatus.CLOSED},
        {"closes_at_ms": T0 + SECOND},
        {"opens_at_ms": T0 + DAY},
        {"late_payment": LatePayment.REFUND},
    ],
    ids=["paused", "closed", "after its window", "before its window", "late policy"],
)
async def test_neither_status_nor_window_nor_policy_is_asked(frozen: Frozen, rules: dict[str, Any]) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await frozen.pass_ms(MINUTE)
    await frozen.define("soup", 1, **rules)
    await held(frozen)


async def test_a_cap_that_was_lowered_or_lifted_meanwhile_decides(frozen: Frozen) -> None:
    await frozen.define("soup", 2)
    await frozen.take("r1", ("soup", 2))
    await frozen.pass_ms(MINUTE)
    await frozen.define("soup", 1)
    await not_held(frozen)
    await frozen.define("soup", None)
    await held(frozen)
    assert await frozen.counts("soup") == (0, 2, None)


async def test_a_pool_that_is_gone_holds_nothing(frozen: Frozen) -> None:
    await frozen.define("gate", None)
    await frozen.define("soup", 1)
    await frozen.take("r1", ("gate", 1), ("soup", 1))
    await frozen.pass_ms(MINUTE)
    assert await frozen.counts("soup") == (0, 0, 1)
    await frozen.redis.hdel(frozen.keys.tenant(TENANT), "soup")
    frozen.forgotten = True
    await not_held(frozen)
    assert await frozen.counts("gate") == (0, 0, None)


@pytest.mark.parametrize("sold", [False, True], ids=["reserved", "sold"])
async def test_the_same_customer_took_the_limit_meanwhile(frozen: Frozen, sold: bool) -> None:
    await frozen.define("soup", 9, per_customer=2)
    await frozen.take("r1", ("soup", 1), customer="ada")
    await frozen.pass_ms(MINUTE)
    await frozen.take("r2", ("soup", 2), customer="ada")
    if sold:
        await frozen.engine.complete(TENANT, "r2")
    await not_held(frozen)
    assert await frozen.counts("soup") == ((2, 0, 7) if sold else (0, 2, 7))
    await frozen.define("soup", 9)
    await held(frozen)


async def test_the_limit_is_filled_exactly_by_what_is_taken_again(frozen: Frozen) -> None:
    """Its own old holding, still written there, does not count against it; nor does another's that expired."""
    await frozen.define("soup", 9, per_customer=3)
    await frozen.take("gone", ("soup", 1), customer="ada")
    await frozen.take("r1", ("soup", 1), customer="ada")
    await frozen.pass_ms(MINUTE - SECOND)
    await frozen.take("r2", ("soup", 1), customer="ada")
    await frozen.pass_ms(SECOND)
    await held(frozen)
    refusal = await frozen.refused("r3", ("soup", 2), customer="ada")
    assert (refusal.outcome, refusal.held_by) == (Outcome.LIMIT_REACHED, "r2")
    await frozen.take("r3", ("soup", 1), customer="ada")
    # Long after all others have ended, the held one is what the customer still holds.
    await frozen.pass_ms(DAY)
    assert (await frozen.refused("r4", ("soup", 3), customer="ada")).held_by == "r1"
    await frozen.take("r4", ("soup", 2), customer="ada")


async def test_what_the_customer_held_and_let_go_does_not_stand_in_the_way(frozen: Frozen) -> None:
    """Its holding is still written there, and would fill a limit that was lowered meanwhile."""
    await frozen.define("soup", 9, per_customer=3)
    await frozen.take("gone", ("soup", 2), customer="ada")
    await frozen.take("r1", ("soup", 1), customer="ada")
    await frozen.pass_ms(MINUTE)
    await frozen.define("soup", 9, per_customer=1)
    await held(frozen)
    assert await frozen.counts("soup") == (0, 1, 8)


async def test_one_unit_over_the_limit_is_not_held(frozen: Frozen) -> None:
    await frozen.define("soup", 9, per_customer=3)
    await frozen.take("r1", ("soup", 2), customer="ada")
    await frozen.pass_ms(MINUTE)
    await frozen.take("sold", ("soup", 1), customer="ada")
    await frozen.engine.complete(TENANT, "sold")
    await frozen.take("live", ("soup", 1), customer="ada")
    await not_held(frozen)
    await frozen.engine.release(TENANT, "live")
    await held(frozen)


async def test_a_limit_of_later_does_not_bind_what_was_reserved_under_none(frozen: Frozen) -> None:
    await frozen.define("soup", 9)
    await frozen.take("r1", ("soup", 2), customer="ada")
    await frozen.pass_ms(MINUTE)
    await frozen.define("soup", 9, per_customer=1)
    await frozen.take("r2", ("soup", 1), customer="ada")
    await held(frozen)


@pytest.mark.parametrize("expired", [False, True], ids=["alive", "expired"])
async def test_keeping_a_living_one_moves_its_holding_too(frozen: Frozen, expired: bool) -> None:
    await frozen.define("soup", 9, per_customer=1)
    await frozen.take("r1", ("soup", 1), customer="ada")
    await frozen.pass_ms(MINUTE if expired else SECOND)
    end_ms = await held(frozen)
    seen = await snapshot(frozen.redis, frozen.keys, TENANT)
    assert seen.counters == {"soup||ada": f"0;r1:1:{end_ms // SECOND}"}
    await frozen.pass_ms(DAY)
    assert (await frozen.refused("r2", ("soup", 1), customer="ada")).held_by == "r1"
