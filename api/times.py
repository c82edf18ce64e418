"""Instants on the wire: RFC 3339 with an offset in, UTC out, to the millisecond."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_RFC_3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+-])([01]\d|2[0-3]):([0-5]\d))", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant_from(text: str) -> int:
    """Milliseconds since 1970 of an RFC 3339 time; digits past the millisecond are cut off.

    Raises ``ValueError`` with a sentence when it isn't one, has no offset, or lies before 1970.
    """
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise ValueError("must be an RFC 3339 time with an offset, such as 2026-11-30T22:00:00Z")
    day, clock, fraction, _, sign, hours, minutes = match.groups()
    try:
        local = datetime.fromisoformat(f"{day}T{clock}+00:00")
        offset = timedelta(hours=int(hours), minutes=int(minutes)) if sign else timedelta()
        at = local + offset if sign == "-" else local - offset
    except (ValueError, OverflowError) as error:
        raise ValueError("must be a time that exists") from error
    if at < _EPOCH:
        raise ValueError("must not lie before 1970")
    return int((at - _EPOCH).total_seconds()) * 1000 + int(((fraction or "") + "000")[:3])


def written(at_ms: int) -> str:
    """An instant in UTC, with milliseconds only where there are any: ``2026-11-30T22:00:00Z``."""
    seconds, milliseconds = divmod(at_ms, 1000)
    text = _second(seconds)
    return f"{text}.{milliseconds:03d}Z" if milliseconds else f"{text}Z"


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    # Reservations made at one time begin and mostly end in the same few seconds.
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


def written_or_none(at_ms: int | None) -> str | None:
    """As :func:`written`; None stays None."""
    return None if at_ms is None else written(at_ms)


def written_instant(at: datetime) -> str:
    """A database's instant, as :func:`written`."""
    return written((at - _EPOCH) // timedelta(milliseconds=1))
