"""What all request bodies share: strict types, no unknown fields, and the kinds of text that the contract names."""

from __future__ import annotations

import unicodedata
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from api.times import instant_from
from engine.domain import IDENTIFIER_PATTERN, LARGEST_CAP, LARGEST_PER_CUSTOMER, POOL_PATTERN

LONGEST_TEXT = 256
LONGEST_KEY = 255
_UNPRINTABLE = frozenset({"Cc", "Cs", "Cn", "Zl", "Zp"})


class Body(BaseModel):
    """A request body: an integer is no string, boolean or fraction, and a field that isn't known is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def is_printable(text: str) -> bool:
    """Whether text has no control character, line separator, surrogate or unassigned code point.

    Format characters pass: joiners are part of names in several scripts.
    """
    if text.isascii():
        return text.isprintable()
    return all(character.isprintable() or unicodedata.category(character) not in _UNPRINTABLE for character in text)


def _printable(text: str) -> str:
    if not is_printable(text):
        raise ValueError("must be printable text")
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _instant(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError("must be an RFC 3339 time with an offset, such as 2026-11-30T22:00:00Z")
    return instant_from(value)


Identifier = Annotated[str, StringConstraints(pattern=IDENTIFIER_PATTERN)]
"""An id: 1 to 128 characters of letters, digits and ``. _ - @ +``."""

PoolId = Annotated[str, StringConstraints(pattern=POOL_PATTERN)]
"""A pool's id, which may also hold ``/``."""

Customer = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_TEXT), AfterValidator(_printable)]
"""Any printable text up to 256 characters; compared as it is, neither trimmed nor folded."""

Printable = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_KEY), AfterValidator(_printable)]
"""Printable text up to 255 characters: names, references, reasons."""

InstantMs = Annotated[
    int, BeforeValidator(_instant), WithJsonSchema({"type": "string", "format": "date-time"}, mode="validation")
]
"""RFC 3339 with an offset on the wire; milliseconds since 1970 here."""

Cap = Annotated[int, Field(ge=0, le=LARGEST_CAP)]
PerCustomer = Annotated[int, Field(ge=1, le=LARGEST_PER_CUSTOMER)]
