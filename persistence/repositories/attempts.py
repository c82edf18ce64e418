"""Attempts at a provider: frozen, then opened, paid, expired or failed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Row, and_, func, insert, or_, select, text, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from engine.domain import AttemptStatus, OrderEvent, OrderStatus, Provider, Reservation
from engine.orders import Attempt
from engine.payments.port import FrozenAttempt, PricedLine, Session
from persistence.database import transaction
from persistence.repositories.binding import match_session
from persistence.repositories.epochs import require_epoch
from persistence.repositories.reservations import upsert_reservations
from persistence.tables import Attempt as AttemptRow
from persistence.tables import Order, OrderHistory

_UNSETTLED = (OrderStatus.PENDING.value, OrderStatus.CANCELLED.value)
_WAITING = (AttemptStatus.FROZEN.value, AttemptStatus.OPEN.value)
_OVER = (AttemptStatus.FAILED.value, AttemptStatus.EXPIRED.value)
_KEY_LIFE = text("interval '25 hours'")
"""Longer than a session without an expiry of its own stays open at a provider."""


class PostgresAttempts:
    """Implements :class:`engine.ports.AttemptStore`."""

    def __init__(self, engine: AsyncEngine, prefix: str, provider: Provider) -> None:
        """``prefix`` is the deployment's, under which commits and rebuilds wait for each other."""
        self._engine = engine
        self._prefix = prefix
        self._provider = provider

    async def start(self, attempt: FrozenAttempt, reservation: Reservation | None) -> bool:
        """Commit the next attempt of an order; False when it has that attempt already, or was paid.

        Raises ``NotReady`` when the epoch that granted its units has ended: they are not held any more.
        """
        async with transaction(self._engine) as connection:
            # Reservations before orders, as the persister takes them, so that neither waits for the other.
            if reservation is not None:
                await require_epoch(connection, self._prefix, reservation.epoch)
                await upsert_reservations(connection, [reservation])
            status = await connection.scalar(select(Order.status).where(Order.id == attempt.order_id).with_for_update())
            before = await load_newest(connection, attempt.order_id)
            if status not in _UNSETTLED or before is None or before.frozen.number + 1 != attempt.number:
                return False
            if before.status not in _OVER:
                return False
            changed: dict[str, Any] = {"status": OrderStatus.PENDING.value}
            if reservation is not None:
                changed["reservation_id"] = reservation.id
                changed["period"] = reservation.period
                changed["expires_at_ms"] = reservation.expires_at_ms
            await connection.execute(update(Order).where(Order.id == attempt.order_id).values(changed))
            await add_attempt(connection, attempt, self._provider)
        return True

    async def attach(self, attempt: FrozenAttempt, session: Session) -> int | None:
        """Note an attempt's session and match what came for it; None when the attempt isn't waiting any more.

        A session whose events were faster keeps the status that they gave it.
        """
        async with transaction(self._engine) as connection:
            await connection.execute(select(Order.id).where(Order.id == attempt.order_id).with_for_update())
            opened = await connection.execute(
                update(AttemptRow)
                .where(
                    _is(attempt),
                    or_(
                        AttemptRow.status == AttemptStatus.FROZEN,
                        and_(AttemptRow.session_id == session.id, AttemptRow.status != AttemptStatus.FAILED),
                    ),
                )
                .values(
                    session_id=session.id,
                    url=session.url,
                    session_expires_at_s=session.expires_at_s,
                    opened_at=func.now(),
                    status=text("case status when 'frozen' then 'open' else status end"),
                )
                .returning(AttemptRow.number)
            )
            if opened.one_or_none() is None:
                return None
            details = {"attempt": attempt.number, "session": session.id}
            await add_history(connection, attempt.order_id, OrderEvent.SESSION_OPENED, details)
            return await match_session(connection, self._provider, session.id)

    async def fail(self, attempt: FrozenAttempt, reason: str) -> bool:
        """Note that an attempt came to nothing and cancel its order; False when it isn't waiting any more."""
        async with transaction(self._engine) as connection:
            await connection.execute(select(Order.id).where(Order.id == attempt.order_id).with_for_update())
            failed = await connection.execute(
                update(AttemptRow)
                .where(_is(attempt), AttemptRow.status == AttemptStatus.FROZEN, AttemptRow.session_id.is_(None))
                .values(status=AttemptStatus.FAILED.value)
                .returning(AttemptRow.number)
            )
            if failed.one_or_none() is None:
                return False
            await connection.execute(
                update(Order)
                .where(Order.id == attempt.order_id, Order.status == OrderStatus.PENDING)
                .values(status=OrderStatus.CANCELLED.value)
            )
            details = {"attempt": attempt.number, "reason": reason}
            await add_history(connection, attempt.order_id, OrderEvent.ATTEMPT_FAILED, details)
        return True

    async def load_overdue(self, before_s: int, after: tuple[str, int], limit: int) -> list[Attempt]:
        """Attempts that wait although their session should have ended; those without an end, after a day."""
        lapsed = or_(
            AttemptRow.session_expires_at_s < before_s,
            and_(AttemptRow.session_expires_at_s.is_(None), AttemptRow.created_at < func.now() - _KEY_LIFE),
        )
        statement = (
            select(*AttemptRow.__table__.c)
            .where(
                AttemptRow.provider == self._provider,
                AttemptRow.status.in_(_WAITING),
                lapsed,
                tuple_(AttemptRow.order_id, AttemptRow.number) > after,
            )
            .order_by(AttemptRow.order_id, AttemptRow.number)
            .limit(limit)
        )
        async with transaction(self._engine) as connection:
            return [attempt_of(row) for row in await connection.execute(statement)]


async def add_attempt(connection: AsyncConnection, attempt: FrozenAttempt, provider: Provider) -> None:
    """Insert a frozen attempt; its order must be there."""
    await connection.execute(
        insert(AttemptRow).values(
            order_id=attempt.order_id,
            number=attempt.number,
            provider=provider.value,
            idempotency_key=attempt.idempotency_key,
            parameters=asdict(attempt),
            status=AttemptStatus.FROZEN.value,
            session_expires_at_s=attempt.expires_at_s,
        )
    )


async def load_newest(connection: AsyncConnection, order_id: str) -> Attempt | None:
    """An order's newest attempt, or None."""
    statement = (
        select(*AttemptRow.__table__.c)
        .where(AttemptRow.order_id == order_id)
        .order_by(AttemptRow.number.desc())
        .limit(1)
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else attempt_of(row)


async def add_history(
    connection: AsyncConnection,
    order_id: str,
    event: OrderEvent,
    details: dict[str, Any],
) -> None:
    """Append to an order's history."""
    await connection.execute(insert(OrderHistory).values(order_id=order_id, event=event.value, details=details))


def attempt_of(row: Row[Any]) -> Attempt:
    """An attempt from a row of all columns."""
    return Attempt(
        frozen=frozen_of(row.parameters),
        provider=Provider(row.provider),
        status=AttemptStatus(row.status),
        session_id=row.session_id,
        url=row.url,
        session_expires_at_s=row.session_expires_at_s,
    )


def frozen_of(parameters: dict[str, Any]) -> FrozenAttempt:
    """A frozen attempt from what was stored of it."""
    lines = tuple(PricedLine(**line) for line in parameters["lines"])
    return FrozenAttempt(**{**parameters, "lines": lines})


def _is(attempt: FrozenAttempt) -> Any:
    return and_(AttemptRow.order_id == attempt.order_id, AttemptRow.number == attempt.number)
