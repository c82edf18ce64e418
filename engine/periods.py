"""Periods: the stretches of time that a code's cap is counted under, and the keys that name them.

A period begins at a wall midnight in its rule's zone. Where that midnight falls into a gap of the clock it moves
forward by the gap; where the clock shows it twice the first is meant. So periods neither overlap nor leave a hole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from zoneinfo import ZoneInfo

from engine.errors import Invalid

WHOLE_TIME = "all"
"""The key of the one period of a rule of kind ``none``."""

_STARTS = re.compile(r"(\d\d)-(\d\d)", re.ASCII)
_YEARS = re.compile(r"(\d{4})-(\d\d)", re.ASCII)
_YEAR = re.compile(r"\d{4}", re.ASCII)
_OF_NO_PLACE = re.compile(r"(localtime|posixrules|Factory)$|(posix|right)/")
"""Found among the zones on some machines only: what a machine is set to, a blank, and copies, of which those under
``right`` count leap seconds."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COMMON_YEAR = 2001
"""A year without 29 February: a period that starts on a day which most years lack can't be counted."""


class PeriodKind(StrEnum):
    """How long a period lasts."""

    ACADEMIC_YEAR = "academic_year"
    CALENDAR_YEAR = "calendar_year"
    MONTH = "month"
    NONE = "none"


@lru_cache(maxsize=1024)
def zone_named(name: str) -> ZoneInfo:
    """The IANA zone. Raises ``Invalid`` when there is none of that name."""
    try:
        if _OF_NO_PLACE.match(name):
            raise ValueError("a file beside the zones")
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        # A folder of zones, a path and an over-long name each raise another of these.
        raise Invalid(
            f"There is no time zone {name[:64]!r}.", fields={"period.timezone": "must be an IANA time zone"}
        ) from error


@dataclass(frozen=True, slots=True)
class PeriodRule:
    """How a code's periods are cut. ``starts`` is the first day (MM-DD) of an academic year.

    Raises ``Invalid`` for a day that not every year has, and for a zone that doesn't exist.
    """

    kind: PeriodKind
    timezone: str = "UTC"
    starts: str = "09-01"

    def __post_init__(self) -> None:
        zone_named(self.timezone)
        self.first_day()

    def first_day(self) -> tuple[int, int]:
        """Month and day on which an academic year starts."""
        match = _STARTS.fullmatch(self.starts)
        try:
            if match is None:
                raise ValueError("not MM-DD")
            day = datetime(_COMMON_YEAR, int(match[1]), int(match[2]), tzinfo=UTC)
        except ValueError as error:
            raise Invalid(
                f"No period can start on {self.starts[:16]!r}.",
                fields={"period.starts": "must be a day that every year has, as MM-DD"},
            ) from error
        return day.month, day.day


def period_of(rule: PeriodRule, at_ms: int) -> str:
    """The key of the period that an instant lies in, e.g. ``2026-27``, ``2026``, ``2026-11`` or ``all``.

    Raises ``Invalid`` outside the years 1000 to 9998, which a key of four digits can't name.
    """
    if rule.kind is PeriodKind.NONE:
        return WHOLE_TIME
    try:
        local = (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(zone_named(rule.timezone))
    except OverflowError as error:
        raise _out_of_range() from error
    if not 1001 <= local.year <= 9997:
        raise _out_of_range()
    # The wall date alone misleads for the hour that a clock shows twice around midnight; the instants decide.
    for ordinal in range(_ordinal(rule, local) + 1, _ordinal(rule, local) - 3, -1):
        if _start_ms(rule, ordinal) <= at_ms:
            return _key(rule, ordinal)
    raise AssertionError("every instant lies in a period")


def bounds_of(rule: PeriodRule, key: str) -> tuple[int | None, int | None]:
    """First instant of a period and of the one after it, in ms; None on both sides for ``all``.

    Raises ``Invalid`` when the rule has no period of that key.
    """
    if rule.kind is PeriodKind.NONE and key == WHOLE_TIME:
        return None, None
    ordinal = _parsed(rule, key)
    if ordinal is None:
        raise Invalid(
            f"There is no period {key[:32]!r}.",
            fields={"period": f"must be a key such as {_example(rule)!r}"},
        )
    return _start_ms(rule, ordinal), _start_ms(rule, ordinal + 1)


def _ordinal(rule: PeriodRule, local: datetime) -> int:
    """The number of the period by the wall date: the year, or the months since year 0."""
    return local.year * 12 + local.month - 1 if rule.kind is PeriodKind.MONTH else local.year


def _start_ms(rule: PeriodRule, ordinal: int) -> int:
    if rule.kind is PeriodKind.MONTH:
        year, month, day = ordinal // 12, ordinal % 12 + 1, 1
    elif rule.kind is PeriodKind.ACADEMIC_YEAR:
        year, (month, day) = ordinal, rule.first_day()
    else:
        year, month, day = ordinal, 1, 1
    # fold=0 is the first of two equal wall times; in a gap it takes the offset before it, which moves forward.
    midnight = datetime(year, month, day, tzinfo=zone_named(rule.timezone))
    return (midnight.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)


def _key(rule: PeriodRule, ordinal: int) -> str:
    if rule.kind is PeriodKind.MONTH:
        return f"{ordinal // 12:04d}-{ordinal % 12 + 1:02d}"
    if rule.kind is PeriodKind.ACADEMIC_YEAR:
        return f"{ordinal:04d}-{(ordinal + 1) % 100:02d}"
    return f"{ordinal:04d}"


def _parsed(rule: PeriodRule, key: str) -> int | None:
    """The inverse of :func:`_key`; None when the key isn't one of the rule's."""
    ordinal: int | None = None
    if rule.kind is PeriodKind.CALENDAR_YEAR and _YEAR.fullmatch(key):
        ordinal = int(key)
    elif rule.kind in (PeriodKind.ACADEMIC_YEAR, PeriodKind.MONTH) and (match := _YEARS.fullmatch(key)):
        year, second = int(match[1]), int(match[2])
        if rule.kind is PeriodKind.ACADEMIC_YEAR:
            ordinal = year if second == (year + 1) % 100 else None
        elif 1 <= second <= 12:
            ordinal = year * 12 + second - 1
    if ordinal is None:
        return None
    year = ordinal // 12 if rule.kind is PeriodKind.MONTH else ordinal
    return ordinal if 1000 <= year <= 9998 else None


def _example(rule: PeriodRule) -> str:
    return {
        PeriodKind.ACADEMIC_YEAR: "2026-27",
        PeriodKind.CALENDAR_YEAR: "2026",
        PeriodKind.MONTH: "2026-11",
        PeriodKind.NONE: WHOLE_TIME,
    }[rule.kind]


def _out_of_range() -> Invalid:
    return Invalid("The instant lies outside the years that a period can name.")
