"""What the failure of an HTTP call tells about whether the provider has heard of it."""

from __future__ import annotations

import httpx

NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)
"""What httpx raises before the first byte of a request is on the wire."""

_OUT_OF_ORDER = (401, 403, 429)
"""A key that is not taken just now, and too many calls: neither is about what was asked."""


def is_final_status(http_status: int | None) -> bool:
    """Whether a refusal with this status (None: nothing was sent) is about what was asked, and not about the moment."""
    return http_status is not None and 400 <= http_status < 500 and http_status not in _OUT_OF_ORDER
