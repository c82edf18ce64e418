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
