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

_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)


def text_of(found: Mapping[str, Any], key: str, longest: int = LONGEST_NAME) -> str:
    """A text that is there, can be stored and is not longer than ``longest``. Raises ``MalformedBody``."""
    value = found.get(key)
    if not isinstance(value, str) or not value or "\0" in value or len(value) > longest:
        raise MalformedBody(f"{key!r} is not a text of 1 to {longest} characters.")
    return value


def mark_of(metadata: Mapping[str, Any], key: str) -> str | None:
    """The id in one of our marks; None for what is no id of ours, since metadata is a help and not a need."""
    value = metadata.get(key)
    return value if isinstance(value, str) and _IDENTIFIER.fullmatch(value) else None
