"""What a settled reservation means for its order: status, payments, attempts, history.

Called by the persister in the transaction that stores the outbox entry naming the settlement, and for an order
without reservation by whoever settles it. A settlement takes effect once: only the change from ``stored`` to
``applied`` has effects, and both are one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from sqlalchemy import Row, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.domain import AttemptStatus, OrderEvent, OrderStatus, Outcome, PaymentStatus, RefundCause, SettlementKind
from persistence.refunding import correct_mismatched, count_news, owe_all_of, owe_refunds
from persistence.tables import Order, Settlement


@dataclass(frozen=True, slots=True)
class AppliedSettlement:
    """A settlement that took effect in Redis (or for want of a reservation, here), and how it came out."""

    settlement_id: str
    outcome: Outcome
    late: bool = False
    over_cap: int = 0


@dataclass(frozen=True, slots=True)
class Effect:
    """What an outcome does to the order; None leaves alone. ``rank`` orders the effects of one batch on one order."""

    rank: int
    status: OrderStatus | None = None
    only_from: tuple[OrderStatus, ...] = ()
    payment: PaymentStatus | None = None
    attempt: AttemptStatus | None = None
    event: OrderEvent | None = None
    owed: RefundCause | None = None
    """Why the payment has to go back, where it has to."""
    yields: bool = False
    """Whether the status stays while a session of the order is on offer: what ended was an earlier one."""


_RELEASED = Effect(1, OrderStatus.CANCELLED, (OrderStatus.PENDING,), attempt=AttemptStatus.EXPIRED, yields=True)

EFFECTS: Mapping[Outcome, Effect] = {
    Outcome.COMPLETED: Effect(
        2,
        OrderStatus.PAID,
        # Refunded without ever having been paid: a payment of another amount came first, and went back.
        (OrderStatus.PENDING, OrderStatus.CANCELLED, OrderStatus.REFUNDED),
        PaymentStatus.KEPT,
        AttemptStatus.PAID,
        OrderEvent.PAID,
    ),
    Outcome.ALREADY_COMPLETED: Effect(0, payment=PaymentStatus.KEPT),
    Outcome.DUPLICATE_PAYMENT: Effect(
        0,
        payment=PaymentStatus.REFUND_OWED,
        attempt=AttemptStatus.PAID,
        event=OrderEvent.DUPLICATE_PAYMENT,
        owed=RefundCause.DUPLICATE,
    ),
    Outcome.REFUND_DUE: Effect(
        1,
        OrderStatus.CANCELLED,
        (OrderStatus.PENDING,),
        PaymentStatus.REFUND_OWED,
        AttemptStatus.PAID,
        OrderEvent.REFUND_DUE,
        RefundCause.LATE,
    ),
    Outcome.HELD: Effect(0, attempt=AttemptStatus.UNPAID, event=OrderEvent.PAYMENT_PENDING),
    Outcome.NOT_HELD: Effect(0, attempt=AttemptStatus.UNPAID, event=OrderEvent.PAYMENT_PENDING),
    Outcome.RELEASED: replace(_RELEASED, event=OrderEvent.RELEASED),
    Outcome.ALREADY_RELEASED: _RELEASED,
    Outcome.CANCELLED: Effect(
        3,
        OrderStatus.CANCELLED,
        (OrderStatus.PENDING, OrderStatus.PAID, OrderStatus.CONFIRMED),
        event=OrderEvent.CANCELLED,
    ),
}
"""The rules, as data. A payment is written only for a settlement that brings one."""

_MARK_APPLIED = text("""
update settlements as s
set state = 'applied', outcome = n.outcome, applied_at = now(), last_error = null
from json_to_recordset(cast(:rows as json))
    as n(id text, outcome text, late boolean, over_cap bigint, position integer)
where s.id = n.id and s.state = 'stored'
returning s.id, s.kind, s.provider, s.tenant, s.reservation_id, s.order_id, s.session_id, s.payment_ref,
    s.amount_minor, s.currency, s.event_type, s.record, n.outcome, n.late, n.over_cap, n.position
""")

_LOCK_ORDERS = text("select from orders where id = any(:orders) order by id for update")

_SET_ORDERS = text("""
update orders as o set status = n.status, late = o.late or n.late
from json_to_recordset(cast(:rows as json))
    as n(order_id text, status text, only_from text[], late boolean, yields boolean)
where o.id = n.order_id and o.status = any(n.only_from) and not (n.yields and exists (
    select from attempts a where a.order_id = o.id and a.status in ('frozen', 'open', 'unpaid')))
""")

_ADD_PAYMENTS = text("""
insert into payments (tenant, order_id, provider, ref, amount_minor, currency, status, settlement_id)
select n.tenant, o.id, n.provider, n.ref, n.amount_minor, n.currency, n.status, n.settlement_id
from json_to_recordset(cast(:rows as json)) as n(tenant text, order_id text, provider text, ref text,
    amount_minor bigint, currency text, status text, settlement_id text)
