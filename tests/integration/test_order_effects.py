"""What a settlement does to its order, once, in whatever order and however often it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from engine.domain import OrderStatus, Outcome, PaymentStatus, SettlementKind
from persistence.database import transaction
from persistence.settling import AppliedSettlement, apply_settlements, settle_order
from tests.settled_orders import (
    CANCELS,
    HOLDS,
    PAYS,
    RELEASES,
    Step,
    apply,
    open_order,
    rows,
    status_of_order,
    statuses_of_payments,
    store,
    told,
)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    """With one order and the two sessions that were opened for it."""
    async with open_order(database_url) as engine:
        yield engine


STORIES: dict[str, tuple[list[Step], str, dict[str, str], list[str]]] = {
    "paid": ([(PAYS, "p1", Outcome.COMPLETED)], "paid", {"p1": "kept"}, ["paid"]),
    "paid, told twice": (
        [(PAYS, "p1", Outcome.COMPLETED), (PAYS, "p1", Outcome.ALREADY_COMPLETED)],
        "paid",
        {"p1": "kept"},
        ["paid"],
    ),
    "paid with nothing due": ([(PAYS, None, Outcome.COMPLETED)], "paid", {}, ["paid"]),
    "expired": ([(RELEASES, None, Outcome.RELEASED)], "cancelled", {}, ["released"]),
    "released by other means before": ([(RELEASES, None, Outcome.ALREADY_RELEASED)], "cancelled", {}, []),
    "expired after it was paid": (
        [(PAYS, "p1", Outcome.COMPLETED), (RELEASES, None, Outcome.ALREADY_COMPLETED)],
        "paid",
        {"p1": "kept"},
        ["paid"],
    ),
    "paid after it expired, honoured": (
        [(RELEASES, None, Outcome.RELEASED), (PAYS, "p1", Outcome.COMPLETED)],
        "paid",
        {"p1": "kept"},
        ["released", "paid"],
    ),
    "paid after it expired, not honoured": (
        [(RELEASES, None, Outcome.RELEASED), (PAYS, "p1", Outcome.REFUND_DUE)],
        "cancelled",
        {"p1": "refund_owed"},
        ["released", "refund_due", "refund_owed"],
    ),
    "late and not honoured": (
        [(PAYS, "p1", Outcome.REFUND_DUE)],
        "cancelled",
        {"p1": "refund_owed"},
        ["refund_due", "refund_owed"],
    ),
    "paid twice": (
        [(PAYS, "p1", Outcome.COMPLETED), (PAYS, "p2", Outcome.DUPLICATE_PAYMENT)],
        "paid",
        {"p1": "kept", "p2": "refund_owed"},
        ["paid", "duplicate_payment", "refund_owed"],
    ),
    "paid and cancelled": (
        [(PAYS, "p1", Outcome.COMPLETED), (CANCELS, None, Outcome.CANCELLED)],
        "cancelled",
        {"p1": "refund_owed"},
        ["paid", "cancelled", "refund_owed"],
    ),
    "cancelled twice": (
        [
            (PAYS, "p1", Outcome.COMPLETED),
            (CANCELS, None, Outcome.CANCELLED),
            (CANCELS, None, Outcome.ALREADY_CANCELLED),
        ],
        "cancelled",
        {"p1": "refund_owed"},
        ["paid", "cancelled", "refund_owed"],
    ),
    "money on its way": ([(HOLDS, None, Outcome.HELD)], "pending", {}, ["payment_pending"]),
    "money on its way, then there": (
        [(HOLDS, None, Outcome.HELD), (PAYS, "p1", Outcome.COMPLETED)],
        "paid",
        {"p1": "kept"},
        ["payment_pending", "paid"],
    ),
    "money on its way, which never came": (
        [(HOLDS, None, Outcome.NOT_HELD), (RELEASES, None, Outcome.RELEASED)],
        "cancelled",
        {},
        ["payment_pending", "released"],
    ),
    "money on its way, told late": (
        [(PAYS, "p1", Outcome.COMPLETED), (HOLDS, None, Outcome.ALREADY_COMPLETED)],
        "paid",
        {"p1": "kept"},
        ["paid"],
    ),
    "not allowed": ([(CANCELS, None, Outcome.ILLEGAL_TRANSITION)], "pending", {}, []),
}


@pytest.mark.parametrize("at_once", [True, False], ids=["in one batch", "one after the other"])
@pytest.mark.parametrize("story", STORIES)
async def test_what_an_outcome_means(database: AsyncEngine, story: str, at_once: bool) -> None:
    steps, status, payments, events = STORIES[story]
    await apply(database, *steps, at_once=at_once)
    assert await status_of_order(database) == status
    assert await statuses_of_payments(database) == payments
    assert await told(database) == events
    settled = await rows(database, "select state, outcome, applied_at from settlements order by id")
    assert [(row.state, row.outcome) for row in settled] == [("applied", outcome) for _, _, outcome in steps]
    assert all(row.applied_at for row in settled)


async def test_told_again_changes_nothing(database: AsyncEngine) -> None:
    """The persister may meet an entry again, and the job may apply what was applied: the first word counts."""
    await apply(database, (PAYS, "p1", Outcome.COMPLETED), at_once=True)
    async with transaction(database) as connection:
        await connection.execute(text("update orders set status = 'confirmed'"))
        for outcome in (Outcome.COMPLETED, Outcome.ALREADY_COMPLETED, Outcome.CANCELLED):
            assert await apply_settlements(connection, [AppliedSettlement("s0", outcome)]) == 0
    assert await status_of_order(database) == "confirmed"
    assert await told(database) == ["paid"]


@pytest.mark.parametrize("state", ["unmatched", "mismatched"])
async def test_only_what_is_stored_is_applied(database: AsyncEngine, state: str) -> None:
    async with transaction(database) as connection:
        await store(connection, "s0", PAYS, "p1", state)
        assert await apply_settlements(connection, [AppliedSettlement("s0", Outcome.COMPLETED)]) == 0
        assert await settle_order(connection, "s0") is None
    assert await status_of_order(database) == "pending"
    assert await statuses_of_payments(database) == {}


async def test_late_is_told(database: AsyncEngine) -> None:
    async with transaction(database) as connection:
        await store(connection, "s0", PAYS, "p1")
        late = AppliedSettlement("s0", Outcome.COMPLETED, late=True, over_cap=2)
        await apply_settlements(connection, [late])
    (order,) = await rows(database, "select late from orders")
    (event,) = await rows(database, "select details from order_history")
    assert order.late
    assert event.details == {
        "provider": "stripe",
        "payment_ref": "p1",
        "amount_minor": 1250,
        "currency": "GBP",
        "late": True,
        "over_cap": 2,
    }


async def test_what_ended_before_cancels_nothing_that_is_on_offer(database: AsyncEngine) -> None:
    """The news of an earlier session were stored and applied late: another is on offer by now."""
    async with transaction(database) as connection:
        await connection.execute(text("update attempts set status = 'open' where number = 2"))
    await apply(database, (RELEASES, None, Outcome.ALREADY_RELEASED), at_once=True)
    assert await status_of_order(database) == "pending"


async def test_news_that_money_is_on_its_way_are_no_payment(database: AsyncEngine) -> None:
    """Completed by other means before: the money has to go back when it comes, and is not there yet."""
    steps = [(HOLDS, "p1", Outcome.ALREADY_COMPLETED), (PAYS, "p1", Outcome.DUPLICATE_PAYMENT)]
    await apply(database, *steps[:1], at_once=True)
    assert await statuses_of_payments(database) == {}


@pytest.mark.parametrize("ref", ["p1", "p2"])
async def test_an_order_without_reservation_that_was_cancelled_is_not_paid_again(
    database: AsyncEngine, ref: str
) -> None:
    """The same payment told again, or another: it was paid once, and taken back."""
    for number, (kind, payment) in enumerate([(PAYS, "p1"), (CANCELS, None), (PAYS, ref)]):
        async with transaction(database) as connection:
            await store(connection, f"s{number}", kind, payment)
            await settle_order(connection, f"s{number}")
    assert await status_of_order(database) == "cancelled"
    assert await statuses_of_payments(database) == dict.fromkeys({"p1", ref}, "refund_owed")


@pytest.mark.parametrize(
    ("steps", "attempts"),
    [
        ([(PAYS, "p1", Outcome.COMPLETED)], ["paid", "failed"]),
        ([(RELEASES, None, Outcome.RELEASED)], ["expired", "failed"]),
        ([(RELEASES, None, Outcome.RELEASED), (PAYS, "p1", Outcome.COMPLETED)], ["paid", "failed"]),
        ([(PAYS, "p1", Outcome.COMPLETED), (RELEASES, None, Outcome.ALREADY_COMPLETED)], ["paid", "failed"]),
        ([(HOLDS, None, Outcome.HELD)], ["unpaid", "failed"]),
        ([(HOLDS, None, Outcome.NOT_HELD), (PAYS, "p1", Outcome.REFUND_DUE)], ["paid", "failed"]),
        ([(HOLDS, None, Outcome.HELD), (RELEASES, None, Outcome.RELEASED)], ["expired", "failed"]),
        ([(PAYS, "p1", Outcome.COMPLETED), (HOLDS, None, Outcome.ALREADY_COMPLETED)], ["paid", "failed"]),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_the_attempt_says_what_became_of_its_session(
    database: AsyncEngine, steps: list[Step], attempts: list[str], at_once: bool
) -> None:
    await apply(database, *steps, at_once=at_once)
    found = await rows(database, "select status from attempts order by number")
    assert [row.status for row in found] == attempts


DECISIONS: list[tuple[OrderStatus, str | None, SettlementKind, str | None, Outcome]] = [
    (OrderStatus.PENDING, None, PAYS, "p1", Outcome.COMPLETED),
    (OrderStatus.PENDING, None, PAYS, None, Outcome.COMPLETED),
    (OrderStatus.PENDING, None, RELEASES, None, Outcome.RELEASED),
    (OrderStatus.PENDING, None, CANCELS, None, Outcome.ILLEGAL_TRANSITION),
    (OrderStatus.PENDING, None, HOLDS, None, Outcome.HELD),
    (OrderStatus.CANCELLED, None, HOLDS, None, Outcome.NOT_HELD),
    (OrderStatus.PAID, "p1", HOLDS, None, Outcome.ALREADY_COMPLETED),
    (OrderStatus.CANCELLED, None, PAYS, "p1", Outcome.COMPLETED),
    (OrderStatus.CANCELLED, None, RELEASES, None, Outcome.ALREADY_RELEASED),
    (OrderStatus.CANCELLED, None, CANCELS, None, Outcome.ALREADY_CANCELLED),
    (OrderStatus.PAID, "p1", PAYS, "p1", Outcome.ALREADY_COMPLETED),
    (OrderStatus.PAID, "p1", PAYS, "p2", Outcome.DUPLICATE_PAYMENT),
    (OrderStatus.PAID, "p1", RELEASES, None, Outcome.ALREADY_COMPLETED),
    (OrderStatus.CONFIRMED, "p1", PAYS, "p2", Outcome.DUPLICATE_PAYMENT),
    (OrderStatus.CONFIRMED, "p1", CANCELS, None, Outcome.CANCELLED),
    # What went back was of another amount, and paid for nothing.
    (OrderStatus.REFUNDED, None, PAYS, "p2", Outcome.COMPLETED),
    (OrderStatus.REFUNDED, None, RELEASES, None, Outcome.ALREADY_RELEASED),
]


@pytest.mark.parametrize("decision", DECISIONS, ids=str)
async def test_an_order_without_reservation_decides_by_its_state(
    database: AsyncEngine, decision: tuple[OrderStatus, str | None, SettlementKind, str | None, Outcome]
) -> None:
    status, kept, kind, payment, outcome = decision
    async with transaction(database) as connection:
        await connection.execute(text("update orders set status = :status"), {"status": status})
        if kept:
            await connection.execute(
                text(
                    "insert into payments (tenant, order_id, provider, ref, amount_minor, currency, status)"
                    " values ('t', 'o1', 'stripe', :ref, 1250, 'GBP', 'kept')"
                ),
                {"ref": kept},
            )
        await store(connection, "s0", kind, payment)
        assert await settle_order(connection, "s0") is outcome
        assert await settle_order(connection, "s0") is None
    (settlement,) = await rows(database, "select state, outcome from settlements")
    assert (settlement.state, settlement.outcome) == ("applied", outcome)
    payments = await statuses_of_payments(database)
    if payment and payment != kept:
        expected = PaymentStatus.KEPT if outcome is Outcome.COMPLETED else PaymentStatus.REFUND_OWED
        assert payments[payment] == expected
