"""The inbox of settlements: events and orders to settle, stored once each."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from engine.domain import MismatchPolicy, Provider, Reservation, SettlementKind, SettlementState
from engine.errors import StorageUnavailable
from engine.orders import StoredSettlement
from engine.payments.port import EventKind, ProviderEvent
from persistence.database import transaction
from persistence.repositories.binding import bind, match_session, resolve, stored_settlement, waiting
from persistence.repositories.epochs import require_epoch
from persistence.tables import Attempt, Settlement

_KINDS = {
    EventKind.PAID: SettlementKind.COMPLETE,
    EventKind.UNPAID: SettlementKind.HOLD,
    EventKind.EXPIRED: SettlementKind.RELEASE,
}


class PostgresSettlements:
    """Implements :class:`engine.ports.SettlementStore`."""

    def __init__(self, engine: AsyncEngine, prefix: str, mismatched: MismatchPolicy = MismatchPolicy.REFUND) -> None:
        """``prefix`` is the deployment's, under which commits and rebuilds wait for each other."""
        self._engine = engine
        self._prefix = prefix
        self._mismatched = mismatched

    async def find_reservation_of(self, provider: Provider, event: ProviderEvent) -> tuple[str, str] | None:
        """Tenant and reservation that the event would settle."""
        kind = _KINDS[event.kind]
        async with transaction(self._engine) as connection:
            target = await resolve(connection, provider, event)
        reservation = None if target is None else target.reservation_for(kind)
        return None if target is None or reservation is None else (target.tenant, reservation)

    async def store_event(self, provider: Provider, event: ProviderEvent, record: str) -> StoredSettlement | None:
        """Store an event's settlement once and bind it; None when there is nothing to apply in Redis.

        Raises ``StorageUnavailable`` for our mark on an order that isn't visible yet.
        """
        async with transaction(self._engine) as connection:
            target = await resolve(connection, provider, event, lock=True)
            if target is None and event.marked_order_id is not None:
                raise StorageUnavailable("The event names an order of ours that is not visible yet.")
            kind = _KINDS[event.kind]
            same_event = select(*Settlement.__table__.c).where(
                Settlement.provider == provider, Settlement.dedup_key == event.dedup_key
            )
            # Looked for first: the persister marks settlements before it takes their orders, so an insert that met a
            # row of its making would wait for it with the order locked, and it for us.
            stored = (await connection.execute(same_event)).one_or_none()
            if stored is None:
                await _insert(connection, provider, event, kind, record)
                stored = (await connection.execute(same_event)).one()
            if stored.state == SettlementState.UNMATCHED and target is not None:
                return await bind(connection, stored, target, self._mismatched)
            return waiting(stored)

    async def is_waiting(self, provider: Provider, dedup_key: str) -> bool:
        """Whether an event's settlement is stored and not applied yet."""
        statement = select(Settlement.state).where(Settlement.provider == provider, Settlement.dedup_key == dedup_key)
        async with transaction(self._engine) as connection:
            return await connection.scalar(statement) == SettlementState.STORED

    async def store_order(
        self, kind: SettlementKind, reservation: Reservation, payment_ref: str, restock: bool, record: str
    ) -> StoredSettlement:
        """Store what an API caller orders.

        Raises ``NotReady`` when the epoch that the reservation was read under has ended: whoever took over from it
        may have looked for the records of settlements before this one was there.
        """
        async with transaction(self._engine) as connection:
            if reservation.epoch:
                await require_epoch(connection, self._prefix, reservation.epoch)
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
                matched += await match_session(connection, Provider(row.provider), row.session_id, self._mismatched)
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
            return [stored_settlement(row) for row in await connection.execute(statement)]

    async def load_waiting_of(self, order_id: str) -> Sequence[StoredSettlement]:
        """Stored and not applied, of one order."""
        statement = select(*Settlement.__table__.c).where(
            Settlement.order_id == order_id, Settlement.state == SettlementState.STORED
        )
        async with transaction(self._engine) as connection:
            return [stored_settlement(row) for row in await connection.execute(statement)]

    async def note_tried(self, settlement_ids: Sequence[str]) -> None:
        """Count a try of each that nobody is settling at this moment."""
        if not settlement_ids:
            return
        # To wait for many that the persister takes in another order would be a dead-lock with it.
        free = select(Settlement.id).where(Settlement.id.in_(settlement_ids)).with_for_update(skip_locked=True)
        async with transaction(self._engine) as connection:
            await connection.execute(
                update(Settlement).where(Settlement.id.in_(free)).values(tries=Settlement.tries + 1)
            )

    async def note_failure(self, settlement_id: str, error: str) -> None:
        """Keep the reason of a failure beside the settlement."""
        async with transaction(self._engine) as connection:
            await connection.execute(
                update(Settlement).where(Settlement.id == settlement_id).values(last_error=error[:500])
            )


async def _insert(
    connection: AsyncConnection, provider: Provider, event: ProviderEvent, kind: SettlementKind, record: str
) -> None:
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
    # A twin that is being stored at this moment is waited for, so the loser finds its row afterwards.
    await connection.execute(statement.on_conflict_do_nothing(index_elements=["provider", "dedup_key"]))


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
    return stored_settlement((await connection.execute(statement)).one())
