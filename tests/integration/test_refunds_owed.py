"""What a settlement makes us owe: late, paid twice, cancelled, withdrawn, or of another amount than was asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from engine.domain import Outcome, RefundCause
from persistence.database import transaction
from persistence.refunding import owe_refunds
from persistence.settling import AppliedSettlement, apply_settlements
from tests.settled_orders import (
    CANCELS,
    PAYS,
    Step,
    apply,
    ledger,
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


@pytest.mark.parametrize(
    ("steps", "owed"),
    [
        ([(PAYS, "p1", Outcome.REFUND_DUE)], [("p1", "late", 1250)]),
        ([(PAYS, "p1", Outcome.COMPLETED), (PAYS, "p2", Outcome.DUPLICATE_PAYMENT)], [("p2", "duplicate", 1250)]),
        (
            [
                (PAYS, "p1", Outcome.COMPLETED),
                (PAYS, "p2", Outcome.DUPLICATE_PAYMENT),
                (PAYS, "p2", Outcome.DUPLICATE_PAYMENT),
                (CANCELS, None, Outcome.CANCELLED),
            ],
            [("p1", "cancelled", 1250), ("p2", "duplicate", 1250)],
        ),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_what_has_to_go_back_is_in_the_ledger_once(
    database: AsyncEngine,
    steps: list[Step],
    owed: list[tuple[str, str, int]],
    at_once: bool,
) -> None:
    await apply(database, *steps, at_once=at_once)
    assert await ledger(database) == owed


async def test_news_of_a_refund_wait_for_their_payment(database: AsyncEngine) -> None:
    """Refunded at the provider before its payment was carried to Postgres: counted in the same transaction."""
    async with transaction(database) as connection:
        await connection.execute(
            text(
                "insert into provider_refunds (provider, ref, payment_ref, amount_minor, currency, status)"
                " values ('stripe', 're_1', 'p1', 250, 'GBP', 'succeeded')"
            )
        )
    await apply(database, (PAYS, "p1", Outcome.COMPLETED), at_once=True)
    (order,) = await rows(database, "select status, refunded_minor from orders")
    assert tuple(order) == ("paid", 250)
    assert await told(database) == ["paid", "refunded"]


async def test_paid_after_what_was_refunded(database: AsyncEngine) -> None:
    """A late payment went back, and a second one found room."""
    await apply(database, (PAYS, "p1", Outcome.REFUND_DUE), at_once=True)
    await rows(database, "update orders set status = 'refunded' returning id")
    async with transaction(database) as connection:
        await store(connection, "s9", PAYS, "p2")
        await apply_settlements(connection, [AppliedSettlement("s9", Outcome.COMPLETED)])
    assert await status_of_order(database) == "paid"
    assert await statuses_of_payments(database) == {"p1": "refund_owed", "p2": "kept"}


async def _mismatched(database: AsyncEngine, status: str) -> None:
    """A payment of 1000 for the order of 1250, as binding leaves it."""
    async with transaction(database) as connection:
        await store(connection, "wrong", PAYS, "p1", "mismatched")
        await connection.execute(
            text(
                "insert into payments (tenant, order_id, provider, ref, amount_minor, currency, status, settlement_id)"
                " values ('t', 'o1', 'stripe', 'p1', 1000, 'GBP', 'flagged', 'wrong')"
            )
        )
        if status == "refund_owed":
            await owe_refunds(connection, {("stripe", "p1"): RefundCause.MISMATCHED})


@pytest.mark.parametrize("status", ["flagged", "refund_owed"])
@pytest.mark.parametrize(
    ("outcome", "becomes", "owed"),
    [
        (Outcome.COMPLETED, "kept", []),
        (Outcome.DUPLICATE_PAYMENT, "refund_owed", [("p1", "duplicate", 1250)]),
        (Outcome.REFUND_DUE, "refund_owed", [("p1", "late", 1250)]),
    ],
)
async def test_the_right_event_after_a_mismatched_one(
    database: AsyncEngine, status: str, outcome: Outcome, becomes: str, owed: list[tuple[str, str, int]]
) -> None:
    """The provider has one payment of this reference, and it is the right one: nothing is owed for the wrong one."""
    await _mismatched(database, status)
    await apply(database, (PAYS, "p1", outcome), at_once=True)
    assert [tuple(row) for row in await rows(database, "select amount_minor, status from payments")] == [
        (1250, becomes)
    ]
    assert await ledger(database) == owed


async def test_a_mismatched_payment_that_is_being_refunded_stays_what_it_is(database: AsyncEngine) -> None:
    await _mismatched(database, "refund_owed")
    await rows(database, "update refunds set called_at = now() returning id")
    await apply(database, (PAYS, "p1", Outcome.COMPLETED), at_once=True)
    assert [tuple(row) for row in await rows(database, "select amount_minor, status from payments")] == [
        (1000, "refund_owed")
    ]
    assert await ledger(database) == [("p1", "mismatched", 1000)]
    assert await status_of_order(database) == "paid"


async def test_what_is_paid_of_a_withdrawn_order_is_taken_back(database: AsyncEngine) -> None:
    """Its seller cancelled it unpaid; without a reservation nothing stands in the way of cancelling it at once."""
    await rows(database, "update orders set status = 'cancelled', withdrawn = true returning id")
    await apply(database, (PAYS, "p1", Outcome.COMPLETED), at_once=True)
    assert await status_of_order(database) == "cancelled"
    assert await statuses_of_payments(database) == {"p1": "refund_owed"}
    assert await ledger(database) == [("p1", "cancelled", 1250)]
    assert await told(database) == ["paid", "cancelled", "refund_owed"]


async def test_a_withdrawn_order_with_a_reservation_leaves_a_settlement_to_apply(database: AsyncEngine) -> None:
    await rows(database, "update orders set status = 'cancelled', withdrawn = true returning id")
    async with transaction(database) as connection:
        await store(connection, "s0", PAYS, "p1")
        await connection.execute(text("update settlements set reservation_id = 'r1', record = 'as it was'"))
        for _ in range(2):
            await apply_settlements(connection, [AppliedSettlement("s0", Outcome.COMPLETED)])
    found = await rows(
        database, "select kind, reservation_id, record, restock, state from settlements where id <> 's0'"
    )
    assert [tuple(row) for row in found] == [("cancel", "r1", "as it was", True, "stored")]
