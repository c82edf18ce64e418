"""What becomes of units that are held for a delayed payment: money, none, a repeat, a clock that steps back, a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from engine.domain import LatePayment, Outcome, ReservationStatus
from engine.errors import NotReady, Unknown
from tests.admitted import TENANT
from tests.audit import audit, snapshot
from tests.frozen import DAY, MINUTE, SECOND, T0, Frozen, frozen_engine
from tests.holding import FORTNIGHT, SETTLEMENT, held, not_held

if TYPE_CHECKING:
    from tests.conftest import RedisBackend


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
