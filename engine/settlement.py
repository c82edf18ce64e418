"""Settlement: a verified event or an API call is committed in Postgres first, and then applied in Redis.

What is committed is applied at the latest by a job, so no provider retry is needed for progress. Only the persister
marks a settlement applied, together with the outbox entry that names it; until then applying it again is harmless,
because every transition names the state it expects.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from engine.domain import Provider, Reservation, ReservationStatus, Settled, SettlementKind
from engine.errors import IllegalTransition, LastportionError, Unavailable, Unknown
from engine.orders import StoredSettlement
from engine.payments.port import EventKind, ProviderEvent, Session, SessionState
from engine.ports import SettlementStore
from engine.records import decode_reservation, encode_reservation
from engine.reservations import ReservationEngine

log = structlog.get_logger(__name__)

MOST_APPLIED_IN_ONE_RUN = 500
_SETTLES = (EventKind.PAID, EventKind.UNPAID, EventKind.EXPIRED)
PAUSES_FOR_EFFECT_SECONDS = (0.02, 0.03, 0.05, 0.1, 0.1, 0.2)
LONGEST_PAUSE_SECONDS = 60.0
"""A settlement that waits for the persister, or fails, is applied again after 2, 4, 8 … seconds, 60 at most."""


class SettlementService:
    """Receives events and orders to settle, and applies what is stored."""

    def __init__(self, store: SettlementStore, reservations: ReservationEngine, delayed_hold_seconds: int) -> None:
        """``delayed_hold_seconds``: how long units are kept for money that a delayed method has on its way."""
        self._store = store
        self._reservations = reservations
        self._hold_ms = delayed_hold_seconds * 1000
        self._next_try: dict[str, tuple[float, float]] = {}

    async def receive(self, provider: Provider, event: ProviderEvent) -> None:
        """Commit a verified event, then apply it if Redis can be reached; a return means it is safe.

        Raises ``Unavailable`` when it could not be committed, or carries our mark for an order not visible yet:
        the provider then delivers it again.
        """
        facts = {"provider": provider.value, "event_type": event.type, "session": event.session_id}
        if event.kind not in _SETTLES or event.session_id is None:
            log.info("event_foreign", **facts)
            return
        record = await self._present_record(provider, event)
        stored = await self._store.store_event(provider, event, record)
        if stored is None:
            log.info("event_stored", **facts)
            return
        log.info("settlement_stored", settlement=stored.id, reservation=stored.reservation_id, **facts)
        await self.apply_quietly(stored)

    async def wait_for_effect(self, provider: Provider, event: ProviderEvent) -> None:
        """Wait until a committed event's effect shows in its order, half a second at most.

        It comes with the persister's next batch. Nobody needs it sooner; whoever reads the order next expects it.
        """
        try:
            for pause_seconds in PAUSES_FOR_EFFECT_SECONDS:
                if not await self._store.is_waiting(provider, event.dedup_key):
                    return
                await asyncio.sleep(pause_seconds)
        except Unavailable as error:
            log.info("effect_not_awaited", reason=error.code)

    async def complete(self, tenant: str, identifier: str, payment_ref: str = "") -> Settled:
        """Complete a reservation because an API caller says that it is paid. An answer is durable.

        Raises ``Unknown``, ``IllegalTransition`` and ``Unavailable``. After ``NotReady`` the settlement may stand
        and be applied later; asking again is safe.
        """
        before = await self._reservations.read(tenant, identifier)
        if before.status is ReservationStatus.CANCELLED and not payment_ref:
            raise IllegalTransition(before.status.value)
        return await self._order(SettlementKind.COMPLETE, before, payment_ref, restock=False)

    async def cancel(self, tenant: str, identifier: str, restock: bool) -> Settled:
        """Take a completed reservation back, with or without its units. Raises as :meth:`complete` does."""
        before = await self._reservations.read(tenant, identifier)
        if before.status not in (ReservationStatus.COMPLETED, ReservationStatus.CANCELLED):
            raise IllegalTransition("expired" if before.expired else before.status.value)
        return await self._order(SettlementKind.CANCEL, before, "", restock=restock)

    async def apply_pending(self) -> int:
        """Match what came too early and apply what is stored; answers how many were applied.

        Raises ``Unavailable`` at the first that Redis or Postgres can't take; the next run goes on from there.
        """
        await self._store.match(MOST_APPLIED_IN_ONE_RUN)
        waiting = await self._store.load_waiting(MOST_APPLIED_IN_ONE_RUN)
        due = [settlement for settlement in waiting if self._is_due(settlement)]
        await self._store.note_tried([settlement.id for settlement in due])
        applied = 0
        for settlement in due:
            self._put_off(settlement)
            applied += await self._apply_or_note(settlement)
        self._next_try = {s.id: self._next_try[s.id] for s in waiting if s.id in self._next_try}
        return applied

    def _is_due(self, settlement: StoredSettlement) -> bool:
        return time.monotonic() >= self._next_try.get(settlement.id, (0.0, 0.0))[0]

    def _put_off(self, settlement: StoredSettlement) -> None:
        pause = min(LONGEST_PAUSE_SECONDS, 2 * self._next_try.get(settlement.id, (0.0, 1.0))[1])
        self._next_try[settlement.id] = (time.monotonic() + pause, pause)

    async def apply_waiting_of(self, order_id: str) -> None:
        """Apply what is stored for one order, as far as Redis can be reached."""
        for settlement in await self._store.load_waiting_of(order_id):
            await self.apply_quietly(settlement)

    async def apply_quietly(self, settlement: StoredSettlement) -> None:
        """Apply a stored settlement; what stands in the way is logged and left to the job."""
        try:
            await self._apply_or_note(settlement)
        except Unavailable as error:
            log.warning("settlement_waits", settlement=settlement.id, reason=error.code)

    async def _apply_or_note(self, settlement: StoredSettlement) -> bool:
        try:
            settled = await self._apply(settlement)
        except Unavailable:
            raise
        except IllegalTransition as error:
            # Its outbox entry says so, and the persister closes the settlement with that outcome.
            log.info("settlement_illegal", settlement=settlement.id, status=error.details["status"])
            return True
        except (LastportionError, ValueError) as error:
            log.error(
                "settlement_failed", settlement=settlement.id, reservation=settlement.reservation_id, exc_info=True
            )
            await self._store.note_failure(settlement.id, str(error))
            return False
        log.info(
            "settlement_applied",
            settlement=settlement.id,
            reservation=settlement.reservation_id,
            order=settled.reservation.order_id,
            outcome=settled.outcome.value,
        )
        return True

    async def _apply(self, settlement: StoredSettlement) -> Settled:
        try:
            return await self._transition(settlement)
        except Unknown:
            if not settlement.record:
                raise
        # Neither Redis nor Postgres has it: the grant was lost before it was persisted, the record was not.
        await self._reservations.restore(
            decode_reservation(settlement.tenant, settlement.reservation_id, settlement.record)
        )
        return await self._transition(settlement)

    async def _transition(self, s: StoredSettlement) -> Settled:
        if s.kind is SettlementKind.COMPLETE:
            return await self._reservations.complete(s.tenant, s.reservation_id, s.payment_ref, s.id)
        if s.kind is SettlementKind.RELEASE:
            return await self._reservations.release(s.tenant, s.reservation_id, s.id)
        if s.kind is SettlementKind.HOLD:
            return await self._reservations.hold(s.tenant, s.reservation_id, self._hold_ms, s.id)
        return await self._reservations.cancel(s.tenant, s.reservation_id, restock=s.restock, settlement=s.id)

    async def _order(self, kind: SettlementKind, before: Reservation, payment_ref: str, *, restock: bool) -> Settled:
        stored = await self._store.store_order(kind, before, payment_ref, restock, encode_reservation(before))
        return await self._apply(stored)

    async def _present_record(self, provider: Provider, event: ProviderEvent) -> str:
        """The reservation's record as it stands, for the day when neither Redis nor Postgres has it any more."""
        found = await self._store.find_reservation_of(provider, event)
        if found is None:
            return ""
        try:
            return encode_reservation(await self._reservations.read(*found))
        except (Unavailable, Unknown) as error:
            # A checkout's reservation is in Postgres from the start, so the settlement can do without.
            log.info("settlement_without_record", reservation=found[1], reason=error.code)
            return ""


_KIND_OF_STATE = {
    SessionState.PAID: EventKind.PAID,
    SessionState.UNPAID: EventKind.UNPAID,
    SessionState.EXPIRED: EventKind.EXPIRED,
    SessionState.OPEN: EventKind.FOREIGN,
}


def event_from(session: Session) -> ProviderEvent:
    """What a look-up found, as the event that would have said so; found twice it is one event."""
    return ProviderEvent(
        kind=_KIND_OF_STATE[session.state],
        type="look_up",
        dedup_key=f"look_up:{session.id}:{session.state.value}",
        session_id=session.id,
        payment_ref=session.payment_ref,
        amount_minor=session.amount_minor,
        currency=session.currency,
        created_at_s=None,
        marked_order_id=session.marked_order_id,
        marked_tenant=session.marked_tenant,
        marked_attempt=session.marked_attempt,
    )
