"""Attempts at a provider: frozen, then opened, closed for the next, paid, expired or failed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import structlog
from sqlalchemy import Row, and_, func, insert, not_, or_, select, text, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from engine.domain import AttemptStatus, MismatchPolicy, OrderEvent, OrderStatus, Provider, Reservation
from engine.errors import ProviderTimeout
from engine.orders import Asked, Attempt
from engine.payments.port import FrozenAttempt, PricedLine, Session
from persistence.database import transaction
from persistence.repositories.binding import match_session
from persistence.repositories.epochs import require_epoch
from persistence.repositories.reservations import upsert_reservations
from persistence.tables import Attempt as AttemptRow
from persistence.tables import Order, OrderHistory

log = structlog.get_logger(__name__)

_UNSETTLED = (OrderStatus.PENDING.value, OrderStatus.CANCELLED.value)
_WAITING = (AttemptStatus.FROZEN, AttemptStatus.OPEN, AttemptStatus.CLOSING, AttemptStatus.UNPAID)
_OVER = (AttemptStatus.FAILED.value, AttemptStatus.EXPIRED.value, AttemptStatus.CLOSING.value)
_KEY_LIFE = text("interval '25 hours'")
"""Longer than a session without an expiry of its own stays open at a provider."""


class PostgresAttempts:
    """Implements :class:`engine.ports.AttemptStore`."""

    def __init__(self, engine: AsyncEngine, prefix: str, mismatched: MismatchPolicy = MismatchPolicy.REFUND) -> None:
        """``prefix`` is the deployment's, under which commits and rebuilds wait for each other."""
        self._engine = engine
        self._prefix = prefix
        self._mismatched = mismatched

    async def start(self, attempt: FrozenAttempt, reservation: Reservation | None, asked: Asked | None = None) -> bool:
        """Commit the next attempt of an order; False when it has that attempt already, or was paid or withdrawn.

        The one before ends with this, if it was closing. Raises ``NotReady`` when the epoch that granted or extended
        its units has ended: they are not held any more.
        """
        async with transaction(self._engine) as connection:
            # Reservations before orders, as the persister takes them, so that neither waits for the other.
            if reservation is not None:
                await require_epoch(connection, self._prefix, reservation.epoch)
                await upsert_reservations(connection, [reservation])
            order = (
                await connection.execute(
                    select(Order.status, Order.withdrawn).where(Order.id == attempt.order_id).with_for_update()
                )
            ).one_or_none()
            before = await load_newest(connection, attempt.order_id)
            if order is None or order.status not in _UNSETTLED or order.withdrawn:
                return False
            if before is None or before.frozen.number + 1 != attempt.number or before.status not in _OVER:
                return False
            if before.status is AttemptStatus.CLOSING:
                await _end_closing(connection, before)
            changed: dict[str, Any] = {"status": OrderStatus.PENDING.value, "provider": attempt.provider.value}
            if reservation is not None:
                changed["reservation_id"] = reservation.id
                changed["period"] = reservation.period
                changed["expires_at_ms"] = reservation.expires_at_ms
            await connection.execute(update(Order).where(Order.id == attempt.order_id).values(changed))
            await add_attempt(connection, attempt, reservation, asked)
        return True

    async def attach(self, attempt: FrozenAttempt, session: Session) -> int | None:
        """Note an attempt's session and match what came for it; None when the attempt isn't waiting any more.

        A session whose events were faster keeps the status that they gave it.
        """
        async with transaction(self._engine) as connection:
            if await _lock_order(connection, attempt):
                # Its seller cancelled it meanwhile.
                return None
            await _refuse_taken(connection, attempt, session.id)
            opened = await connection.execute(
                update(AttemptRow)
                .where(
                    _is(attempt),
                    or_(
                        AttemptRow.status == AttemptStatus.FROZEN,
                        and_(
                            AttemptRow.session_id == session.id,
                            AttemptRow.status.not_in([AttemptStatus.FAILED, AttemptStatus.CLOSING]),
                        ),
                    ),
                )
                .values(
                    session_id=session.id,
                    url=session.url,
                    session_expires_at_s=session.expires_at_s,
                    look_up_at_s=func.coalesce(session.expires_at_s, AttemptRow.look_up_at_s),
                    opened_at=func.now(),
                    status=text("case status when 'frozen' then 'open' else status end"),
                )
                .returning(AttemptRow.number)
            )
            if opened.one_or_none() is None:
                return None
            details = {"attempt": attempt.number, "provider": attempt.provider.value, "session": session.id}
            await add_history(connection, attempt.order_id, OrderEvent.SESSION_OPENED, details)
            return await match_session(connection, attempt.provider, session.id, self._mismatched)

    async def close(self, attempt: FrozenAttempt, session_id: str | None) -> bool:
        """Note that an attempt gives way to the next, and which session it has; False when it can't any more.

        From here on news that its session ended give nothing back: the units are the next attempt's.
        """
        async with transaction(self._engine) as connection:
            await _lock_order(connection, attempt)
            closing = await connection.execute(
                update(AttemptRow)
                .where(
                    _is(attempt),
                    AttemptRow.status.in_([AttemptStatus.FROZEN, AttemptStatus.OPEN, AttemptStatus.CLOSING]),
                )
                .values(status=AttemptStatus.CLOSING.value, session_id=func.coalesce(AttemptRow.session_id, session_id))
                .returning(AttemptRow.number)
            )
            if closing.one_or_none() is None:
                return False
            if session_id is not None:
                await match_session(connection, attempt.provider, session_id, self._mismatched)
            return True

    async def fail(self, attempt: FrozenAttempt, reason: str) -> bool:
        """Note that an attempt came to nothing and cancel its order; False when it isn't waiting any more."""
        async with transaction(self._engine) as connection:
            await _lock_order(connection, attempt)
            failed = await connection.execute(
                update(AttemptRow)
                .where(
                    _is(attempt),
                    AttemptRow.status == AttemptStatus.FROZEN,
                    # A reference of our own choosing says nothing of whether the provider heard of it.
                    func.coalesce(AttemptRow.session_id, "") == (attempt.reference or ""),
                )
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

    async def end(self, attempt: FrozenAttempt) -> None:
        """Note that a closing attempt's session is over; with no attempt after it, its order is cancelled."""
        async with transaction(self._engine) as connection:
            await _lock_order(connection, attempt)
            newest = await load_newest(connection, attempt.order_id)
            if newest is None or newest.frozen.number != attempt.number:
                return
            if newest.status is AttemptStatus.CLOSING:
                await _end_closing(connection, newest)
                await connection.execute(
                    update(Order)
                    .where(Order.id == attempt.order_id, Order.status == OrderStatus.PENDING)
                    .values(status=OrderStatus.CANCELLED.value)
                )

    async def load_overdue(self, before_s: int, after: tuple[str, int], limit: int) -> list[Attempt]:
        """Attempts that wait although the provider should have spoken; those without an end, after a day."""
        lapsed = or_(
            AttemptRow.look_up_at_s < before_s,
            and_(AttemptRow.look_up_at_s.is_(None), AttemptRow.created_at < func.now() - _KEY_LIFE),
        )
        statement = (
            select(*AttemptRow.__table__.c)
            .where(
                AttemptRow.status.in_(_WAITING),
                lapsed,
                tuple_(AttemptRow.order_id, AttemptRow.number) > after,
            )
            .order_by(AttemptRow.order_id, AttemptRow.number)
            .limit(limit)
        )
        async with transaction(self._engine) as connection:
            return [attempt_of(row) for row in await connection.execute(statement)]

    async def look_up_later(self, attempt: FrozenAttempt, at_s: int) -> None:
        """Ask the provider again at this second, unless it speaks before."""
        async with transaction(self._engine) as connection:
            await connection.execute(update(AttemptRow).where(_is(attempt)).values(look_up_at_s=at_s))

    async def count_on(self, order_id: str, reservation_id: str | None) -> int:
        """How many attempts an order has had on this reservation, or on none."""
        held = AttemptRow.parameters["reservation_id"].astext
        statement = (
            select(func.count())
            .select_from(AttemptRow)
            .where(AttemptRow.order_id == order_id, held.is_not_distinct_from(reservation_id))
        )
        async with transaction(self._engine) as connection:
            return await connection.scalar(statement) or 0


async def add_attempt(
    connection: AsyncConnection, attempt: FrozenAttempt, reservation: Reservation | None, asked: Asked | None = None
) -> None:
    """Insert a frozen attempt; its order must be there."""
    # Where the provider knows no end, it is asked when ours has come.
    ends_s = None if reservation is None else reservation.expires_at_ms // 1000
    await connection.execute(
        insert(AttemptRow).values(
            order_id=attempt.order_id,
            number=attempt.number,
            provider=attempt.provider.value,
            idempotency_key=attempt.idempotency_key,
            parameters=asdict(attempt),
            status=AttemptStatus.FROZEN.value,
            session_id=attempt.reference,
            session_expires_at_s=attempt.expires_at_s,
            look_up_at_s=attempt.expires_at_s or ends_s,
            asked_by=None if asked is None else asked.idempotency_key,
            request_fingerprint=None if asked is None else asked.fingerprint,
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
    provider = Provider(row.provider)
    return Attempt(
        frozen=_frozen_of(row.parameters, provider),
        provider=provider,
        status=AttemptStatus(row.status),
        session_id=row.session_id,
        url=row.url,
        session_expires_at_s=row.session_expires_at_s,
    )


def _frozen_of(parameters: dict[str, Any], provider: Provider) -> FrozenAttempt:
    """A frozen attempt from what was stored of it."""
    lines = tuple(PricedLine(**line) for line in parameters["lines"])
    return FrozenAttempt(**{**parameters, "lines": lines, "provider": provider})


async def _lock_order(connection: AsyncConnection, attempt: FrozenAttempt) -> bool:
    """Lock the attempt's order; whether it is withdrawn."""
    return bool(await connection.scalar(select(Order.withdrawn).where(Order.id == attempt.order_id).with_for_update()))


async def _refuse_taken(connection: AsyncConnection, attempt: FrozenAttempt, session_id: str) -> None:
    """Raises ``ProviderTimeout`` for a session that another attempt has: what the provider did then is not known."""
    taken = await connection.scalar(
        select(AttemptRow.order_id).where(
            AttemptRow.provider == attempt.provider, AttemptRow.session_id == session_id, not_(_is(attempt))
        )
    )
    if taken is not None:
        log.error("session_taken", order=attempt.order_id, session=session_id, by=taken)
        raise ProviderTimeout


async def _end_closing(connection: AsyncConnection, before: Attempt) -> None:
    """The session of an attempt that gave way can't be paid any more, or is at least not on offer."""
    await connection.execute(
        update(AttemptRow)
        .where(_is(before.frozen), AttemptRow.status == AttemptStatus.CLOSING)
        .values(status=AttemptStatus.EXPIRED.value)
    )
    details = {"attempt": before.frozen.number, "session": before.session_id}
    await add_history(connection, before.frozen.order_id, OrderEvent.SESSION_CLOSED, details)


def _is(attempt: FrozenAttempt) -> Any:
    return and_(AttemptRow.order_id == attempt.order_id, AttemptRow.number == attempt.number)
