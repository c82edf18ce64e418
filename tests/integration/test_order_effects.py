"""What a settlement does to its order, once, in whatever order and however often it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from engine.domain import OrderStatus, Outcome, PaymentStatus, SettlementKind
from engine.settings import Settings
from persistence.database import create_engine_from, transaction
from persistence.settling import AppliedSettlement, apply_settlements, settle_order

PAYS = SettlementKind.COMPLETE
RELEASES = SettlementKind.RELEASE
CANCELS = SettlementKind.CANCEL


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    """With one order and the two sessions that were opened for it."""
    engine = create_engine_from(Settings(database_url=database_url))
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "insert into orders (id, tenant, customer, email, currency, amount_minor, status, provider,"
                " request_fingerprint, success_url, cancel_url)"
                " values ('o1', 't', 'ann', 'a@b.example', 'GBP', 1250, 'pending', 'stripe', 'f', 's', 'c')"
            )
        )
        for number in (1, 2):
            await connection.execute(
                text(
                    "insert into attempts (order_id, number, provider, idempotency_key, parameters, status, session_id)"
                    " values ('o1', :number, 'stripe', 'o1:' || :key, '{}', 'open', 'cs' || :key)"
                ),
                {"number": number, "key": str(number)},
            )
    yield engine
    await engine.dispose()


async def _store(
    connection: AsyncConnection, identifier: str, kind: SettlementKind, payment: str | None, state: str = "stored"
) -> None:
    await connection.execute(
        text(
            "insert into settlements (id, provider, dedup_key, kind, tenant, order_id, session_id, payment_ref,"
            " amount_minor, currency, state)"
            " values (:id, 'stripe', :id, :kind, 't', 'o1', 'cs1', :payment, :amount, 'GBP', :state)"
        ),
        {"id": identifier, "kind": kind, "payment": payment, "amount": 1250 if payment else None, "state": state},
    )


async def _apply(database: AsyncEngine, *steps: tuple[SettlementKind, str | None, Outcome], at_once: bool) -> None:
    applied = []
    async with transaction(database) as connection:
        for number, (kind, payment, outcome) in enumerate(steps):
            await _store(connection, f"s{number}", kind, payment)
            applied.append(AppliedSettlement(f"s{number}", outcome))
        if at_once:
            assert await apply_settlements(connection, applied) == len(steps)
    if not at_once:
        for one in applied:
            async with transaction(database) as connection:
                assert await apply_settlements(connection, [one]) == 1


async def _rows(database: AsyncEngine, query: str) -> Sequence[Row[Any]]:
    async with transaction(database) as connection:
        return (await connection.execute(text(query))).all()


async def _order(database: AsyncEngine) -> str:
    return str((await _rows(database, "select status from orders"))[0].status)


async def _payments(database: AsyncEngine) -> dict[str, str]:
    return {row.ref: row.status for row in await _rows(database, "select ref, status from payments")}


async def _events(database: AsyncEngine) -> list[str]:
    return [row.event for row in await _rows(database, "select event from order_history order by id")]


STORIES: dict[str, tuple[list[tuple[SettlementKind, str | None, Outcome]], str, dict[str, str], list[str]]] = {
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
        ["released", "refund_due"],
    ),
    "late and not honoured": (
        [(PAYS, "p1", Outcome.REFUND_DUE)],
        "cancelled",
        {"p1": "refund_owed"},
        ["refund_due"],
    ),
    "paid twice": (
        [(PAYS, "p1", Outcome.COMPLETED), (PAYS, "p2", Outcome.DUPLICATE_PAYMENT)],
        "paid",
        {"p1": "kept", "p2": "refund_owed"},
        ["paid", "duplicate_payment"],
    ),
    "paid and cancelled": (
        [(PAYS, "p1", Outcome.COMPLETED), (CANCELS, None, Outcome.CANCELLED)],
        "cancelled",
        {"p1": "refund_owed"},
        ["paid", "cancelled"],
    ),
    "cancelled twice": (
        [
            (PAYS, "p1", Outcome.COMPLETED),
            (CANCELS, None, Outcome.CANCELLED),
            (CANCELS, None, Outcome.ALREADY_CANCELLED),
        ],
        "cancelled",
        {"p1": "refund_owed"},
        ["paid", "cancelled"],
    ),
    "not allowed": ([(CANCELS, None, Outcome.ILLEGAL_TRANSITION)], "pending", {}, []),
}


@pytest.mark.parametrize("at_once", [True, False], ids=["in one batch", "one after the other"])
@pytest.mark.parametrize("story", STORIES)
async def test_what_an_outcome_means(database: AsyncEngine, story: str, at_once: bool) -> None:
    steps, status, payments, events = STORIES[story]
    await _apply(database, *steps, at_once=at_once)
    assert await _order(database) == status
    assert await _payments(database) == payments
    assert await _events(database) == events
    settled = await _rows(database, "select state, outcome, applied_at from settlements order by id")
    assert [(row.state, row.outcome) for row in settled] == [("applied", outcome) for _, _, outcome in steps]
    assert all(row.applied_at for row in settled)


async def test_told_again_changes_nothing(database: AsyncEngine) -> None:
    """The persister may meet an entry again, and the job may apply what was applied: the first word counts."""
    await _apply(database, (PAYS, "p1", Outcome.COMPLETED), at_once=True)
    async with transaction(database) as connection:
        await connection.execute(text("update orders set status = 'confirmed'"))
        for outcome in (Outcome.COMPLETED, Outcome.ALREADY_COMPLETED, Outcome.CANCELLED):
            assert await apply_settlements(connection, [AppliedSettlement("s0", outcome)]) == 0
    assert await _order(database) == "confirmed"
    assert await _events(database) == ["paid"]


@pytest.mark.parametrize("state", ["unmatched", "mismatched"])
async def test_only_what_is_stored_is_applied(database: AsyncEngine, state: str) -> None:
    async with transaction(database) as connection:
        await _store(connection, "s0", PAYS, "p1", state)
        assert await apply_settlements(connection, [AppliedSettlement("s0", Outcome.COMPLETED)]) == 0
        assert await settle_order(connection, "s0") is None
    assert await _order(database) == "pending"
    assert await _payments(database) == {}


async def test_late_is_told(database: AsyncEngine) -> None:
    async with transaction(database) as connection:
        await _store(connection, "s0", PAYS, "p1")
        late = AppliedSettlement("s0", Outcome.COMPLETED, late=True, over_cap=2)
        await apply_settlements(connection, [late])
    (order,) = await _rows(database, "select late from orders")
    (event,) = await _rows(database, "select details from order_history")
    assert order.late
    assert event.details == {"provider": "stripe", "payment_ref": "p1", "late": True, "over_cap": 2}


@pytest.mark.parametrize(
    ("steps", "attempts"),
    [
        ([(PAYS, "p1", Outcome.COMPLETED)], ["paid", "open"]),
        ([(RELEASES, None, Outcome.RELEASED)], ["expired", "open"]),
        ([(RELEASES, None, Outcome.RELEASED), (PAYS, "p1", Outcome.COMPLETED)], ["paid", "open"]),
        ([(PAYS, "p1", Outcome.COMPLETED), (RELEASES, None, Outcome.ALREADY_COMPLETED)], ["paid", "open"]),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_the_attempt_says_what_became_of_its_session(
    database: AsyncEngine, steps: list[tuple[SettlementKind, str | None, Outcome]], attempts: list[str], at_once: bool
) -> None:
    await _apply(database, *steps, at_once=at_once)
    rows = await _rows(database, "select status from attempts order by number")
    assert [row.status for row in rows] == attempts


DECISIONS: list[tuple[OrderStatus, str | None, SettlementKind, str | None, Outcome]] = [
    (OrderStatus.PENDING, None, PAYS, "p1", Outcome.COMPLETED),
    (OrderStatus.PENDING, None, PAYS, None, Outcome.COMPLETED),
    (OrderStatus.PENDING, None, RELEASES, None, Outcome.RELEASED),
    (OrderStatus.PENDING, None, CANCELS, None, Outcome.ILLEGAL_TRANSITION),
    (OrderStatus.CANCELLED, None, PAYS, "p1", Outcome.COMPLETED),
    (OrderStatus.CANCELLED, None, RELEASES, None, Outcome.ALREADY_RELEASED),
    (OrderStatus.CANCELLED, None, CANCELS, None, Outcome.ALREADY_CANCELLED),
    (OrderStatus.PAID, "p1", PAYS, "p1", Outcome.ALREADY_COMPLETED),
    (OrderStatus.PAID, "p1", PAYS, "p2", Outcome.DUPLICATE_PAYMENT),
    (OrderStatus.PAID, "p1", RELEASES, None, Outcome.ALREADY_COMPLETED),
    (OrderStatus.CONFIRMED, "p1", PAYS, "p2", Outcome.DUPLICATE_PAYMENT),
    (OrderStatus.CONFIRMED, "p1", CANCELS, None, Outcome.CANCELLED),
    (OrderStatus.REFUNDED, None, PAYS, "p2", Outcome.DUPLICATE_PAYMENT),
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
        await _store(connection, "s0", kind, payment)
        assert await settle_order(connection, "s0") is outcome
        assert await settle_order(connection, "s0") is None
    (settlement,) = await _rows(database, "select state, outcome from settlements")
    assert (settlement.state, settlement.outcome) == ("applied", outcome)
    payments = await _payments(database)
    if payment and payment != kept:
        expected = PaymentStatus.KEPT if outcome is Outcome.COMPLETED else PaymentStatus.REFUND_OWED
        assert payments[payment] == expected