left join orders as o on o.id = n.order_id
on conflict (provider, ref) do nothing
""")

_SET_ATTEMPTS = text("""
update attempts as a set status = n.status
from json_to_recordset(cast(:rows as json)) as n(provider text, session_id text, status text)
where a.provider = n.provider and a.session_id = n.session_id
    and (n.status = 'paid' or a.status in ('frozen', 'open')
        or (n.status = 'unpaid' and a.status = 'closing') or (n.status = 'expired' and a.status = 'unpaid'))
""")

_ADD_HISTORY = text("""
insert into order_history (order_id, event, details, settlement_id)
select n.order_id, n.event, n.details, n.settlement_id
from json_to_recordset(cast(:rows as json)) as n(order_id text, event text, details jsonb, settlement_id text)
join orders as o on o.id = n.order_id
on conflict (order_id, event, settlement_id) do nothing
""")

_PAID_WITH = text("""
select p.ref from payments p left join settlements s on s.id = p.settlement_id
where p.order_id = :order and s.state is distinct from 'mismatched'
""")

# Cancelled by its seller before it was paid: what was bought after all is taken back like any cancelled order.
_CANCEL_WITHDRAWN = text("""
insert into settlements (id, provider, dedup_key, kind, tenant, reservation_id, order_id, record, restock, state)
select 'withdrawn-' || n.id, 'api', 'withdrawn-' || n.id, 'cancel', n.tenant, n.reservation_id, n.order_id, n.record,
    true, 'stored'
from json_to_recordset(cast(:rows as json))
    as n(id text, tenant text, reservation_id text, order_id text, record text)
