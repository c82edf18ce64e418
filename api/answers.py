"""JSON answers, written once by orjson; no response model is checked a second time on the way out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import Response

_JSON = (b"content-type", b"application/json")


class JsonAnswer(Response):
    """A response whose body is ready: starlette's, less the work of guessing headers."""

    media_type = "application/json"

    def __init__(self, body: bytes, status: int, headers: Mapping[str, str] | None = None) -> None:
        self.status_code = status
        self.background = None
        self.body = body
        self.raw_headers = [(b"content-length", b"%d" % len(body)), _JSON]
        if headers:
            self.raw_headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``content`` as JSON under ``status``."""
    return JsonAnswer(orjson.dumps(content), status, headers)
