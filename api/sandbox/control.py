"""The sandbox's own routes: the clock, the faults, what was asked of the stand-ins, and buyers by program."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from api.answers import json_answer
from api.body import read_body
from api.openapi import OPEN, takes
from api.sandbox.clock import FURTHEST_SECONDS
from api.sandbox.disputes import StandInDisputes
from api.sandbox.paystack_objects import transaction_status
from api.sandbox.refunds import StandInRefunds, refunded_of
from api.sandbox.sessions import StandInSessions
from api.sandbox.stripe_objects import payment_status_of, status_of
from api.schemas.sandbox import (
    ClockMove,
    DashboardRefund,
    FaultOrder,
    SessionWords,
    call_content,
    clock_content,
    event_content,
    session_content,
)
from engine.domain import Provider
from engine.errors import Invalid
from engine.money import to_stripe
from persistence.repositories.sandbox import CALLS_KEPT, SandboxStore
from persistence.tables.sandbox import FaultKind, SandboxEvent, StandInDisputeStatus

ClockMoved = Callable[[int], Awaitable[None]]
"""Told the new offset of the test clock in ms, after it was stored."""


class Control:
    """Routes under ``/sandbox`` that tests and developers use. They need no key; the sandbox is never in production."""

    def __init__(
        self,
        store: SandboxStore,
        sessions: StandInSessions,
        refunds: StandInRefunds,
        disputes: StandInDisputes,
        *,
        clock_moved: ClockMoved,
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._refunds = refunds
        self._disputes = disputes
        self._clock_moved = clock_moved
        self._catch_up = catch_up
        self.router = APIRouter(tags=["sandbox"])
        add = self.router.add_api_route
        add("/clock", self.read_clock, methods=["GET"], openapi_extra=OPEN)
        add("/clock", self.move_clock, methods=["POST"], openapi_extra=OPEN | takes(ClockMove))
        add("/faults", self.order_fault, methods=["POST"], openapi_extra=OPEN | takes(FaultOrder))
        add("/calls", self.list_calls, methods=["GET"], openapi_extra=OPEN)
        add("/sessions/{session_id}", self.read_session, methods=["GET"], openapi_extra=OPEN)
        add("/sessions/{session_id}/refund", self.refund, methods=["POST"], openapi_extra=OPEN | takes(DashboardRefund))
        add("/sessions/{session_id}/dispute", self.dispute, methods=["POST"], openapi_extra=OPEN)
        add("/refunds/{refund_id}/fail", self.fail_refund, methods=["POST"], openapi_extra=OPEN)
        add("/disputes/{dispute_id}/{outcome}", self.close_dispute, methods=["POST"], openapi_extra=OPEN)
        add("/sessions/{session_id}/{act}", self.act, methods=["POST"], openapi_extra=OPEN)

    async def read_clock(self) -> Response:
        """The test clock, and how far it is ahead of the machine's."""
        async with self._store.transaction() as repository:
            offset_ms = await repository.offset_ms()
        return json_answer(clock_content(offset_ms))

    async def move_clock(self, request: Request) -> Response:
        """Move every clock of the sandboxed system forward; what falls due meanwhile happens before the answer."""
        move = await read_body(request, ClockMove)
        by_ms = max(1, round(move.advance_seconds * 1000))
        async with self._store.transaction() as repository:
            offset_ms = await repository.advance(by_ms)
            if offset_ms > FURTHEST_SECONDS * 1000:
                raise Invalid(
                    "The test clock can't go that far.",
                    fields={"advance_seconds": f"all moves together may reach {FURTHEST_SECONDS} seconds"},
                )
        await self._clock_moved(offset_ms)
        await self._catch_up()
        return json_answer(clock_content(offset_ms))

    async def order_fault(self, request: Request) -> Response:
        """Have the next calls or webhooks go wrong; ``forget_keys`` acts at once."""
        order = await read_body(request, FaultOrder)
        async with self._store.transaction() as repository:
            if order.kind is FaultKind.FORGET_KEYS:
                await repository.forget_keys()
            else:
                repository.add_fault(order.target, order.kind, order.count)
        return json_answer({"target": order.target, "kind": order.kind, "count": order.count})

    async def list_calls(self, limit: Annotated[int, Query(ge=1, le=CALLS_KEPT)] = CALLS_KEPT) -> Response:
        """What was asked of the stand-ins, newest last; API keys are not kept."""
        async with self._store.transaction() as repository:
            calls = await repository.calls(limit)
        return json_answer({"calls": [call_content(call) for call in calls]})

    async def read_session(self, session_id: str) -> Response:
        """A stand-in session or transaction as it is now, with what went back of it."""
        await self._sessions.find(session_id)
        return json_answer(await self._content(session_id))

    async def act(
        self, session_id: str, act: Literal["pay", "decline", "pay_later", "fail_later", "expire"]
    ) -> Response:
        """Pay, have the card declined, pay by a delayed method, have that fail, or walk away; with its webhook sent."""
        _, event, delivered = await self._sessions.act(session_id, act)
        told = None if event is None else event_content(event, delivered=delivered)
        return json_answer(await self._content(session_id) | {"event": told})

    async def refund(self, request: Request, session_id: str) -> Response:
        """Send money back as from the provider's dashboard, all that is left where no amount is named."""
        wanted = await read_body(request, DashboardRefund, may_be_empty=True)
        session = await self._sessions.find(session_id)
        amount = wanted.amount_minor
        if amount is not None and session.provider == Provider.STRIPE:
            amount = to_stripe(amount, session.currency)
        _, told = await self._refunds.ask(session_id, amount)
        return json_answer(await self._content(session_id) | {"events": _contents(told)})

    async def fail_refund(self, refund_id: str) -> Response:
        """Have a refund fail after all."""
        session, told = await self._refunds.fail(refund_id)
        return json_answer(await self._content(session.id) | {"events": _contents(told)})

    async def dispute(self, session_id: str) -> Response:
        """Have the buyer's bank ask for the money back; at Stripe only."""
        _, event, delivered = await self._disputes.open(session_id)
        return json_answer(await self._content(session_id) | {"event": event_content(event, delivered=delivered)})

    async def close_dispute(self, dispute_id: str, outcome: Literal["won", "lost"]) -> Response:
        """Decide a dispute."""
        session, event, delivered = await self._disputes.close(dispute_id, StandInDisputeStatus(outcome))
        return json_answer(await self._content(session.id) | {"event": event_content(event, delivered=delivered)})

    async def _content(self, session_id: str) -> dict[str, Any]:
        async with self._store.transaction() as repository:
            session = await self._sessions.known(repository, session_id)
            refunds = await repository.refunds_of(session_id)
            disputes = await repository.disputes_of(session_id)
            back = await refunded_of(repository, session_id)
        stripes = session.provider == Provider.STRIPE
        words = SessionWords(
            status=status_of(session) if stripes else transaction_status(session, back),
            payment_status=payment_status_of(session),
        )
        return session_content(session, words, refunds, disputes)


def _contents(told: list[tuple[SandboxEvent, bool]]) -> list[dict[str, Any]]:
    return [event_content(event, delivered=delivered) for event, delivered in told]
