"""Disputes at the stand-in Stripe: the buyer's bank asks for the money back, and one day decides."""

from __future__ import annotations

from api.sandbox.clock import now_ms
from api.sandbox.deliveries import Deliveries
from api.sandbox.stripe_objects import dispute_object, new_id
from engine.domain import Provider
from engine.errors import IllegalTransition, Unknown
from persistence.repositories.sandbox import SandboxStore
from persistence.tables.sandbox import (
    SandboxDispute,
    SandboxEvent,
    SandboxSession,
    StandInDisputeStatus,
    StandInState,
)


class StandInDisputes:
    """Opens and closes disputes, as a bank does. Both raise ``Unknown`` and ``IllegalTransition``."""

    def __init__(self, store: SandboxStore, deliveries: Deliveries) -> None:
        self._store = store
        self._deliveries = deliveries

    async def open(self, session_id: str) -> tuple[SandboxSession, SandboxEvent, bool]:
        """Dispute the whole of a paid Stripe session, once; answers it, the event and whether that arrived at once."""
        async with self._store.transaction() as repository:
            session = await repository.session(session_id) if "\0" not in session_id else None
            if session is None:
                raise Unknown("session", session_id[:100])
            if session.provider != Provider.STRIPE or session.state != StandInState.PAID or session.charge is None:
                raise IllegalTransition(session.state, "Only a paid Stripe session can be disputed.")
            if await repository.disputes_of(session_id):
                raise IllegalTransition("disputed", "The session is disputed already.")
            dispute = SandboxDispute(
                id=new_id("dp"),
                session_id=session_id,
                status=StandInDisputeStatus.NEEDS_RESPONSE,
                created_s=await now_ms(repository) // 1000,
            )
            repository.add_dispute(dispute)
            event = await self._deliveries.add(
                repository, "charge.dispute.created", session_id, dispute_object(dispute, session), taken=True
            )
        return session, event, await self._deliveries.deliver_first(event)

    async def close(self, dispute_id: str, outcome: StandInDisputeStatus) -> tuple[SandboxSession, SandboxEvent, bool]:
        """Decide a dispute; answers as :meth:`open` does."""
        async with self._store.transaction() as repository:
            dispute = await repository.dispute(dispute_id) if "\0" not in dispute_id else None
            session = await repository.session(dispute.session_id) if dispute is not None else None
            if dispute is None or session is None:
                raise Unknown("dispute", dispute_id[:100])
            if dispute.status != StandInDisputeStatus.NEEDS_RESPONSE:
                raise IllegalTransition(dispute.status, f"The dispute was {dispute.status} before.")
            dispute.status = outcome
            event = await self._deliveries.add(
                repository, "charge.dispute.closed", session.id, dispute_object(dispute, session), taken=True
            )
        return session, event, await self._deliveries.deliver_first(event)
