"""Binding an event to the order that it is about, whose row is locked meanwhile.

Locks are taken in the order in which the persister takes them, so settlements are not locked here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.domain import (
    AttemptStatus,
    MismatchPolicy,
    OrderEvent,
    Outcome,
    PaymentStatus,
    Provider,
    RefundCause,
    SettlementKind,
    SettlementState,
)
from engine.orders import StoredSettlement
from engine.payments.port import ProviderEvent
from persistence.refunding import count_news, owe_refunds
from persistence.settling import settle_order
from persistence.tables import OrderHistory, Payment, Settlement

_BY_SESSION = "a.provider = :provider and a.session_id = :session"
_BY_MARK = """a.provider = :provider and a.order_id = :order
    and o.tenant = coalesce(cast(:tenant as text), o.tenant)
    and a.number = coalesce(cast(:attempt as integer), (select max(number) from attempts where order_id = :order))"""
_RESOLVE = """
select a.order_id, a.number, a.session_id, a.status, a.parameters,
    o.tenant, o.reservation_id, o.currency,
    a.number = (select max(number) from attempts where order_id = a.order_id) as is_newest
from attempts a join orders o on o.id = a.order_id
where """


_MONEY = (SettlementKind.COMPLETE, SettlementKind.HOLD)
_ATTEMPT_AFTER = {
    SettlementKind.COMPLETE: AttemptStatus.PAID,
    SettlementKind.HOLD: AttemptStatus.UNPAID,
    SettlementKind.RELEASE: AttemptStatus.EXPIRED,
}


@dataclass(frozen=True, slots=True)
class Target:
    """The attempt that an event is about, and its order."""

    order_id: str
    tenant: str
    number: int
    status: AttemptStatus
    is_newest: bool
    session_id: str | None
    present_reservation: str | None
    attempt_reservation: str | None
    amount_minor: int
    currency: str

    def reservation_for(self, kind: SettlementKind) -> str | None:
        """Money, here or on its way, counts for what the order holds now; an ended session gives back only what it was
        opened for, and nothing where the next attempt goes on with that."""
        if kind in _MONEY:
            return self.present_reservation
        return None if self.gave_way else self.attempt_reservation

    @property
    def gave_way(self) -> bool:
        """Whether another attempt goes on, or is about to, with the reservation of this one."""
        if self.attempt_reservation is None:
            return False
        if self.status is AttemptStatus.CLOSING:
            return True
        return not self.is_newest and self.attempt_reservation == self.present_reservation


async def match_session(
    connection: AsyncConnection,
    provider: Provider,
    session_id: str,
    policy: MismatchPolicy,
) -> int:
    """Bind the unmatched events of a session that has become known; answers how many there were."""
    target = await _lock_target(connection, _BY_SESSION, {"provider": provider.value, "session": session_id})
    if target is None:
        return 0
    statement = (
        select(*Settlement.__table__.c)
        .where(
            Settlement.provider == provider,
            Settlement.session_id == session_id,
            Settlement.state == SettlementState.UNMATCHED,
        )
        .order_by(Settlement.received_at, Settlement.id)
    )
    unmatched = (await connection.execute(statement)).all()
    for row in unmatched:
        await bind(connection, row, target, policy)
    return len(unmatched)


async def resolve(
    connection: AsyncConnection, provider: Provider, event: ProviderEvent, *, lock: bool = False
) -> Target | None:
    """The attempt by its session, or by our mark where the process died before it could note the session."""
    find = _lock_target if lock else _find_target
    target = await find(connection, _BY_SESSION, {"provider": provider.value, "session": event.session_id})
    if target is not None or event.marked_order_id is None:
        return target
    return await find(
        connection,
        _BY_MARK,
        {
            "provider": provider.value,
            "order": event.marked_order_id,
            "tenant": event.marked_tenant,
            "attempt": event.marked_attempt,
        },
    )


async def _find_target(connection: AsyncConnection, where: str, values: dict[str, Any]) -> Target | None:
    row = (await connection.execute(text(_RESOLVE + where), values)).one_or_none()
    if row is None:
        return None
    return Target(
        order_id=row.order_id,
        tenant=row.tenant,
        number=row.number,
        status=AttemptStatus(row.status),
        is_newest=row.is_newest,
        session_id=row.session_id,
        present_reservation=row.reservation_id,
        attempt_reservation=row.parameters["reservation_id"],
        amount_minor=row.parameters["amount_minor"],
        currency=row.parameters["currency"],
    )


async def _lock_target(connection: AsyncConnection, where: str, values: dict[str, Any]) -> Target | None:
    """As :func:`_find_target`, with the order locked and everything about it read behind the lock.

    The lock is what keeps two from binding one event. Settlements are not locked: the persister takes them before
    their orders.
    """
    target = await _find_target(connection, where, values)
    if target is None:
        return None
    await connection.execute(text("select from orders where id = :id for update"), {"id": target.order_id})
    return await _find_target(connection, where, values)


async def bind(
    connection: AsyncConnection,
    stored: Row[Any],
    target: Target,
    policy: MismatchPolicy,
) -> StoredSettlement | None:
    """Bind a stored event to its order, whose row is locked; None when nothing is left to apply in Redis."""
    kind = SettlementKind(stored.kind)
    differs = (stored.amount_minor, (stored.currency or "").upper()) != (target.amount_minor, target.currency.upper())
    if kind in _MONEY and differs:
        await _note_session(connection, stored, target, SettlementKind.RELEASE)
        await _end_attempt(connection, stored, target)
        await _set_aside(connection, stored, target, policy)
        return None
    await _note_session(connection, stored, target, kind)
    is_stray = target.session_id not in (None, stored.session_id)
    # An ended session cancels its order only while no later attempt is on offer.
    concerns_order = kind in _MONEY or (target.is_newest and not is_stray and not target.gave_way)
    reservation = target.reservation_for(kind)
    bound: dict[str, Any] = {
        "state": SettlementState.STORED.value,
        "tenant": target.tenant,
        "reservation_id": reservation,
        "order_id": target.order_id if concerns_order else None,
    }
    if kind is SettlementKind.RELEASE and (is_stray or (reservation is None and not concerns_order)):
        bound |= {
            "state": SettlementState.APPLIED.value,
            "outcome": Outcome.ALREADY_RELEASED.value,
            "applied_at": func.now(),
        }
    row = (
        await connection.execute(
            update(Settlement).where(Settlement.id == stored.id).values(bound).returning(*Settlement.__table__.c)
        )
    ).one()
    if row.state == SettlementState.STORED and reservation is None:
        await settle_order(connection, row.id)
        return None
    return waiting(row)


async def _note_session(connection: AsyncConnection, stored: Row[Any], target: Target, kind: SettlementKind) -> None:
    """What the event says of the attempt: its session, if we had not noted it, and how it ended."""
    if target.session_id not in (None, stored.session_id):
        return
    await connection.execute(
        text(
            "update attempts set session_id = :session, status = case"
            " when cast(:kind as text) = 'complete' then :status"
            " when :kind = 'hold' and status in ('frozen', 'open', 'closing') then :status"
            " when :kind = 'release' and (status in ('frozen', 'open', 'unpaid')"
            "  or (status = 'closing' and parameters ->> 'reservation_id' is null)) then :status"
            " else status end where order_id = :order and number = :number"
        ),
        {
            "session": stored.session_id,
            "kind": kind.value,
            "status": _ATTEMPT_AFTER[kind].value,
            "order": target.order_id,
            "number": target.number,
        },
    )


async def _end_attempt(connection: AsyncConnection, stored: Row[Any], target: Target) -> None:
    """Whatever was paid in this session, nothing more can be: it is over, also for who was about to close it."""
    if target.session_id in (None, stored.session_id):
        await connection.execute(
            text(
                "update attempts set status = 'expired' where order_id = :order and number = :number"
                " and status in ('frozen', 'open', 'unpaid', 'closing')"
            ),
            {"order": target.order_id, "number": target.number},
        )


async def _set_aside(connection: AsyncConnection, stored: Row[Any], target: Target, policy: MismatchPolicy) -> None:
    """Another amount or currency than was asked for: recorded, owed back or flagged, and never a completion."""
    await connection.execute(
        update(Settlement)
        .where(Settlement.id == stored.id)
        .values(state=SettlementState.MISMATCHED.value, tenant=target.tenant, order_id=target.order_id)
    )
    is_payment = stored.kind == SettlementKind.COMPLETE and stored.payment_ref and stored.amount_minor is not None
    if is_payment:
        await connection.execute(
            insert(Payment)
            .values(
                tenant=target.tenant,
                order_id=target.order_id,
                provider=stored.provider,
                ref=stored.payment_ref,
                amount_minor=stored.amount_minor,
                currency=stored.currency or "",
                status=PaymentStatus.FLAGGED.value,
                settlement_id=stored.id,
            )
            .on_conflict_do_nothing(index_elements=["provider", "ref"])
        )
    details = {
        "expected": {"amount_minor": target.amount_minor, "currency": target.currency},
        "received": {"amount_minor": stored.amount_minor, "currency": stored.currency},
    }
    statement = insert(OrderHistory).values(
        order_id=target.order_id, event=OrderEvent.AMOUNT_MISMATCH.value, details=details, settlement_id=stored.id
    )
    await connection.execute(statement.on_conflict_do_nothing(index_elements=["order_id", "event", "settlement_id"]))
    if is_payment:
        payment = (stored.provider, stored.payment_ref)
        if policy is MismatchPolicy.REFUND:
            await owe_refunds(connection, {payment: RefundCause.MISMATCHED})
        await count_news(connection, [payment])


def waiting(row: Row[Any]) -> StoredSettlement | None:
    return stored_settlement(row) if row.state == SettlementState.STORED and row.reservation_id else None


def stored_settlement(row: Row[Any]) -> StoredSettlement:
    return StoredSettlement(
        id=row.id,
        kind=SettlementKind(row.kind),
        state=SettlementState(row.state),
        tenant=row.tenant,
        reservation_id=row.reservation_id or "",
        payment_ref=row.payment_ref or "",
        restock=row.restock,
        record=row.record or "",
    )
