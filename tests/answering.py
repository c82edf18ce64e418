"""A provider on loopback that gives the answers it was told, and remembers what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

Answer = tuple[int, bytes] | None
"""Status and body; None says that there is more to come and cuts the connection."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and its parameters as the check understood them."""

    method: str
    path: str
    params: dict[str, Any]
    headers: dict[str, str]


class Answers:
    """An ASGI app with one answer a call, the last one for all that follow.

    ``check`` is given method, path, query and body of each request; what it raises is raised by :meth:`all_asked`.
    """

    def __init__(self, check: Callable[[str, str, str, bytes], dict[str, Any]], *answers: Answer) -> None:
        self._answers = answers
        self._check = check
        self._wrong: list[Exception] = []
        self.calls = 0
        self.asked: list[Asked] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answers[min(self.calls, len(self._answers) - 1)]
        self.calls += 1
        self._note(scope, await _body(receive))
        status, body = answer or (200, b"{}")
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if 300 <= status < 400:
            head.append((b"location", b"/elsewhere"))
        await send({"type": "http.response.start", "status": status, "headers": head})
        if answer is not None:
            await send({"type": "http.response.body", "body": body})

    def all_asked(self) -> list[Asked]:
        """Every request, if each of them was one that the provider documents."""
        if self._wrong:
            raise self._wrong[0]
        return self.asked

    def _note(self, scope: Scope, body: bytes) -> None:
        path = scope["raw_path"].decode()
        try:
            params = self._check(scope["method"], path, scope["query_string"].decode(), body)
        except Exception as error:
            self._wrong.append(error)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.asked.append(Asked(scope["method"], path, params, headers))


def as_json(status: int, content: object) -> tuple[int, bytes]:
    """An answer in JSON."""
    return status, json.dumps(content).encode()


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return body
