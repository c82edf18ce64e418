"""What the stand-in providers remember, so that it survives a restart and is the same in every API process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, cast, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from engine.domain import Provider
from persistence.database import transaction
from persistence.tables.sandbox import (
    FaultKind,
    FaultTarget,
    SandboxCall,
    SandboxClock,
    SandboxDispute,
    SandboxEvent,
    SandboxFault,
    SandboxIdempotencyKey,
    SandboxRefund,
    SandboxSession,
    StandInRefundStatus,
    StandInState,
)

CALLS_KEPT = 1000


class SandboxStore:
    """Opens transactions on the sandbox's tables."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SandboxRepository]:
        """One transaction: committed at the end, rolled back when an exception leaves the block.

        Raises ``StorageUnavailable`` as :func:`persistence.database.transaction` does.
        """
        # Joined to a transaction that is not its own, the session neither commits nor ends it.
        async with (
            transaction(self._engine) as connection,
            AsyncSession(connection, expire_on_commit=False) as session,
        ):
            yield SandboxRepository(session)
            await session.flush()


class SandboxRepository:
    """The sandbox's queries, within the transaction that it was opened for."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    # Clock

    async def offset_ms(self) -> int:
        """How far the test clock is ahead of the machine's, in ms."""
        found = await self._session.scalar(select(SandboxClock.offset_ms).where(SandboxClock.id == 1))
        return found or 0

    async def advance(self, by_ms: int) -> int:
        """Move the test clock forward; answers the new offset in ms."""
        statement = insert(SandboxClock).values(id=1, offset_ms=by_ms)
        moved = await self._session.scalar(
            statement.on_conflict_do_update(
                index_elements=[SandboxClock.id], set_={"offset_ms": SandboxClock.offset_ms + by_ms}
            ).returning(SandboxClock.offset_ms)
        )
        return moved or 0

    # Idempotency keys

    async def occupy_key(self, key: str) -> bool:
        """Hold a key until the transaction ends; False when another call holds it now."""
        number = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), signed=True)
        return bool(await self._session.scalar(select(func.pg_try_advisory_xact_lock(number))))

    async def saved_answer(self, key: str, since_s: int) -> SandboxIdempotencyKey | None:
        """The answer saved under a key at or after ``since_s``."""
        return await self._session.scalar(
            select(SandboxIdempotencyKey).where(
                SandboxIdempotencyKey.key == key, SandboxIdempotencyKey.created_s >= since_s
            )
        )

    async def save_answer(self, key: str, fingerprint: str, status: int, body: dict[str, Any], created_s: int) -> None:
        """Remember the answer of a call; a forgotten one under the same key is replaced."""
        values = {"fingerprint": fingerprint, "status": status, "body": body, "created_s": created_s}
        statement = insert(SandboxIdempotencyKey).values(key=key, **values)
        await self._session.execute(
            statement.on_conflict_do_update(index_elements=[SandboxIdempotencyKey.key], set_=values)
        )

    async def forget_keys(self) -> None:
        """Forget every saved answer, as a provider does after a day."""
        await self._session.execute(delete(SandboxIdempotencyKey))

    # Sessions

    async def session(self, session_id: str) -> SandboxSession | None:
        """A session, locked until the transaction ends."""
        return await self._session.get(SandboxSession, session_id, with_for_update=True)

    async def session_of_intent(self, intent_id: str) -> SandboxSession | None:
        """The session that a PaymentIntent belongs to, locked until the transaction ends."""
        return await self._session.scalar(
            select(SandboxSession).where(SandboxSession.payment_intent == intent_id).with_for_update()
        )

    async def session_of_charge(self, charge_id: str) -> SandboxSession | None:
        """The session that a charge belongs to, locked until the transaction ends."""
        return await self._session.scalar(
            select(SandboxSession).where(SandboxSession.charge == charge_id).with_for_update()
        )

    async def session_numbered(self, provider: Provider, number: int) -> SandboxSession | None:
        """The session with this number, locked until the transaction ends."""
        return await self._session.scalar(
            select(SandboxSession)
            .where(SandboxSession.provider == provider, SandboxSession.number == number)
            .with_for_update()
        )

    async def sessions(self, provider: Provider) -> Sequence[SandboxSession]:
        """A provider's sessions, newest first."""
        found = await self._session.scalars(
            select(SandboxSession).where(SandboxSession.provider == provider).order_by(SandboxSession.number.desc())
        )
        return found.all()

    async def add_session(self, session: SandboxSession) -> None:
        """Store a new session; its ``number`` is known afterwards."""
        self._session.add(session)
        await self._session.flush()

    async def due_sessions(self, now_s: int, limit: int) -> Sequence[SandboxSession]:
        """Open sessions past their end, locked, without those that another process has in hand."""
        found = await self._session.scalars(
            select(SandboxSession)
            .where(SandboxSession.state == StandInState.OPEN, SandboxSession.expires_at_s <= now_s)
            .order_by(SandboxSession.expires_at_s)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        return found.all()

    # Refunds and disputes

    async def add_refund(self, refund: SandboxRefund) -> None:
        """Store a new refund; its ``number`` is known afterwards."""
        self._session.add(refund)
        await self._session.flush()

    async def refund(self, ref: str) -> tuple[SandboxRefund, SandboxSession] | None:
        """The refund of this ``ref`` with what it is of, both locked until the transaction ends."""
        return await self._refund_where(SandboxRefund.ref == ref)

    async def refund_numbered(self, provider: Provider, number: int) -> tuple[SandboxRefund, SandboxSession] | None:
        """A provider's refund with this number, likewise."""
        return await self._refund_where(SandboxSession.provider == provider, SandboxRefund.number == number)

    async def refunds_of(self, session_id: str) -> Sequence[SandboxRefund]:
        """The refunds of a session, oldest first."""
        found = await self._session.scalars(
            select(SandboxRefund).where(SandboxRefund.session_id == session_id).order_by(SandboxRefund.number)
        )
        return found.all()

    async def refunds(self, provider: Provider) -> Sequence[tuple[SandboxRefund, SandboxSession]]:
        """A provider's refunds, newest first, with what they are of."""
        found = await self._session.execute(
            select(SandboxRefund, SandboxSession)
            .join(SandboxSession, SandboxSession.id == SandboxRefund.session_id)
            .where(SandboxSession.provider == provider)
            .order_by(SandboxRefund.number.desc())
        )
        return [(refund, session) for refund, session in found]

    async def refunded_by_session(self, provider: Provider) -> dict[str, int]:
        """How much has gone back of each session of a provider that something has gone back of."""
        found = await self._session.execute(
            select(SandboxRefund.session_id, cast(func.sum(SandboxRefund.amount), BigInteger))
            .join(SandboxSession, SandboxSession.id == SandboxRefund.session_id)
            .where(SandboxSession.provider == provider, SandboxRefund.status == StandInRefundStatus.SUCCEEDED)
            .group_by(SandboxRefund.session_id)
        )
        return dict(found.all())

    async def due_refunds(self, now_ms: int, limit: int) -> Sequence[tuple[SandboxRefund, SandboxSession]]:
        """Pending refunds whose time has come, locked, without those that another process has in hand."""
        found = await self._session.execute(
            select(SandboxRefund, SandboxSession)
            .join(SandboxSession, SandboxSession.id == SandboxRefund.session_id)
            .where(SandboxRefund.status == StandInRefundStatus.PENDING, SandboxRefund.due_at_ms <= now_ms)
            .order_by(SandboxRefund.number)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        return [(refund, session) for refund, session in found]

    async def _refund_where(self, *conditions: ColumnElement[bool]) -> tuple[SandboxRefund, SandboxSession] | None:
        found = await self._session.execute(
            select(SandboxRefund, SandboxSession)
            .join(SandboxSession, SandboxSession.id == SandboxRefund.session_id)
            .where(*conditions)
            .with_for_update()
        )
        row = found.first()
        return None if row is None else (row[0], row[1])

    def add_dispute(self, dispute: SandboxDispute) -> None:
        """Store a new dispute."""
        self._session.add(dispute)

    async def dispute(self, dispute_id: str) -> SandboxDispute | None:
        """A dispute, locked until the transaction ends."""
        return await self._session.get(SandboxDispute, dispute_id, with_for_update=True)

    async def disputes_of(self, session_id: str) -> Sequence[SandboxDispute]:
        """The disputes of a session, oldest first."""
        found = await self._session.scalars(
            select(SandboxDispute).where(SandboxDispute.session_id == session_id).order_by(SandboxDispute.created_s)
        )
        return found.all()

    # Events

    async def add_event(self, event: SandboxEvent) -> None:
        """Store an event; its ``seq`` is known afterwards."""
        self._session.add(event)
        await self._session.flush()

    async def claim_events(self, now_ms: int, lease_ms: int, limit: int) -> Sequence[SandboxEvent]:
        """Take events that are due, oldest first, for ``lease_ms``; each goes to one caller only."""
        due = (
            select(SandboxEvent.seq)
            .where(SandboxEvent.next_attempt_at_ms <= now_ms)
            .order_by(SandboxEvent.seq)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        claimed = await self._session.scalars(
            update(SandboxEvent)
            .where(SandboxEvent.seq.in_(due.scalar_subquery()))
            .values(attempts=SandboxEvent.attempts + 1, next_attempt_at_ms=now_ms + lease_ms)
            .returning(SandboxEvent)
        )
        return sorted(claimed.all(), key=lambda event: event.seq)

    async def event_delivered(self, seq: int, now_ms: int) -> bool:
        """Note a delivery and let the events that wait behind it go; answers whether there were any."""
        await self._session.execute(
            update(SandboxEvent).where(SandboxEvent.seq == seq).values(next_attempt_at_ms=None, delivered_at_ms=now_ms)
        )
        released = await self._session.scalars(
            update(SandboxEvent)
            .where(
                SandboxEvent.fault == FaultKind.REORDER,
                SandboxEvent.attempts == 0,
                SandboxEvent.seq < seq,
                SandboxEvent.next_attempt_at_ms > now_ms,
            )
            .values(next_attempt_at_ms=now_ms)
            .returning(SandboxEvent.seq)
        )
        return bool(released.all())

    async def event_failed(self, seq: int, next_attempt_at_ms: int | None) -> None:
        """Note a failed delivery and when to try again; None gives up."""
        await self._session.execute(
            update(SandboxEvent).where(SandboxEvent.seq == seq).values(next_attempt_at_ms=next_attempt_at_ms)
        )

    # Faults

    def add_fault(self, target: FaultTarget, kind: FaultKind, count: int) -> None:
        """Have the next ``count`` calls or events of a target struck, after the faults asked for before."""
        self._session.add(SandboxFault(target=target, kind=kind, remaining=count))

    async def take_fault(self, target: FaultTarget) -> FaultKind | None:
        """The fault that strikes this call or event, used up by it."""
        oldest = (
            select(SandboxFault.id)
            .where(SandboxFault.target == target, SandboxFault.remaining > 0)
            .order_by(SandboxFault.id)
            .limit(1)
            .with_for_update()
        )
        kind = await self._session.scalar(
            update(SandboxFault)
            .where(SandboxFault.id == oldest.scalar_subquery())
            .values(remaining=SandboxFault.remaining - 1)
            .returning(SandboxFault.kind)
        )
        return None if kind is None else FaultKind(kind)

    # Calls

    async def add_call(self, call: SandboxCall) -> None:
        """Note a call; the oldest beyond the thousand kept are forgotten."""
        self._session.add(call)
        await self._session.flush()
        await self._session.execute(delete(SandboxCall).where(SandboxCall.id <= call.id - CALLS_KEPT))

    async def calls(self, limit: int) -> Sequence[SandboxCall]:
        """The last calls, newest last."""
        found = await self._session.scalars(select(SandboxCall).order_by(SandboxCall.id.desc()).limit(limit))
        return found.all()[::-1]
