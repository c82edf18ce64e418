"""The sandbox's own routes: the clock, the faults, what was asked of the stand-ins, and buyers by program."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from api.answers import json_answer
from api.body import read_body
from api.openapi import OPEN, takes
from api.sandbox.clock import FURTHEST_SECONDS
from api.sandbox.sessions import StandInSessions
from api.sandbox.stripe_objects import payment_status_of, status_of
from api.schemas.sandbox import ClockMove, FaultOrder, call_content, clock_content, event_content, session_content
from engine.errors import Invalid
from persistence.repositories.sandbox import CALLS_KEPT, SandboxStore
from persistence.tables.sandbox import FaultKind

ClockMoved = Callable[[int], Awaitable[None]]
"""Told the new offset of the test clock in ms, after it was stored."""


class Control:
    """Routes under ``/sandbox`` that tests and developers use. They need no key; the sandbox is never in production."""

    def __init__(
        self,
        store: SandboxStore,
        sessions: StandInSessions,
        clock_moved: ClockMoved,
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._clock_moved = clock_moved
        self._catch_up = catch_up
        self.router = APIRouter(tags=["sandbox"])
        add = self.router.add_api_route
        add("/clock", self.read_clock, methods=["GET"], openapi_extra=OPEN)
        add("/clock", self.move_clock, methods=["POST"], openapi_extra=OPEN | takes(ClockMove))
        add("/faults", self.order_fault, methods=["POST"], openapi_extra=OPEN | takes(FaultOrder))
        add("/calls", self.list_calls, methods=["GET"], openapi_extra=OPEN)
        add("/sessions/{session_id}", self.read_session, methods=["GET"], openapi_extra=OPEN)
        add("/sessions/{session_id}/decline", self.decline, methods=["POST"], openapi_extra=OPEN)
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
        """A stand-in session as it is now."""
        session = await self._sessions.find(session_id)
        return json_answer(session_content(session, status_of(session), payment_status_of(session)))

    async def decline(self, session_id: str) -> Response:
        """A card is refused; the session stays open."""
        session = await self._sessions.decline(session_id)
        return json_answer(session_content(session, status_of(session), payment_status_of(session)))

    async def act(self, session_id: str, act: Literal["pay", "pay_later", "fail_later", "expire"]) -> Response:
        """Pay, pay by a delayed method, have that fail, or let the session expire; with its webhook sent."""
        session, event, delivered = await self._sessions.act(session_id, act)
        content = session_content(session, status_of(session), payment_status_of(session))
        return json_answer(content | {"event": event_content(event, delivered=delivered)})
