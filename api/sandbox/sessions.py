"""The life of a stand-in session or transaction: made, paid, declined, paid later, expired; with its events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from api.sandbox.clock import now_ms
from api.sandbox.deliveries import Deliveries
from api.sandbox.paystack_objects import transaction_object
from api.sandbox.stripe_errors import StripeRefusal, no_such
from api.sandbox.stripe_lists import only, page_of
from api.sandbox.stripe_objects import COMPLETE, new_id, session_object, status_of
from api.sandbox.stripe_params import LONGEST_SECONDS, session_create
from engine.domain import Provider
from engine.errors import IllegalTransition, Unknown
from persistence.repositories.sandbox import SandboxRepository, SandboxStore
from persistence.tables.sandbox import SandboxEvent, SandboxSession, StandInState

COMPLETED = "checkout.session.completed"
EXPIRED = "checkout.session.expired"
SUCCEEDED_LATER = "checkout.session.async_payment_succeeded"
FAILED_LATER = "checkout.session.async_payment_failed"
CHARGED = "charge.success"


@dataclass(frozen=True, slots=True)
class Step:
    """What an act of the buyer makes of a session, from which states, and the event that tells of it, if any does."""

    to: StandInState
    event: str | None = None


_STRIPE_STEPS = {
    ("pay", StandInState.OPEN): Step(StandInState.PAID, COMPLETED),
    ("pay", StandInState.PENDING): Step(StandInState.PAID, SUCCEEDED_LATER),
    ("decline", StandInState.OPEN): Step(StandInState.OPEN),
    ("pay_later", StandInState.OPEN): Step(StandInState.PENDING, COMPLETED),
    ("fail_later", StandInState.PENDING): Step(StandInState.FAILED, FAILED_LATER),
    ("expire", StandInState.OPEN): Step(StandInState.EXPIRED, EXPIRED),
}

PAYSTACK_PAYABLE = (StandInState.OPEN, StandInState.ABANDONED, StandInState.FAILED)
"""Paystack closes nothing: whoever kept the page's address may pay after walking away and after a decline."""

_PAYSTACK_STEPS = {
    **{("pay", state): Step(StandInState.PAID, CHARGED) for state in (*PAYSTACK_PAYABLE, StandInState.PENDING)},
    **{("decline", state): Step(StandInState.FAILED) for state in PAYSTACK_PAYABLE},
    **{("pay_later", state): Step(StandInState.PENDING) for state in PAYSTACK_PAYABLE},
    **{("expire", state): Step(StandInState.ABANDONED) for state in PAYSTACK_PAYABLE},
    ("fail_later", StandInState.PENDING): Step(StandInState.FAILED),
}

_STEPS = {Provider.STRIPE: _STRIPE_STEPS, Provider.PAYSTACK: _PAYSTACK_STEPS}


