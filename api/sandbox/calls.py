"""A call to a stand-in: what was asked, what was answered, and what went wrong with it on request."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import orjson
from fastapi import Response
from starlette.types import Receive, Scope, Send

from api.sandbox.clock import moved_ms
from persistence.repositories.sandbox import SandboxStore
from persistence.tables.sandbox import FaultKind, FaultTarget, SandboxCall

DELAY_SECONDS = 2.0
"""What the fault ``delay`` adds to a call that is not about a refund."""


@dataclass(slots=True)
class Call:
    """One call to a stand-in while it is worked on. ``key`` is the idempotency key, at Stripe."""

    target: FaultTarget
    method: str
    path: str
    key: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    status: int | None = None
    body: dict[str, Any] = field(default_factory=dict)
    replayed: bool = False
    fault: FaultKind | None = None

    @property
    def fingerprint(self) -> str:
        """What has to be the same under one idempotency key."""
        asked = orjson.dumps([self.method, self.path, self.params], option=orjson.OPT_SORT_KEYS)
        return sha256(asked).hexdigest()

    @property
    def is_lost(self) -> bool:
        """Whether the caller gets no answer."""
        return self.fault in (FaultKind.DROP, FaultKind.TIMEOUT_AFTER_SUCCESS)

    @property
    def is_late(self) -> bool:
        """Whether the fault ``delay`` struck it."""
        return self.fault is FaultKind.DELAY


class BrokenOff(Response):
    """No answer: the head goes out and the connection is cut before the body, as when a server dies."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  (ASGI's signature)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})


READ_BY_JOBS = ("/v1/checkout/sessions", "/transaction")
"""Lists that jobs read by themselves, at times that nobody who asks for a fault knows: none is used up by them."""


async def take_fault(store: SandboxStore, call: Call) -> None:
    """Have the next fault of the call's target strike it, if one was asked for, unless a job reads what was paid."""
    if call.method == "GET" and call.path in READ_BY_JOBS:
        return
    async with store.transaction() as repository:
        call.fault = await repository.take_fault(call.target)


async def note(store: SandboxStore, call: Call) -> None:
    """Remember the call, whatever came of it."""
    async with store.transaction() as repository:
        await repository.add_call(
            SandboxCall(
                at_ms=moved_ms(await repository.offset_ms()),
                target=call.target,
                method=call.method,
                path=call.path[:500],
                idempotency_key=call.key[:255].replace("\0", "") if call.key is not None else None,
                params=call.params,
                status=None if call.is_lost else call.status,
                fault=call.fault,
            )
        )
