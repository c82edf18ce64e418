"""The outermost layer of every request: its body is bounded, its outcome counted and logged, no failure unanswered."""

from __future__ import annotations

import time
from typing import Any, Final
from urllib.parse import quote

import structlog
from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import metrics
from api.errors import error_answer, internal_error_answer
from engine.errors import TooLarge

_NOTES: Final = "lastportion.notes"
_QUIET: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_log = structlog.get_logger("api")


def note(request: Request, **facts: object) -> None:
    """Put ids beside the request's line in the log: reservation, order, tenant; never a key or a card."""
    notes = request.scope.get(_NOTES)
    if notes is not None:
        notes.update(facts)


class Shell:
    """ASGI middleware; ``body_limit_bytes`` holds for declared lengths and for what really comes, chunked or not."""

    def __init__(self, app: ASGIApp, body_limit_bytes: int) -> None:
        self._app = app
        self._limit = body_limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        scope[_NOTES] = {}
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, watched)
        except ClientDisconnect:
            _log.info("client_gone", method=scope["method"], path=_printable(scope["path"]), **scope[_NOTES])
        except Exception:
            _log.exception("request_broke", method=scope["method"], path=_printable(scope["path"]), **scope[_NOTES])
            if status:
                raise
            await internal_error_answer()(scope, receive, watched)
        finally:
            _account(scope, status, time.perf_counter() - started)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self._limit:
            await error_answer(TooLarge(limit_bytes=self._limit))(scope, receive, send)
            return
        read = 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > self._limit:
                    raise TooLarge(limit_bytes=self._limit)
            return message

        await self._app(scope, bounded, send)


def _printable(path: str) -> str:
    """The address as it is, or percent-encoded where it would steer a terminal or begin a line of its own."""
    return path if path.isprintable() else quote(path)


def _account(scope: Scope, status: int, seconds: float) -> None:
    route: Any = scope.get("route")
    template = getattr(route, "path", None) or "unmatched"
    metrics.count_request(scope["method"], template, status, seconds)
    if template not in _QUIET:
        _log.info(
            "request",
            method=scope["method"],
            path=_printable(scope["path"]),
            status=status,
            ms=round(seconds * 1000, 2),
            **scope[_NOTES],
        )
