"""The life of a stand-in refund: asked for, processed at once or later, failed after all; with its events."""

from __future__ import annotations

import secrets
from typing import Any

from api.sandbox.clock import now_ms
from api.sandbox.deliveries import Deliveries
from api.sandbox.paystack_objects import refund_news
from api.sandbox.stripe_objects import charge_object, new_id, refund_object
from engine.domain import Provider
from engine.errors import IllegalTransition, Unknown
from persistence.repositories.sandbox import SandboxRepository, SandboxStore
from persistence.tables.sandbox import (
    SandboxEvent,
    SandboxRefund,
    SandboxSession,
    StandInRefundStatus,
    StandInState,
)

LATER_MS = 5_000
"""How long a refund stays pending whose call the fault ``delay`` struck."""


class StandInRefunds:
    """Refunds of both stand-ins, for their APIs and for whoever sits at a provider's dashboard."""

    def __init__(self, store: SandboxStore, deliveries: Deliveries) -> None:
        self._store = store
        self._deliveries = deliveries

    async def left(self, repository: SandboxRepository, session: SandboxSession) -> int | None:
        """How much of a payment can be sent back yet, in the provider's unit; None where nothing was paid."""
        if session.state != StandInState.PAID or session.amount_total == 0:
            return None
        found = await repository.refunds_of(session.id)
        return session.amount_total - sum(r.amount for r in found if r.status != StandInRefundStatus.FAILED)

    async def make(
        self,
        repository: SandboxRepository,
        session: SandboxSession,
        amount: int,
        params: dict[str, Any],
        *,
        later: bool = False,
        key: str | None = None,
        taken: bool = False,
    ) -> tuple[SandboxRefund, list[SandboxEvent]]:
        """Send ``amount`` back, of which the caller knows that it is left; ``later`` leaves it pending for a while.

        The session is locked by the caller, so that two refunds see each other.
        """
        now = await now_ms(repository)
        stripes = session.provider == Provider.STRIPE
        refund = SandboxRefund(
            ref=new_id("re") if stripes else f"TRF_{secrets.token_hex(8)}",
            session_id=session.id,
            amount=amount,
            status=StandInRefundStatus.PENDING if later or not stripes else StandInRefundStatus.SUCCEEDED,
            created_s=now // 1000,
            due_at_ms=now + LATER_MS if later else now,
            params=params,
        )
        await repository.add_refund(refund)
        tell = _Teller(self._deliveries, repository, session, refund, key=key, taken=taken)
        if stripes:
            await tell.of_refund("refund.created")
            if not later:
                await tell.of_charge()
        else:
            await tell.of_status("pending")
            if not later:
                await _process(tell)
        return refund, tell.events

    async def process_due(self, limit: int = 50) -> int:
        """Process pending refunds whose time has come, with their events; answers how many."""
        async with self._store.transaction() as repository:
            due = await repository.due_refunds(await now_ms(repository), limit)
            for refund, session in due:
                await _process(_Teller(self._deliveries, repository, session, refund))
            return len(due)

    async def ask(self, session_id: str, amount: int | None) -> tuple[SandboxSession, list[tuple[SandboxEvent, bool]]]:
        """Send money back from the dashboard, everything that is left without an ``amount`` (in the provider's unit).

        Answers the session and what happened to each event. Raises ``Unknown``, and ``IllegalTransition`` where so
        much is not left.
        """
        async with self._store.transaction() as repository:
            session = await repository.session(session_id) if "\0" not in session_id else None
            if session is None:
                raise Unknown("session", session_id[:100])
            left = await self.left(repository, session)
            wanted = amount if amount is not None else left
            if not left or wanted is None or wanted > left:
                raise IllegalTransition(session.state, f"There is not so much to refund; what is left: {left or 0}.")
            _, events = await self.make(repository, session, wanted, {}, taken=True)
        return session, await self._deliver(events)

    async def fail(self, refund_id: str) -> tuple[SandboxSession, list[tuple[SandboxEvent, bool]]]:
        """Have a refund fail after all, whether it was processed or not. ``refund_id`` is the provider's id.

        Raises ``Unknown``, and ``IllegalTransition`` where it has failed before.
        """
        async with self._store.transaction() as repository:
            found = await find_refund(repository, refund_id)
            if found is None:
                raise Unknown("refund", refund_id[:100])
            refund, session = found
            if refund.status == StandInRefundStatus.FAILED:
                raise IllegalTransition(refund.status, "The refund has failed before.")
            refund.status = StandInRefundStatus.FAILED
            tell = _Teller(self._deliveries, repository, session, refund, taken=True)
            if session.provider == Provider.STRIPE:
                await tell.of_refund("refund.failed")
                await tell.of_refund("refund.updated")
            else:
                await tell.of_status("failed")
        return session, await self._deliver(tell.events)

    async def _deliver(self, events: list[SandboxEvent]) -> list[tuple[SandboxEvent, bool]]:
        return [(event, await self._deliveries.deliver_first(event)) for event in events]


class _Teller:
    """Writes the events of one refund down, in the transaction of what they tell of."""

    def __init__(
        self,
        deliveries: Deliveries,
        repository: SandboxRepository,
        session: SandboxSession,
        refund: SandboxRefund,
        *,
        key: str | None = None,
        taken: bool = False,
    ) -> None:
        self._deliveries = deliveries
        self.repository = repository
        self.session = session
        self.refund = refund
        self._key = key
        self._taken = taken
        self.events: list[SandboxEvent] = []

    async def of_refund(self, event_type: str) -> None:
        await self._add(event_type, refund_object(self.refund, self.session))

    async def of_charge(self) -> None:
        """Stripe's news of all that has gone back of the charge."""
        total = await refunded_of(self.repository, self.session.id)
        await self._add("charge.refunded", charge_object(self.session, total))

    async def of_status(self, status: str) -> None:
        await self._add(f"refund.{status}", refund_news(self.refund, self.session, status))

    async def _add(self, event_type: str, about: dict[str, Any]) -> None:
        provider = Provider(self.session.provider)
        self.events.append(
            await self._deliveries.add(
                self.repository,
                event_type,
                self.session.id,
                about,
                provider=provider,
                idempotency_key=self._key,
                taken=self._taken,
            )
        )


async def find_refund(repository: SandboxRepository, refund_id: str) -> tuple[SandboxRefund, SandboxSession] | None:
    """The refund that a provider knows by this id (Stripe's ``re_…``, Paystack's number), locked with its session."""
    if refund_id.isascii() and refund_id.isdigit() and len(refund_id) <= 18:
        return await repository.refund_numbered(Provider.PAYSTACK, int(refund_id))
    found = await repository.refund(refund_id) if "\0" not in refund_id else None
    return found if found is not None and found[1].provider == Provider.STRIPE else None


async def refunded_of(repository: SandboxRepository, session_id: str) -> int:
    """How much of a payment has gone back, in the provider's unit; what is pending or has failed is not in it."""
    found = await repository.refunds_of(session_id)
    return sum(refund.amount for refund in found if refund.status == StandInRefundStatus.SUCCEEDED)


async def _process(tell: _Teller) -> None:
    stripes = tell.session.provider == Provider.STRIPE
    if not stripes:
        await tell.of_status("processing")
    tell.refund.status = StandInRefundStatus.SUCCEEDED
    if stripes:
        await tell.of_refund("refund.updated")
        await tell.of_charge()
    else:
        await tell.of_status("processed")
