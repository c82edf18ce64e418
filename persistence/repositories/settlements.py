"""The inbox of settlements: events and orders to settle, stored once each and bound to the order they are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from sqlalchemy import Row, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from engine.domain import (
    OrderEvent,
    Outcome,
    PaymentStatus,
    Provider,
    Reservation,
    SettlementKind,
    SettlementState,
)
from engine.errors import StorageUnavailable
from engine.orders import StoredSettlement
from engine.payments.port import EventKind, ProviderEvent
from persistence.database import transaction
from persistence.settling import settle_order
from persistence.tables import Attempt, OrderHistory, Payment, Settlement

_KINDS = {EventKind.PAID: SettlementKind.COMPLETE, EventKind.EXPIRED: SettlementKind.RELEASE}

_BY_SESSION = "a.provider = :provider and a.session_id = :session"
_BY_MARK = """a.provider = :provider and a.order_id = :order
    and a.number = coalesce(:attempt, (select max(number) from attempts where order_id = :order))"""
_RESOLVE = """
select a.order_id, a.number, a.session_id, a.status, a.parameters,
    o.tenant, o.reservation_id, o.currency,
    a.number = (select max(number) from attempts where order_id = a.order_id) as is_newest
from attempts a join orders o on o.id = a.order_id
where """


@dataclass(frozen=True, slots=True)
class _Target:
    """The attempt that an event is about, and its order."""

    order_id: str
    tenant: str
    number: int
    is_newest: bool
    session_id: str | None
    present_reservation: str | None
    attempt_reservation: str | None
    amount_minor: int
    currency: str

    def reservation_for(self, kind: SettlementKind) -> str | None:
        """Money counts for what the order holds now; an ended session gives back only what it was opened for."""
        return self.present_reservation if kind is SettlementKind.COMPLETE else self.attempt_reservation


class PostgresSettlements:
    """Implements :class:`engine.ports.SettlementStore`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def find_reservation_of(self, provider: Provider, event: ProviderEvent) -> tuple[str, str] | None:
        """Tenant and reservation that the event would settle."""
        kind = _KINDS.get(event.kind)
        if kind is None:
            return None
        async with transaction(self._engine) as connection:
            target = await _resolve(connection, provider, event)
        reservation = None if target is None else target.reservation_for(kind)
        return None if target is None or reservation is None else (target.tenant, reservation)

    async def store_event(self, provider: Provider, event: ProviderEvent, record: str) -> StoredSettlement | None:
        """Store an event's settlement once and bind it; None when there is nothing to apply in Redis.

        Raises ``StorageUnavailable`` for our mark on an order that isn't visible yet.
        """
        async with transaction(self._engine) as connection:
            target = await _resolve(connection, provider, event, lock=True)
            if target is None and event.marked_order_id is not None:
                raise StorageUnavailable("The event names an order of ours that is not visible yet.")
            kind = _KINDS.get(event.kind)
            if kind is None:
                if target is not None:
                    await _note_pending(connection, target, event)
                return None
            statement = insert(Settlement).values(
                id=uuid4().hex,
                provider=provider.value,
                dedup_key=event.dedup_key,
                kind=kind.value,
                session_id=event.session_id,
                payment_ref=event.payment_ref,
                amount_minor=event.amount_minor,
                currency=event.currency,
                event_type=event.type,
                record=record,
                state=SettlementState.UNMATCHED.value,
            )
            # A twin that is being stored at this moment is waited for, so the loser finds its row below.
            await connection.execute(statement.on_conflict_do_nothing(index_elements=["provider", "dedup_key"]))
            stored = (
                await connection.execute(
                    select(*Settlement.__table__.c).where(
                        Settlement.provider == provider, Settlement.dedup_key == event.dedup_key
                    )
                )
            ).one()
            if stored.state == SettlementState.UNMATCHED and target is not None:
                return await _bind(connection, stored, target)
            return _waiting(stored)

    async def store_order(
        self, kind: SettlementKind, reservation: Reservation, payment_ref: str, restock: bool, record: str
    ) -> StoredSettlement:
        """Store what an API caller orders."""
        async with transaction(self._engine) as connection:
            return await add_settlement(
                connection,
                Provider.API,
                uuid4().hex,
                kind,
                reservation,
                payment_ref=payment_ref,
                restock=restock,
                record=record,
            )

    async def match(self, limit: int) -> int:
        """Bind events that were stored before their session was known."""
        statement = (
            select(Settlement.provider, Settlement.session_id)
            .join(Attempt, (Attempt.provider == Settlement.provider) & (Attempt.session_id == Settlement.session_id))
            .where(Settlement.state == SettlementState.UNMATCHED)
            .distinct()
            .limit(limit)
        )
        async with transaction(self._engine) as connection:
            found = (await connection.execute(statement)).all()
        matched = 0
        for row in found:
            async with transaction(self._engine) as connection:
                matched += await match_session(connection, Provider(row.provider), row.session_id)
        return matched

    async def load_waiting(self, limit: int) -> Sequence[StoredSettlement]:
        """Stored and not applied, those tried least first; what was stored this second is left to who stored it."""
        statement = (
            select(*Settlement.__table__.c)
            .where(
                Settlement.state == SettlementState.STORED,
                Settlement.received_at < func.now() - text("interval '1 second'"),
            )
            .order_by(Settlement.tries, Settlement.received_at, Settlement.id)
            .limit(limit)
        )
        async with transaction(self._engine) as connection:
            return [_stored(row) for row in await connection.execute(statement)]

    async def load_waiting_of(self, order_id: str) -> Sequence[StoredSettlement]:
        """Stored and not applied, of one order."""
        statement = select(*Settlement.__table__.c).where(
            Settlement.order_id == order_id, Settlement.state == SettlementState.STORED
        )
        async with transaction(self._engine) as connection:
            return [_stored(row) for row in await connection.execute(statement)]

    async def note_tried(self, settlement_ids: Sequence[str]) -> None:
        """Count a try of each."""
        if not settlement_ids:
            return
        async with transaction(self._engine) as connection:
            await connection.execute(
                update(Settlement).where(Settlement.id.in_(settlement_ids)).values(tries=Settlement.tries + 1)
            )

    async def note_failure(self, settlement_id: str, error: str) -> None:
        """Keep the reason of a failure beside the settlement."""
        async with transaction(self._engine) as connection:
            await connection.execute(
                update(Settlement).where(Settlement.id == settlement_id).values(last_error=error[:500])
            )


