"""Ids that we make: new ones, and those that follow from a caller's idempotency key.

An id is 21 lower-case letters and digits, 104 bits in base32: short, because one stands in Redis several times for as
long as its reservation lives, and easy to select, to read out and to put into a command line. A derived id needs no
store of keys: the same key always leads to the same thing, in any process.
"""

from __future__ import annotations

from base64 import b32encode
from hashlib import blake2b
from secrets import token_bytes

_BYTES = 13


def new_id() -> str:
    """An id that nobody has."""
    return _written(token_bytes(_BYTES))


def derived_id(kind: str, tenant: str, key: str) -> str:
    """The id of the ``kind`` of thing that this tenant's idempotency key stands for."""
    content = f"{kind}\0{tenant}\0{key}".encode(errors="surrogatepass")
    return _written(blake2b(content, digest_size=_BYTES).digest())


def _written(number: bytes) -> str:
    return b32encode(number).decode().rstrip("=").lower()