class StandInSessions:
    """Sessions of the stand-in Stripe and transactions of the stand-in Paystack, for their APIs and their buyers."""

    def __init__(self, store: SandboxStore, deliveries: Deliveries, base_url: str) -> None:
        self._store = store
        self._deliveries = deliveries
        self._base_url = base_url

    async def create(self, repository: SandboxRepository, params: dict[str, Any]) -> dict[str, Any]:
        """A new session object. Raises ``StripeRefusal``."""
        now = await now_ms(repository)
        wanted = session_create(params, now / 1000)
        created_s = now // 1000
        session = SandboxSession(
            id=new_id("cs_test"),
            provider=Provider.STRIPE,
            state=StandInState.OPEN,
            amount_total=wanted.total,
            currency=wanted.currency,
            created_s=created_s,
            expires_at_s=wanted.expires_at or created_s + LONGEST_SECONDS,
            payment_intent=None,
            declines=0,
            params=wanted.model_dump(exclude_none=True),
        )
        await repository.add_session(session)
        return session_object(session, self._base_url)

    async def listed(self, repository: SandboxRepository, params: dict[str, Any]) -> dict[str, Any]:
        """Session objects, newest first. Raises ``StripeRefusal``."""
        only(params, "created", "status", "payment_intent", "limit", "starting_after", "expand")
        status = params.get("status")
        if status not in (None, "open", "complete", "expired"):
            raise StripeRefusal(400, "Invalid status: must be one of open, complete, or expired", param="status")
        found = [
            session_object(session, self._base_url)
            for session in await repository.sessions(Provider.STRIPE)
            if status in (None, status_of(session)) and params.get("payment_intent") in (None, session.payment_intent)
        ]
        return page_of("/v1/checkout/sessions", "checkout.session", found, params)

    async def retrieve(self, repository: SandboxRepository, session_id: str) -> dict[str, Any]:
        """A session object as it is now. Raises ``StripeRefusal`` (404)."""
        return session_object(await self._known_to_stripe(repository, session_id), self._base_url)

    async def close(self, repository: SandboxRepository, session_id: str, key: str | None) -> dict[str, Any]:
        """Expire an open session. Raises ``StripeRefusal`` for one that is complete or expired."""
        session = await self._known_to_stripe(repository, session_id)
        if session.state != StandInState.OPEN:
            raise StripeRefusal(
                400,
                'Only Checkout Sessions with a status in ["open"] can be expired. '
                f"This Checkout Session has a status of `{status_of(session)}`.",
            )
        await self._take(repository, session, _STRIPE_STEPS["expire", StandInState.OPEN], key=key)
        return session_object(session, self._base_url)

    async def find(self, session_id: str) -> SandboxSession:
        """A session as it is now. Raises ``Unknown``."""
        async with self._store.transaction() as repository:
            return await self.known(repository, session_id)

    async def act(self, session_id: str, act: str) -> tuple[SandboxSession, SandboxEvent | None, bool]:
        """Do what a buyer does; answers the session, its event, if there is one, and whether it arrived at once.

        Raises ``Unknown``, and ``IllegalTransition`` for an act that the session's state does not allow.
        """
        event: SandboxEvent | None = None
        async with self._store.transaction() as repository:
            session = await self.known(repository, session_id)
            found = session.state
            step = _STEPS[Provider(session.provider)].get((act, StandInState(found)))
            if step is not None:
                session.declines += act == "decline"
                event = await self._take(repository, session, step, taken=True)
        if step is None:
            # Raised after the transaction, so that an expiry noticed just now is kept.
            self._deliveries.wake()
            raise IllegalTransition(found, f"The session is {found}: {act} is not possible.")
        return session, event, event is not None and await self._deliveries.deliver_first(event)

    async def expire_due(self, limit: int = 50) -> int:
        """Expire sessions whose end has come, with their events; answers how many."""
        async with self._store.transaction() as repository:
            due = await repository.due_sessions(await now_ms(repository) // 1000, limit)
            for session in due:
                await self._take(repository, session, _STRIPE_STEPS["expire", StandInState.OPEN])
            return len(due)

    async def known(self, repository: SandboxRepository, session_id: str) -> SandboxSession:
        """A session, locked until the transaction ends, and expired if it was time. Raises ``Unknown``."""
        session = await repository.session(session_id) if "\0" not in session_id else None
        if session is None:
            raise Unknown("session", session_id[:100])
        ends_at_s = session.expires_at_s
        is_due = ends_at_s is not None and ends_at_s <= await now_ms(repository) // 1000
        if is_due and session.state == StandInState.OPEN:
            await self._take(repository, session, _STRIPE_STEPS["expire", StandInState.OPEN])
        return session

    async def _known_to_stripe(self, repository: SandboxRepository, session_id: str) -> SandboxSession:
        try:
            session = await self.known(repository, session_id)
        except Unknown as error:
            raise no_such("checkout.session", session_id[:100], "session") from error
        if session.provider != Provider.STRIPE:
            raise no_such("checkout.session", session_id[:100], "session")
        return session

    async def _take(
        self,
        repository: SandboxRepository,
        session: SandboxSession,
        step: Step,
        *,
        key: str | None = None,
        taken: bool = False,
    ) -> SandboxEvent | None:
        session.state = step.to
        if step.to == StandInState.PAID:
            session.paid_at_s = await now_ms(repository) // 1000
        provider = Provider(session.provider)
        if provider is Provider.STRIPE:
            if step.to in COMPLETE and session.payment_intent is None and session.amount_total > 0:
                session.payment_intent, session.charge = new_id("pi"), new_id("ch")
            about = session_object(session, self._base_url)
        else:
            about = transaction_object(session)
        if step.event is None:
            return None
        return await self._deliveries.add(
            repository, step.event, session.id, about, provider=provider, idempotency_key=key, taken=taken
        )
