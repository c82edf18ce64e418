"""Rule 7: units of a delayed payment are kept for long, and taken again where there is room if they had gone back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from engine.domain import LatePayment, Outcome, PoolStatus, ReservationStatus
from engine.errors import NotReady, Unknown
from tests.admitted import TENANT
from tests.audit import audit, snapshot
from tests.frozen import DAY, MINUTE, SECOND, T0, Frozen, frozen_engine

if TYPE_CHECKING:
    from tests.conftest import RedisBackend

FORTNIGHT = 14 * DAY
SETTLEMENT = "7a1f3f0c6b8e4d0e8f1d2a3b4c5d6e70"


async def held(frozen: Frozen, identifier: str = "r1", ttl_ms: int = FORTNIGHT) -> int:
    """Hold it, and expect to; until when."""
    before = await frozen.engine.read(TENANT, identifier)
    settled = await frozen.engine.hold(TENANT, identifier, ttl_ms)
    assert settled.outcome is Outcome.HELD
    assert settled.reservation.alive
    assert settled.reservation.version == before.version + 1
    assert await frozen.engine.read(TENANT, identifier) == replace(settled.reservation, epoch=1)
    return settled.reservation.expires_at_ms


async def not_held(frozen: Frozen, identifier: str = "r1") -> None:
    """Hold it, and expect that nothing changes but what was due."""
    before, entries = await frozen.record(identifier), len(await frozen.entries())
    settled = await frozen.engine.hold(TENANT, identifier, FORTNIGHT)
    assert settled.outcome is Outcome.NOT_HELD
    assert not settled.reservation.alive
    assert await frozen.record(identifier) == before
    assert len(await frozen.entries()) == entries


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


@pytest.mark.parametrize("expired", [False, True], ids=["alive", "expired"])
async def test_the_money_that_comes_then_is_not_late(frozen: Frozen, expired: bool) -> None:
    await frozen.define("soup", 1, per_customer=1, late_payment=LatePayment.REFUND)
    await frozen.take("r1", ("soup", 1), customer="ada")
    await frozen.pass_ms(MINUTE if expired else SECOND)
    await held(frozen)
    await frozen.pass_ms(13 * DAY)
    settled = await frozen.engine.complete(TENANT, "r1", "pay-1")
    assert (settled.outcome, settled.reservation.late, settled.reservation.over_cap) == (Outcome.COMPLETED, False, 0)
    assert await frozen.counts("soup") == (1, 0, 0)
    seen = await snapshot(frozen.redis, frozen.keys, TENANT)
    assert seen.counters == {"soup||ada": "1"}


@pytest.mark.parametrize("expired", [False, True], ids=["alive", "expired"])
async def test_the_money_that_never_comes_gives_the_units_back_once(frozen: Frozen, expired: bool) -> None:
    await frozen.define("soup", 3, per_customer=1)
    await frozen.take("r1", ("soup", 1), customer="ada")
    await frozen.pass_ms(MINUTE if expired else SECOND)
    await held(frozen)
    assert (await frozen.engine.release(TENANT, "r1")).outcome is Outcome.RELEASED
    assert await frozen.counts("soup") == (0, 0, 3)
    assert (await frozen.engine.release(TENANT, "r1")).outcome is Outcome.ALREADY_RELEASED
    await frozen.pass_ms(15 * DAY)
    assert await frozen.counts("soup") == (0, 0, 3)
    await not_held(frozen)


async def test_a_hold_that_ends_unpaid_gives_back_by_itself_and_can_be_taken_again(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await held(frozen)
    await frozen.pass_ms(FORTNIGHT)
    assert await frozen.counts("soup") == (0, 0, 1)
    await held(frozen)
    assert await frozen.counts("soup") == (0, 1, 0)


async def test_what_is_done_with_stays_so(frozen: Frozen) -> None:
    await frozen.define("soup", 9, late_payment=LatePayment.REFUND)
    for identifier in ("completed", "released", "cancelled", "refused"):
        await frozen.take(identifier, ("soup", 1))
    await frozen.engine.complete(TENANT, "completed", "pay-1")
    await frozen.engine.release(TENANT, "released")
    await frozen.engine.complete(TENANT, "cancelled")
    await frozen.engine.cancel(TENANT, "cancelled", restock=True)
    await frozen.take_late("refused", ["pay-2"])
    for identifier in ("released", "cancelled", "refused"):
        await not_held(frozen, identifier)
    before = await frozen.record("completed")
    settled = await frozen.engine.hold(TENANT, "completed", FORTNIGHT)
    assert settled.outcome is Outcome.ALREADY_COMPLETED
    assert settled.reservation.status is ReservationStatus.COMPLETED
    assert await frozen.record("completed") == before
    assert await frozen.counts("soup") == (1, 0, 8)


@pytest.mark.parametrize("expired", [False, True], ids=["alive", "expired"])
async def test_the_same_settlement_twice_takes_units_once(frozen: Frozen, expired: bool) -> None:
    await frozen.define("soup", 5)
    await frozen.take("r1", ("soup", 2))
    await frozen.pass_ms(MINUTE if expired else 0)
    first = await frozen.engine.hold(TENANT, "r1", FORTNIGHT, SETTLEMENT)
    again = await frozen.engine.hold(TENANT, "r1", FORTNIGHT, SETTLEMENT)
    assert again == first
    await frozen.pass_ms(MINUTE)
    later = await frozen.engine.hold(TENANT, "r1", FORTNIGHT, SETTLEMENT)
    assert later.reservation.expires_at_ms == first.reservation.expires_at_ms + MINUTE
    assert [fields["o"] for _, fields in (await frozen.entries())[2:]] == ["held"] * 3
    assert await frozen.counts("soup") == (0, 2, 3)


async def test_a_refusal_with_a_settlement_drops_what_is_due_and_says_so(frozen: Frozen) -> None:
    await frozen.define("soup", 2)
    await frozen.take("r1", ("soup", 2))
    await frozen.pass_ms(MINUTE)
    await frozen.define("soup", 1)
    before = await frozen.record("r1")
    settled = await frozen.engine.hold(TENANT, "r1", FORTNIGHT, SETTLEMENT)
    assert settled.outcome is Outcome.NOT_HELD
    fields = (await frozen.entries())[-1][1]
    assert (fields["s"], fields["o"], fields["p"], fields["r"]) == (SETTLEMENT, "not_held", "", before)
    seen = await snapshot(frozen.redis, frozen.keys, TENANT)
    assert (seen.buckets, seen.members, seen.pools["soup"].state.reserved) == ({}, [], 0)


async def test_due_buckets_left_over_are_worked_off_before_it_is_judged(redis_backend: RedisBackend) -> None:
    async with frozen_engine(redis_backend.url, sweep_budget=2) as frozen:
        await frozen.define("gate", 9)
        await frozen.define("soup", 5)
        for number in range(1, 6):
            await frozen.take(f"s{number}", ("gate", 1), ("soup", 1), ttl_ms=number * SECOND)
        await frozen.pass_ms(5 * SECOND)
        frozen.watch_drops()
        await held(frozen, "s5")
        # Two buckets a call, ten in all; the last call finds nothing due and takes the units.
        assert max(frozen.drops) == 2
        assert sum(frozen.drops) == 10
        assert await frozen.counts("soup") == (0, 1, 4)
        assert await frozen.counts("gate") == (0, 1, 8)
        audit(await snapshot(frozen.redis, frozen.keys, TENANT))


@pytest.mark.parametrize("ttl_ms", [SECOND, 10 * SECOND, MINUTE])
async def test_when_the_clock_steps_back_what_was_swept_is_taken_again_beyond_the_sweep(
    frozen: Frozen, ttl_ms: int
) -> None:
    """One pool gave the units away at the end, the other did not yet; afterwards both count them, once."""
    await frozen.define("swept", 1, per_customer=1)
    await frozen.define("waiting", 1, per_customer=1)
    await frozen.take("r1", ("swept", 1), ("waiting", 1), customer="ada")
    await frozen.pass_ms(MINUTE)
    assert await frozen.counts("swept") == (0, 0, 1)
    await frozen.pass_ms(-5 * SECOND)
    assert await frozen.counts("waiting") == (0, 1, 0)
    end_ms = await held(frozen, ttl_ms=ttl_ms)
    assert end_ms == max(T0 + MINUTE + SECOND, frozen.now_ms + ttl_ms)
    for pool in ("swept", "waiting"):
        assert await frozen.counts(pool) == (0, 1, 0)
    await frozen.at(end_ms)
    for pool in ("swept", "waiting"):
        assert await frozen.counts(pool) == (0, 0, 1)


async def test_where_the_clock_stepped_back_and_another_has_the_unit_nothing_is_held(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await frozen.pass_ms(MINUTE)
    await frozen.take("r2", ("soup", 1))
    await frozen.pass_ms(-5 * SECOND)
    await not_held(frozen)
    assert await frozen.counts("soup") == (0, 1, 0)


async def test_the_second_that_it_moves_to_may_have_units_of_others(frozen: Frozen) -> None:
    """And so may the second that it leaves; each bucket keeps what is others'."""
    await frozen.define("soup", 9)
    await frozen.take("r1", ("soup", 1))
    await frozen.take("beside", ("soup", 2))
    await frozen.take("there", ("soup", 3), ttl_ms=2 * MINUTE)
    await held(frozen, ttl_ms=2 * MINUTE)
    seen = await snapshot(frozen.redis, frozen.keys, TENANT)
    assert seen.buckets == {("soup", T0 // SECOND + 60): 2, ("soup", T0 // SECOND + 120): 4}
    await frozen.pass_ms(MINUTE)
    await held(frozen, "beside", ttl_ms=MINUTE)
    seen = await snapshot(frozen.redis, frozen.keys, TENANT)
    assert seen.buckets == {("soup", T0 // SECOND + 120): 6}


async def test_taken_again_before_all_others_it_is_the_next_to_end(frozen: Frozen) -> None:
    await frozen.define("soup", 9)
    await frozen.take("r1", ("soup", 1))
    await frozen.take("long", ("soup", 1), ttl_ms=DAY)
    await frozen.pass_ms(MINUTE)
    end_ms = await held(frozen, ttl_ms=MINUTE)
    assert (await frozen.engine.read_pool(TENANT, "soup")).next_expiry_at_ms == end_ms


@pytest.mark.parametrize("room", [True, False])
async def test_a_record_that_redis_forgot_is_restored_first(frozen: Frozen, room: bool) -> None:
    await frozen.define("soup", 1, per_customer=1)
    made = await frozen.take("r1", ("soup", 1), customer="ada")
    frozen.lookup.reservations[TENANT, "r1"] = made
    await frozen.pass_ms(8 * DAY)
    assert await frozen.engine.remove_reservations(TENANT, [("r1", 1)]) == 1
    if not room:
        await frozen.take("r2", ("soup", 1), customer="bob")
    settled = await frozen.engine.hold(TENANT, "r1", FORTNIGHT, SETTLEMENT)
    assert settled.outcome is (Outcome.HELD if room else Outcome.NOT_HELD)
    assert settled.reservation.alive is room
    assert await frozen.counts("soup") == (0, 1, 0)


async def test_nobody_knows_it(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    with pytest.raises(Unknown):
        await frozen.engine.hold(TENANT, "never", FORTNIGHT, SETTLEMENT)
    assert len(await frozen.entries()) == 1


async def test_a_tenant_that_was_lost_holds_nothing(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    frozen.lookup.tenants.add(TENANT)
    await frozen.redis.hdel(frozen.keys.tenant(TENANT), "!build")
    frozen.audited = False
    with pytest.raises(NotReady):
        await frozen.engine.hold(TENANT, "r1", FORTNIGHT, SETTLEMENT)
    assert len(await frozen.entries()) == 2
