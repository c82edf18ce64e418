"""Rules 5 and 6: one way to ``completed``; a second payment; a late one, under each policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.domain import LatePayment, Outcome, ReservationStatus
from engine.errors import IllegalTransition, Unknown
from tests.admitted import TENANT
from tests.frozen import DAY, MINUTE, SECOND, T0, Frozen

HONOUR, IF_FULL, REFUND = LatePayment.HONOUR, LatePayment.REFUND_IF_FULL, LatePayment.REFUND


async def complete(frozen: Frozen, identifier: str = "r1", payment: str = "pay-1") -> tuple[Outcome, bool, int]:
    settled = await frozen.engine.complete(TENANT, identifier, payment)
    return settled.outcome, settled.reservation.late, settled.reservation.over_cap


@pytest.mark.parametrize("left_s", [121, 120, 119, 1])
async def test_the_same_guards_whatever_life_is_left(frozen: Frozen, left_s: int) -> None:
    await frozen.define("soup", 1, per_customer=1)
    await frozen.take("r1", ("soup", 1), ttl_ms=300 * SECOND, customer="ada")
    await frozen.pass_ms((300 - left_s) * SECOND)
    settled = await frozen.engine.complete(TENANT, "r1", "pay-1")
    assert settled.outcome is Outcome.COMPLETED
    made = settled.reservation
    assert (made.status, made.completed_at_ms, made.late) == (ReservationStatus.COMPLETED, frozen.now_ms, False)
    assert (made.payment_ref, made.version, made.ended_at_ms) == ("pay-1", 2, None)
    assert await frozen.counts("soup") == (1, 0, 0)
    assert (await frozen.refused("r2", ("soup", 1), customer="ada")).outcome is Outcome.LIMIT_REACHED
    assert (await frozen.refused("r2", ("soup", 1), customer="bob")).outcome is Outcome.SOLD_OUT
    await frozen.pass_ms(DAY)
    assert await frozen.counts("soup") == (1, 0, 0)


async def test_a_completed_one_is_never_unsold_by_a_release(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await complete(frozen)
    settled = await frozen.engine.release(TENANT, "r1")
    assert settled.outcome is Outcome.ALREADY_COMPLETED
    assert settled.reservation.status is ReservationStatus.COMPLETED
    assert await frozen.counts("soup") == (1, 0, 0)


async def test_the_same_payment_again_and_another_one(frozen: Frozen) -> None:
    await frozen.define("soup", 5)
    await frozen.take("r1", ("soup", 1))
    assert await complete(frozen) == (Outcome.COMPLETED, False, 0)
    entries = len(await frozen.entries())
    for payment, outcome in (
        ("pay-1", Outcome.ALREADY_COMPLETED),
        ("pay-2", Outcome.DUPLICATE_PAYMENT),
        ("pay-2", Outcome.DUPLICATE_PAYMENT),
        ("pay-1", Outcome.ALREADY_COMPLETED),
        ("", Outcome.ALREADY_COMPLETED),
    ):
        settled = await frozen.engine.complete(TENANT, "r1", payment)
        assert (settled.outcome, settled.reservation.payment_ref) == (outcome, "pay-1")
    assert await frozen.counts("soup") == (1, 0, 4)
    assert len(await frozen.entries()) == entries


async def test_paid_fifteen_seconds_after_the_end(frozen: Frozen) -> None:
    """Case B1: ends at 60 s, success event at 75 s."""
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await frozen.pass_ms(75 * SECOND)
    assert await complete(frozen) == (Outcome.COMPLETED, True, 0)
    assert await complete(frozen) == (Outcome.ALREADY_COMPLETED, True, 0)
    assert await frozen.counts("soup") == (1, 0, 0)


@pytest.mark.parametrize("ended", ["expired", "released"])
@pytest.mark.parametrize("full", [False, True], ids=["room", "full"])
@pytest.mark.parametrize("policy", list(LatePayment))
async def test_late_payment_policies(frozen: Frozen, policy: LatePayment, full: bool, ended: str) -> None:
    """Case B4: never both honoured and refunded, never neither; and the answer stays the answer."""
    await frozen.define("soup", 3, late_payment=policy)
    await frozen.take("r1", ("soup", 2), ttl_ms=5 * SECOND)
    if ended == "released":
        await frozen.engine.release(TENANT, "r1")
    else:
        await frozen.pass_ms(DAY)
    await frozen.take("others", ("soup", 2 if full else 1), ttl_ms=DAY)
    # One of the two units that it wants is left when full, so it passes the cap by one.
    honoured = policy is HONOUR or (policy is IF_FULL and not full)
    over = 1 if full and honoured else 0
    expected = Outcome.COMPLETED if honoured else Outcome.REFUND_DUE
    assert await complete(frozen) == (expected, honoured, over)
    held = 2 if full else 1
    assert (await frozen.counts("soup"))[:2] == (2 if honoured else 0, held)
    # Even once there is room again, and under another policy, the same payment gets the same answer.
    await frozen.engine.release(TENANT, "others")
    await frozen.define("soup", 100, late_payment=HONOUR)
    again = Outcome.ALREADY_COMPLETED if honoured else Outcome.REFUND_DUE
    assert (await complete(frozen))[0] is again
    made = await frozen.engine.read(TENANT, "r1")
    assert made.refused_payments == (() if honoured else ("pay-1",))
    assert made.status is (ReservationStatus.COMPLETED if honoured else ReservationStatus.RELEASED)


async def test_another_payment_after_a_refused_one_is_judged_anew(frozen: Frozen) -> None:
    await frozen.define("soup", 1, late_payment=IF_FULL)
    await frozen.take("r1", ("soup", 1))
    await frozen.pass_ms(MINUTE)
    await frozen.take("r2", ("soup", 1))
    assert (await complete(frozen, payment="pay-1"))[0] is Outcome.REFUND_DUE
    assert (await complete(frozen, payment="pay-2"))[0] is Outcome.REFUND_DUE
    await frozen.engine.release(TENANT, "r2")
    assert await complete(frozen, payment="pay-3") == (Outcome.COMPLETED, True, 0)
    assert (await complete(frozen, payment="pay-2"))[0] is Outcome.REFUND_DUE
    made = await frozen.engine.read(TENANT, "r1")
    assert (made.payment_ref, made.refused_payments) == ("pay-3", ("pay-1", "pay-2"))
    assert await frozen.counts("soup") == (1, 0, 0)


@pytest.mark.parametrize(
    ("policies", "outcome"),
    [
        ((HONOUR, HONOUR), Outcome.COMPLETED),
        ((HONOUR, IF_FULL), Outcome.COMPLETED),
        ((IF_FULL, IF_FULL), Outcome.COMPLETED),
        ((HONOUR, REFUND), Outcome.REFUND_DUE),
        ((REFUND, IF_FULL), Outcome.REFUND_DUE),
    ],
)
async def test_the_strictest_of_several_pools_wins(
    frozen: Frozen, policies: tuple[LatePayment, ...], outcome: Outcome
) -> None:
    for number, policy in enumerate(policies):
        await frozen.define(f"p{number}", 1, late_payment=policy)
    await frozen.take("r1", ("p0", 1), ("p1", 1))
    await frozen.pass_ms(MINUTE)
    assert (await complete(frozen))[0] is outcome
    sold = 1 if outcome is Outcome.COMPLETED else 0
    assert [(await frozen.counts(pool))[0] for pool in ("p0", "p1")] == [sold, sold]


@pytest.mark.parametrize("full", ["lenient", "strict"])
async def test_full_in_any_pool_is_full(frozen: Frozen, full: str) -> None:
    await frozen.define("lenient", 1)
    await frozen.define("strict", 1, late_payment=IF_FULL)
    await frozen.take("r1", ("lenient", 1), ("strict", 1))
    await frozen.pass_ms(MINUTE)
    await frozen.take("r2", (full, 1))
    assert (await complete(frozen))[0] is Outcome.REFUND_DUE
    assert [(await frozen.counts(pool))[0] for pool in ("lenient", "strict")] == [0, 0]


async def test_honoured_over_the_cap_and_by_how_many(frozen: Frozen) -> None:
    await frozen.define("soup", 5)
    await frozen.define("gate", None)
    await frozen.take("r1", ("soup", 3), ("gate", 3))
    await frozen.pass_ms(MINUTE)
    await frozen.take("r2", ("soup", 4))
    assert await complete(frozen) == (Outcome.COMPLETED, True, 2)
    assert await frozen.counts("soup") == (3, 4, 0)
    # Those who hold units keep them: their promise was given within the cap.
    assert await complete(frozen, "r2") == (Outcome.COMPLETED, False, 0)
    assert await frozen.counts("soup") == (7, 0, 0)
    assert (await frozen.refused("r3", ("soup", 1))).outcome is Outcome.SOLD_OUT


async def test_a_late_one_does_not_count_against_itself(frozen: Frozen) -> None:
    """Due, not swept, its own units still in the pool's count: there is room all the same."""
    await frozen.define("soup", 2, late_payment=IF_FULL)
    await frozen.take("r1", ("soup", 2))
    await frozen.pass_ms(MINUTE)
    assert await complete(frozen) == (Outcome.COMPLETED, True, 0)