join orders o on o.id = n.order_id and o.withdrawn
on conflict (provider, dedup_key) do nothing
returning id, reservation_id
""")


async def apply_settlements(connection: AsyncConnection, applied: Iterable[AppliedSettlement]) -> int:
    """Mark settlements as applied and do to their orders what that means; answers how many took effect now.

    One that was applied before, or that Postgres does not have as ``stored``, changes nothing. Where one stands here
    twice, the first counts: a repeat in Redis changed nothing.
    """
    first: dict[str, AppliedSettlement] = {}
    for one in applied:
        first.setdefault(one.settlement_id, one)
    rows = [
        {"id": a.settlement_id, "outcome": a.outcome, "late": a.late, "over_cap": a.over_cap, "position": position}
        for position, a in enumerate(first.values())
    ]
    if not rows:
        return 0
    marked = (await _execute(connection, _MARK_APPLIED, rows)).all()
    await _affect_orders(connection, sorted(marked, key=lambda row: row.position))
    return len(marked)


async def settle_order(connection: AsyncConnection, settlement_id: str) -> Outcome | None:
    """Settle an order that has no reservation, by its own state; None when the settlement is not ``stored``.

    The order is locked first, so that two payments at one moment come out as one completion and one duplicate.
    """
    settlement = (
        await connection.execute(
            select(Settlement).where(Settlement.id == settlement_id, Settlement.state == "stored").with_for_update()
        )
    ).one_or_none()
    if settlement is None or settlement.order_id is None:
        return None
    status = await connection.scalar(select(Order.status).where(Order.id == settlement.order_id).with_for_update())
    if status is None:
        return None
    paid_with = await connection.scalars(_PAID_WITH, {"order": settlement.order_id})
    outcome = _outcome_of(OrderStatus(status), SettlementKind(settlement.kind), settlement.payment_ref, set(paid_with))
    await apply_settlements(connection, [AppliedSettlement(settlement_id, outcome)])
    return outcome


def _outcome_of(status: OrderStatus, kind: SettlementKind, payment_ref: str | None, paid_with: set[str]) -> Outcome:
    """``paid_with``: every payment that the order was ever paid with, whatever became of it since."""
    paid = status in (OrderStatus.PAID, OrderStatus.CONFIRMED)
    if kind is SettlementKind.COMPLETE:
        if not paid and not paid_with:
            return Outcome.COMPLETED
        # What brings no payment, or one that is known, says nothing new.
        return Outcome.ALREADY_COMPLETED if not payment_ref or payment_ref in paid_with else Outcome.DUPLICATE_PAYMENT
    if kind is SettlementKind.CANCEL:
        otherwise = Outcome.ALREADY_CANCELLED if status is not OrderStatus.PENDING else Outcome.ILLEGAL_TRANSITION
        return Outcome.CANCELLED if paid else otherwise
    if paid:
        return Outcome.ALREADY_COMPLETED
    is_pending = status is OrderStatus.PENDING
    if kind is SettlementKind.HOLD:
        return Outcome.HELD if is_pending else Outcome.NOT_HELD
    return Outcome.RELEASED if is_pending else Outcome.ALREADY_RELEASED


async def _affect_orders(connection: AsyncConnection, marked: Sequence[Row[Any]]) -> None:
    # A checkout that died before it could commit leaves a reservation that names an order which was never placed.
    # Whoever completes it by its id has sold it none the less, so a missing order stands in the way of nothing.
    # Before the payments, as whoever counts news of a refund takes them.
    named = sorted({row.order_id for row in marked if row.order_id is not None})
    if named:
        await connection.execute(_LOCK_ORDERS, {"orders": named})
    orders: dict[str, dict[str, Any]] = {}
    attempts: dict[tuple[str, str], AttemptStatus] = {}
    payments, history, cancelled, completed = [], [], [], []
    owed: dict[tuple[str, str], RefundCause] = {}
    for row in marked:
        effect = EFFECTS.get(Outcome(row.outcome))
        if effect is None or row.order_id is None:
            continue
        if effect.status is not None and effect.rank >= orders.get(row.order_id, {"rank": 0})["rank"]:
            orders[row.order_id] = _order_row(row, effect, orders.get(row.order_id))
        if row.outcome == Outcome.CANCELLED:
            cancelled.append(row.order_id)
        if row.outcome == Outcome.COMPLETED:
            completed.append(_completed_row(row))
        is_money = row.kind == SettlementKind.COMPLETE and row.payment_ref and row.amount_minor is not None
        if effect.payment is not None and is_money:
            payments.append(_payment_row(row, effect.payment))
            if effect.owed is not None:
                owed[row.provider, row.payment_ref] = effect.owed
        if effect.attempt is not None and row.session_id:
            session = (row.provider, row.session_id)
            if attempts.get(session) is not AttemptStatus.PAID:
                attempts[session] = effect.attempt
        if effect.event is not None:
            history.append(_history_row(row, effect.event))
    # Attempts first: what ended by this is not on offer any more.
    await _execute_many(
        connection,
        _SET_ATTEMPTS,
        [
            {"provider": provider, "session_id": session_id, "status": status}
            for (provider, session_id), status in attempts.items()
        ],
    )
    await _execute_many(connection, _SET_ORDERS, list(orders.values()))
    await correct_mismatched(connection, payments)
    await _execute_many(connection, _ADD_PAYMENTS, payments)
    await _execute_many(connection, _ADD_HISTORY, history)
    await owe_refunds(connection, owed)
    await owe_all_of(connection, cancelled, RefundCause.CANCELLED)
    await count_news(connection, [(payment["provider"], payment["ref"]) for payment in payments])
    await _cancel_withdrawn(connection, completed)


async def _cancel_withdrawn(connection: AsyncConnection, completed: list[dict[str, Any]]) -> None:
    """Have what was paid for a withdrawn order taken back, by the job, or here where nothing is reserved."""
    if not completed:
        return
    for row in (await _execute(connection, _CANCEL_WITHDRAWN, completed)).all():
        if row.reservation_id is None:
            await settle_order(connection, row.id)


def _completed_row(row: Row[Any]) -> dict[str, Any]:
    return {
        "id": row.id,
        "tenant": row.tenant,
        "reservation_id": row.reservation_id,
        "order_id": row.order_id,
        "record": row.record,
    }


def _order_row(row: Row[Any], effect: Effect, before: Mapping[str, Any] | None) -> dict[str, Any]:
    # Released and then completed in one batch: the stored status is still the one before both.
    only_from = {*effect.only_from, *(before["only_from"] if before else ())}
    late = (row.late and row.outcome == Outcome.COMPLETED) or (before is not None and before["late"])
    return {
        "order_id": row.order_id,
        "rank": effect.rank,
        "status": effect.status,
        "only_from": sorted(only_from),
        "late": late,
        "yields": effect.yields,
    }


def _payment_row(row: Row[Any], status: PaymentStatus) -> dict[str, Any]:
    return {
        "tenant": row.tenant,
        "order_id": row.order_id,
        "provider": row.provider,
        "ref": row.payment_ref,
        "amount_minor": row.amount_minor,
        "currency": row.currency,
        "status": status,
        "settlement_id": row.id,
    }


def _history_row(row: Row[Any], event: OrderEvent) -> dict[str, Any]:
    details: dict[str, Any] = {"provider": row.provider}
    if row.payment_ref:
        details |= {"payment_ref": row.payment_ref, "amount_minor": row.amount_minor, "currency": row.currency}
    if event is OrderEvent.PAYMENT_PENDING:
        details |= {"session": row.session_id, "held": row.outcome == Outcome.HELD}
    elif row.event_type:
        details["because"] = row.event_type
    if row.late:
        details |= {"late": True, "over_cap": row.over_cap}
    return {"order_id": row.order_id, "event": event, "details": details, "settlement_id": row.id}


async def _execute(connection: AsyncConnection, statement: Any, rows: list[dict[str, Any]]) -> Any:
    return await connection.execute(statement, {"rows": orjson.dumps(rows).decode()})


async def _execute_many(connection: AsyncConnection, statement: Any, rows: list[dict[str, Any]]) -> None:
    if rows:
        await _execute(connection, statement, rows)