async def add_settlement(
    connection: AsyncConnection,
    provider: Provider,
    dedup_key: str,
    kind: SettlementKind,
    reservation: Reservation,
    *,
    payment_ref: str = "",
    restock: bool = False,
    record: str = "",
) -> StoredSettlement:
    """Store a settlement of our own making for a reservation."""
    statement = (
        insert(Settlement)
        .values(
            id=uuid4().hex,
            provider=provider.value,
            dedup_key=dedup_key,
            kind=kind.value,
            tenant=reservation.tenant,
            reservation_id=reservation.id,
            order_id=reservation.order_id or None,
            payment_ref=payment_ref or None,
            record=record,
            restock=restock,
            state=SettlementState.STORED.value,
        )
        .returning(*Settlement.__table__.c)
    )
    return _stored((await connection.execute(statement)).one())


async def match_session(connection: AsyncConnection, provider: Provider, session_id: str) -> int:
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
        await _bind(connection, row, target)
    return len(unmatched)


async def _resolve(
    connection: AsyncConnection, provider: Provider, event: ProviderEvent, *, lock: bool = False
) -> _Target | None:
    """The attempt by its session, or by our mark where the process died before it could note the session."""
    find = _lock_target if lock else _find_target
    target = await find(connection, _BY_SESSION, {"provider": provider.value, "session": event.session_id})
    if target is not None or event.marked_order_id is None:
        return target
    return await find(
        connection,
        _BY_MARK,
        {"provider": provider.value, "order": event.marked_order_id, "attempt": event.marked_attempt},
    )


async def _find_target(connection: AsyncConnection, where: str, values: dict[str, Any]) -> _Target | None:
    if "attempt" in values:
        where = where.replace(":attempt", "cast(:attempt as integer)")
    row = (await connection.execute(text(_RESOLVE + where), values)).one_or_none()
    if row is None:
        return None
    return _Target(
        order_id=row.order_id,
        tenant=row.tenant,
        number=row.number,
        is_newest=row.is_newest,
        session_id=row.session_id,
        present_reservation=row.reservation_id,
        attempt_reservation=row.parameters["reservation_id"],
        amount_minor=row.parameters["amount_minor"],
        currency=row.parameters["currency"],
    )


