"""Ids that we make: new ones, and those that follow from a caller's idempotency key.

An id is 20 characters of base64url, 120 bits. Short ids matter: one stands in Redis several times for as long as its
reservation lives. A derived id needs no store of keys: the same key always leads to the same thing, in any process.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from secrets import token_bytes

_BYTES = 15


def new_id() -> str:
    """An id that nobody has."""
    return urlsafe_b64encode(token_bytes(_BYTES)).decode()


def derived_id(kind: str, tenant: str, key: str) -> str:
    """The id of the ``kind`` of thing that this tenant's idempotency key stands for."""
    content = f"{kind}\0{tenant}\0{key}".encode(errors="surrogatepass")
    return urlsafe_b64encode(blake2b(content, digest_size=_BYTES).digest()).decode()
