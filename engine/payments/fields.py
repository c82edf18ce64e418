"""Fields of what a provider sends: trusted as to who sent it, and still read with suspicion."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from engine.domain import IDENTIFIER_PATTERN
from engine.errors import MalformedBody

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_NAME = 255
"""Characters of an id, reference or type at most, as Stripe promises; the database's indexes end at a few thousand."""

LONGEST_URL = 5000

MARK_ORDER = "lastportion_order"
MARK_TENANT = "lastportion_tenant"
MARK_ATTEMPT = "lastportion_attempt"
MARK_RESERVATION = "lastportion_reservation"
MARK_REFUND = "lastportion_refund"
MARK_ROUND = "lastportion_round"
"""Keys of the metadata that say whose order, which attempt of it or which refund something at a provider is for."""

_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)
_LARGEST = 10**15
"""More than any currency is paid in; the database adds such amounts up in a bigint."""


def text_of(found: Mapping[str, Any], key: str, longest: int = LONGEST_NAME) -> str:
    """A text that is there, can be stored and is not longer than ``longest``. Raises ``MalformedBody``."""
    value = found.get(key)
    if not isinstance(value, str) or not value or "\0" in value or len(value) > longest:
        raise MalformedBody(f"{key!r} is not a text of 1 to {longest} characters.")
    return value


def optional_text(found: Mapping[str, Any], key: str, longest: int = LONGEST_NAME) -> str | None:
    """As :func:`text_of`; None where the field is null or missing."""
    return None if found.get(key) is None else text_of(found, key, longest)


def integer_of(found: Mapping[str, Any], key: str) -> int:
    """A whole number from 0 to what the database can hold. Raises ``MalformedBody``."""
    value = found.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise MalformedBody(f"{key!r} is not a whole number.")
    return value


def optional_integer(found: Mapping[str, Any], key: str) -> int | None:
    """As :func:`integer_of`; None where the field is null or missing."""
    return None if found.get(key) is None else integer_of(found, key)


def mapping_of(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object in an object. Raises ``MalformedBody``."""
    value = found.get(key)
    if not isinstance(value, dict):
        raise MalformedBody(f"{key!r} is not an object.")
    return value


def mark_of(metadata: Mapping[str, Any], key: str) -> str | None:
    """The id in one of our marks; None for what is no id of ours, since metadata is a help and not a need."""
    value = metadata.get(key)
    return value if isinstance(value, str) and _IDENTIFIER.fullmatch(value) else None


def number_mark_of(metadata: Mapping[str, Any], key: str) -> int | None:
    """The number in one of our marks; a mark that somebody else wrote names none."""
    value = metadata.get(key)
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10 else None