async def _lock_target(connection: AsyncConnection, where: str, values: dict[str, Any]) -> _Target | None:
    """As :func:`_find_target`, with the order locked and everything about it read behind the lock.

    The lock is what keeps two from binding one event. Settlements are not locked: the persister takes them before
    their orders.
    """
    target = await _find_target(connection, where, values)
    if target is None:
        return None
    await connection.execute(text("select from orders where id = :id for update"), {"id": target.order_id})
    return await _find_target(connection, where, values)


async def _bind(connection: AsyncConnection, stored: Row[Any], target: _Target) -> StoredSettlement | None:
    """Bind a stored event to its order, whose row is locked; None when nothing is left to apply in Redis."""
    kind = SettlementKind(stored.kind)
    await _note_session(connection, stored, target, kind)
    differs = (stored.amount_minor, (stored.currency or "").upper()) != (target.amount_minor, target.currency.upper())
    if kind is SettlementKind.COMPLETE and differs:
        await _set_aside(connection, stored, target)
        return None
    is_stray = target.session_id not in (None, stored.session_id)
    # An ended session cancels its order only while no later attempt is on offer.
    concerns_order = kind is SettlementKind.COMPLETE or (target.is_newest and not is_stray)
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
    return _waiting(row)


async def _note_session(connection: AsyncConnection, stored: Row[Any], target: _Target, kind: SettlementKind) -> None:
    """What the event says of the attempt: its session, if we had not noted it, and how it ended."""
    if target.session_id not in (None, stored.session_id):
        return
    paid = kind is SettlementKind.COMPLETE
    await connection.execute(
        text(
            "update attempts set session_id = :session, status = case when :paid or status in ('frozen', 'open')"
            " then :status else status end where order_id = :order and number = :number"
        ),
        {
            "session": stored.session_id,
            "paid": paid,
            "status": "paid" if paid else "expired",
            "order": target.order_id,
            "number": target.number,
        },
    )


async def _set_aside(connection: AsyncConnection, stored: Row[Any], target: _Target) -> None:
    """Another amount or currency than was asked for: recorded, owed back, and never a completion."""
    await connection.execute(
        update(Settlement)
        .where(Settlement.id == stored.id)
        .values(state=SettlementState.MISMATCHED.value, tenant=target.tenant, order_id=target.order_id)
    )
    if stored.payment_ref and stored.amount_minor is not None:
        await connection.execute(
            insert(Payment)
            .values(
                tenant=target.tenant,
                order_id=target.order_id,
                provider=stored.provider,
                ref=stored.payment_ref,
                amount_minor=stored.amount_minor,
                currency=stored.currency or "",
                status=PaymentStatus.REFUND_OWED.value,
                settlement_id=stored.id,
            )
            .on_conflict_do_nothing(index_elements=["provider", "ref"])
        )
    details = {
        "expected": {"amount_minor": target.amount_minor, "currency": target.currency},
        "received": {"amount_minor": stored.amount_minor, "currency": stored.currency},
    }
    await _add_event(connection, target, OrderEvent.AMOUNT_MISMATCH, details, stored.id)


async def _note_pending(connection: AsyncConnection, target: _Target, event: ProviderEvent) -> None:
    """A delayed method: complete at the provider, and no money yet."""
    details = {"event": event.dedup_key, "session": event.session_id}
    await _add_event(connection, target, OrderEvent.PAYMENT_PENDING, details, event.dedup_key)


async def _add_event(
    connection: AsyncConnection, target: _Target, event: OrderEvent, details: dict[str, Any], once: str
) -> None:
    statement = insert(OrderHistory).values(
        order_id=target.order_id, event=event.value, details=details, settlement_id=once
    )
    await connection.execute(statement.on_conflict_do_nothing(index_elements=["order_id", "event", "settlement_id"]))


def _waiting(row: Row[Any]) -> StoredSettlement | None:
    return _stored(row) if row.state == SettlementState.STORED and row.reservation_id else None


def _stored(row: Row[Any]) -> StoredSettlement:
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