async def test_a_late_one_half_swept_does_not_count_against_itself(frozen: Frozen) -> None:
    """Given away in one pool, still counted in the other, since the clock stepped back before anybody looked there."""
    await frozen.define("swept", 2, late_payment=IF_FULL)
    await frozen.define("waiting", 2, late_payment=IF_FULL)
    await frozen.take("r1", ("swept", 1), ("waiting", 2))
    await frozen.pass_ms(MINUTE)
    assert await frozen.counts("swept") == (0, 0, 2)
    await frozen.pass_ms(-5 * SECOND)
    assert await frozen.counts("waiting") == (0, 2, 0)
    assert await complete(frozen) == (Outcome.COMPLETED, True, 0)
    assert await frozen.counts("swept") == (1, 0, 1)
    assert await frozen.counts("waiting") == (2, 0, 0)


async def test_others_that_are_due_do_not_count_against_a_late_one(frozen: Frozen) -> None:
    await frozen.define("soup", 2, late_payment=IF_FULL)
    await frozen.take("r1", ("soup", 2))
    await frozen.pass_ms(MINUTE)
    await frozen.take("r2", ("soup", 2))
    await frozen.pass_ms(MINUTE)
    assert await complete(frozen) == (Outcome.COMPLETED, True, 0)
    assert await complete(frozen, "r2", "pay-2") == (Outcome.REFUND_DUE, False, 0)
    assert await frozen.counts("soup") == (2, 0, 0)


