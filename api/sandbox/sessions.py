"""The life of a stand-in session: made, paid, declined, paid later, expired; and the events that tell of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from api.sandbox.clock import now_ms
from api.sandbox.deliveries import Deliveries
from api.sandbox.stripe_errors import StripeRefusal, no_such
from api.sandbox.stripe_objects import COMPLETE, new_id, session_object, status_of
from api.sandbox.stripe_params import LONGEST_SECONDS, session_create
from engine.errors import IllegalTransition, Unknown
from persistence.repositories.sandbox import SandboxRepository, SandboxStore
from persistence.tables.sandbox import SandboxEvent, SandboxSession, StandInState

COMPLETED = "checkout.session.completed"
EXPIRED = "checkout.session.expired"
SUCCEEDED_LATER = "checkout.session.async_payment_succeeded"
FAILED_LATER = "checkout.session.async_payment_failed"


@dataclass(frozen=True, slots=True)
class Step:
    """What an act of the buyer makes of a session, from which states, and the event that tells of it."""

    to: StandInState
    event: str


_STEPS = {
    ("pay", StandInState.OPEN): Step(StandInState.PAID, COMPLETED),
    ("pay", StandInState.PENDING): Step(StandInState.PAID, SUCCEEDED_LATER),
    ("pay_later", StandInState.OPEN): Step(StandInState.PENDING, COMPLETED),
    ("fail_later", StandInState.PENDING): Step(StandInState.FAILED, FAILED_LATER),
    ("expire", StandInState.OPEN): Step(StandInState.EXPIRED, EXPIRED),
}


class StandInSessions:
    """Sessions of the stand-in Stripe, for its API and for its buyers."""

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
            state=StandInState.OPEN,
            amount_total=wanted.total,
            currency=wanted.currency,
            created_s=created_s,
            expires_at_s=wanted.expires_at or created_s + LONGEST_SECONDS,
            payment_intent=None,
            declines=0,
            params=wanted.model_dump(exclude_none=True),
        )
        repository.add_session(session)
        return session_object(session, self._base_url)

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
        await self._take(repository, session, _STEPS["expire", StandInState.OPEN], key=key)
        return session_object(session, self._base_url)

    async def find(self, session_id: str) -> SandboxSession:
        """A session as it is now. Raises ``Unknown``."""
        async with self._store.transaction() as repository:
            return await self._known(repository, session_id)

    async def act(self, session_id: str, act: str) -> tuple[SandboxSession, SandboxEvent, bool]:
        """Do what a buyer does; answers the session, its event and whether that was delivered at once.

        Raises ``Unknown``, and ``IllegalTransition`` for an act that the session's state does not allow.
        """
        refused = ""
        event: SandboxEvent | None = None
        async with self._store.transaction() as repository:
            session = await self._known(repository, session_id)
            step = _STEPS.get((act, StandInState(session.state)))
            if step is None:
                # Raised after the transaction, so that an expiry noticed just now is kept.
                refused = session.state
            else:
                event = await self._take(repository, session, step, taken=True)
        if event is None:
            self._deliveries.wake()
            raise IllegalTransition(refused, f"The session is {refused}: {act} is not possible.")
        return session, event, await self._deliveries.deliver_first(event)

    async def decline(self, session_id: str) -> SandboxSession:
        """A card refused: the session stays open for another. Raises as :meth:`act` does."""
        async with self._store.transaction() as repository:
            session = await self._known(repository, session_id)
            if session.state == StandInState.OPEN:
                session.declines += 1
        if session.state != StandInState.OPEN:
            raise IllegalTransition(session.state, f"The session is {session.state}: decline is not possible.")
        return session

    async def expire_due(self, limit: int = 50) -> int:
        """Expire sessions whose end has come, with their events; answers how many."""
        async with self._store.transaction() as repository:
            due = await repository.due_sessions(await now_ms(repository) // 1000, limit)
            for session in due:
                await self._take(repository, session, _STEPS["expire", StandInState.OPEN])
            return len(due)

    async def _known_to_stripe(self, repository: SandboxRepository, session_id: str) -> SandboxSession:
        try:
            return await self._known(repository, session_id)
        except Unknown as error:
            raise no_such("checkout.session", session_id[:100], "session") from error

    async def _known(self, repository: SandboxRepository, session_id: str) -> SandboxSession:
        session = await repository.session(session_id) if "\0" not in session_id else None
        if session is None:
            raise Unknown("session", session_id[:100])
        if session.state == StandInState.OPEN and session.expires_at_s <= await now_ms(repository) // 1000:
            await self._take(repository, session, _STEPS["expire", StandInState.OPEN])
        return session

    async def _take(
        self,
        repository: SandboxRepository,
        session: SandboxSession,
        step: Step,
        *,
        key: str | None = None,
        taken: bool = False,
    ) -> SandboxEvent:
        session.state = step.to
        if step.to in COMPLETE and session.payment_intent is None and session.amount_total > 0:
            session.payment_intent = new_id("pi")
        about = session_object(session, self._base_url)
        return await self._deliveries.add(repository, step.event, session.id, about, idempotency_key=key, taken=taken)