async def test_a_late_payment_counts_for_the_customer_though_over_the_limit(frozen: Frozen) -> None:
    await frozen.define("soup", 9, per_customer=1)
    await frozen.take("r1", ("soup", 1), customer="ada")
    await frozen.pass_ms(MINUTE)
    await frozen.take("r2", ("soup", 1), customer="ada")
    assert (await complete(frozen, "r1"))[0] is Outcome.COMPLETED
    assert (await complete(frozen, "r2", "pay-2"))[0] is Outcome.COMPLETED
    await frozen.engine.cancel(TENANT, "r2", restock=True)
    assert (await frozen.refused("r3", ("soup", 1), customer="ada")).outcome is Outcome.LIMIT_REACHED


@pytest.mark.parametrize(
    ("payment", "outcome"),
    [("pay-1", Outcome.ALREADY_COMPLETED), ("pay-2", Outcome.REFUND_DUE), ("", None)],
)
async def test_completing_what_was_cancelled(frozen: Frozen, payment: str, outcome: Outcome | None) -> None:
    """Its own payment is known and dealt with by the cancelling; another one has to go back."""
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await complete(frozen)
    await frozen.engine.cancel(TENANT, "r1", restock=True)
    if outcome is None:
        with pytest.raises(IllegalTransition) as caught:
            await frozen.engine.complete(TENANT, "r1", payment)
        assert caught.value.details == {"status": "cancelled"}
    else:
        for _ in range(2):
            assert (await complete(frozen, payment=payment))[0] is outcome
    assert (await frozen.engine.read(TENANT, "r1")).status is ReservationStatus.CANCELLED
    assert await frozen.counts("soup") == (0, 0, 1)


async def test_completing_what_is_not_there(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    with pytest.raises(Unknown) as caught:
        await frozen.engine.complete(TENANT, "nobody", "pay-1")
    assert caught.value.code == "unknown_reservation"
    assert len(await frozen.entries()) == 1


@pytest.mark.parametrize("payment", ["pi|1", "a,b", "a%2Cb", "ref=1.2-3", "Zoë"])
async def test_payment_references_of_any_form_are_told_apart(frozen: Frozen, payment: str) -> None:
    await frozen.define("soup", 1, late_payment=REFUND)
    await frozen.take("r1", ("soup", 1))
    await frozen.take_late("r1", [payment, payment + "x", payment])
    made = await frozen.engine.read(TENANT, "r1")
    assert made.refused_payments == (payment, payment + "x")


async def test_the_cap_lowered_while_selling(frozen: Frozen) -> None:
    await frozen.define("soup", 5)
    for number in range(5):
        await frozen.take(f"r{number}", ("soup", 1))
    await frozen.define("soup", 2)
    # What was promised is kept; nothing more is.
    assert await complete(frozen, "r0") == (Outcome.COMPLETED, False, 0)
    assert (await frozen.refused("r9", ("soup", 1))).outcome is Outcome.ALL_RESERVED
    for number in range(1, 5):
        await frozen.engine.release(TENANT, f"r{number}")
    assert await frozen.counts("soup") == (1, 0, 1)
    await frozen.take("r9", ("soup", 1))
    assert (await frozen.refused("r10", ("soup", 1))).outcome is Outcome.ALL_RESERVED
    await frozen.define("soup", 3)
    await frozen.take("r10", ("soup", 1))


async def test_the_cap_taken_away_and_given_back(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await frozen.define("soup", None)
    await frozen.take("r2", ("soup", 7))
    await frozen.define("soup", 8)
    assert await frozen.counts("soup") == (0, 8, 0)
    refusal: Any = await frozen.refused("r3", ("soup", 1))
    assert (refusal.outcome, refusal.retry_at_ms) == (Outcome.ALL_RESERVED, T0 + MINUTE)


async def test_an_older_definition_changes_nothing(frozen: Frozen) -> None:
    newest = (await frozen.define("soup", 1)).definition
    newest = (await frozen.define("soup", 2)).definition
    for rev in (newest.rev, newest.rev - 1):
        state = await frozen.engine.define_pool(replace(newest, cap=99, rev=rev))
        assert state.definition == newest
    assert await frozen.counts("soup") == (0, 0, 2)
