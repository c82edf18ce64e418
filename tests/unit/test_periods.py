"""Period keys and bounds: the cases by name, and that periods tile all of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Invalid
from engine.periods import PeriodKind, PeriodRule, bounds_of, period_of

LONDON = PeriodRule(PeriodKind.ACADEMIC_YEAR, "Europe/London")


def ms(text: str, zone: str = "UTC", fold: int = 0) -> int:
    at = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return (at.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@pytest.mark.parametrize("zone", ["Europe/London", "America/New_York", "Asia/Tokyo", "Africa/Lagos"])
def test_the_school_year_turns_at_midnight_of_its_own_zone(zone: str) -> None:
    rule = PeriodRule(PeriodKind.ACADEMIC_YEAR, zone)
    assert period_of(rule, ms("2027-08-31T12:00", zone)) == "2026-27"
    assert period_of(rule, ms("2027-09-01T00:00", zone) - 1) == "2026-27"
    assert period_of(rule, ms("2027-09-01T00:00", zone)) == "2027-28"
    assert period_of(rule, ms("2027-09-01T12:00", zone)) == "2027-28"


def test_the_zone_decides_not_utc() -> None:
    just_before_in_london = ms("2027-08-31T22:59:59")
    assert period_of(LONDON, just_before_in_london) == "2026-27"
    assert period_of(LONDON, just_before_in_london + 1000) == "2027-28"
    assert period_of(PeriodRule(PeriodKind.ACADEMIC_YEAR, "UTC"), just_before_in_london + 1000) == "2026-27"


@pytest.mark.parametrize(
    ("rule", "at", "key"),
    [
        (LONDON, "2099-10-01T00:00", "2099-00"),
        (LONDON, "2008-09-02T00:00", "2008-09"),
        (PeriodRule(PeriodKind.ACADEMIC_YEAR, "UTC", "01-01"), "2026-01-01T00:00", "2026-27"),
        (PeriodRule(PeriodKind.ACADEMIC_YEAR, "UTC", "04-06"), "2027-04-05T23:59", "2026-27"),
        (PeriodRule(PeriodKind.CALENDAR_YEAR, "UTC"), "2026-12-31T23:59", "2026"),
        (PeriodRule(PeriodKind.CALENDAR_YEAR, "UTC"), "2027-01-01T00:00", "2027"),
        (PeriodRule(PeriodKind.MONTH, "UTC"), "2026-11-30T23:59", "2026-11"),
        (PeriodRule(PeriodKind.MONTH, "UTC"), "2026-12-01T00:00", "2026-12"),
        (PeriodRule(PeriodKind.MONTH, "UTC"), "2027-01-01T00:00", "2027-01"),
        (PeriodRule(PeriodKind.NONE), "2026-11-30T23:59", "all"),
    ],
)
def test_keys(rule: PeriodRule, at: str, key: str) -> None:
    assert period_of(rule, ms(at)) == key


def test_a_midnight_in_the_gap_moves_forward_and_one_in_the_fold_is_the_first() -> None:
    # Beirut skips the hour after midnight on 26 March 2017; Havana shows it twice on 1 November 2015.
    gap = PeriodRule(PeriodKind.ACADEMIC_YEAR, "Asia/Beirut", "03-26")
    assert bounds_of(gap, "2017-18")[0] == ms("2017-03-26T01:00", "Asia/Beirut")
    fold = PeriodRule(PeriodKind.MONTH, "America/Havana")
    first, second = ms("2015-11-01T00:30", "America/Havana"), ms("2015-11-01T00:30", "America/Havana", fold=1)
    assert second - first == 3_600_000
    assert [period_of(fold, at) for at in (first, second)] == ["2015-11", "2015-11"]
    assert bounds_of(fold, "2015-11")[0] == first - 30 * 60_000


def test_a_date_that_the_zone_left_out_still_bounds_its_periods() -> None:
    # Samoa had no 30 December 2011.
    rule = PeriodRule(PeriodKind.ACADEMIC_YEAR, "Pacific/Apia", "12-30")
    start, _ = bounds_of(rule, "2011-12")
    assert start is not None
    assert period_of(rule, start - 1) == "2010-11"
    assert period_of(rule, start) == "2011-12"


@pytest.mark.parametrize(
    "starts", ["02-29", "13-01", "00-10", "04-31", "9-1", "09/01", "", "09-01x", "\u0660\u0669-\u0660\u0661"]
)
def test_a_start_that_not_every_year_has_is_refused(starts: str) -> None:
    with pytest.raises(Invalid):
        PeriodRule(PeriodKind.ACADEMIC_YEAR, "UTC", starts)


OF_NO_PLACE = ["localtime", "posixrules", "Factory", "right/Europe/London", "posix/Europe/London"]
"""Files that a machine may have among its zones: what it is set to, zones that count leap seconds, and a blank."""


@pytest.mark.parametrize(
    "zone",
    ["", "Nowhere/Land", "../etc/passwd", "Europe", "a\0b", "x" * 300, "/etc/localtime", *OF_NO_PLACE],
)
def test_a_zone_that_does_not_exist_is_refused(zone: str) -> None:
    with pytest.raises(Invalid):
        PeriodRule(PeriodKind.MONTH, zone)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (PeriodKind.ACADEMIC_YEAR, "2026-28"),
        (PeriodKind.ACADEMIC_YEAR, "2026"),
        (PeriodKind.ACADEMIC_YEAR, "all"),
        (PeriodKind.CALENDAR_YEAR, "2026-27"),
        (PeriodKind.CALENDAR_YEAR, "0000"),
        (PeriodKind.MONTH, "2026-13"),
        (PeriodKind.MONTH, "2026-00"),
        (PeriodKind.NONE, "2026"),
        (PeriodKind.MONTH, "\u0662\u0660\u0662\u0666-\u0661\u0661"),
    ],
)
def test_a_key_of_another_rule_is_refused(kind: PeriodKind, key: str) -> None:
    with pytest.raises(Invalid):
        bounds_of(PeriodRule(kind), key)


ZONES = ["UTC", "Europe/London", "America/New_York", "America/Havana", "Asia/Beirut", "Pacific/Apia", "Asia/Kathmandu"]
RULES = st.builds(
    PeriodRule,
    kind=st.sampled_from([PeriodKind.ACADEMIC_YEAR, PeriodKind.CALENDAR_YEAR, PeriodKind.MONTH]),
    timezone=st.sampled_from(ZONES),
    starts=st.sampled_from(["09-01", "01-01", "12-31", "02-28", "03-26", "10-31", "12-30"]),
)
INSTANTS = st.integers(min_value=0, max_value=ms("2150-01-01T00:00"))


@given(RULES, INSTANTS)
def test_every_instant_lies_in_the_one_period_that_names_it(rule: PeriodRule, at_ms: int) -> None:
    start, end = bounds_of(rule, period_of(rule, at_ms))
    assert start is not None
    assert end is not None
    assert start <= at_ms < end
    assert period_of(rule, start) == period_of(rule, end - 1) == period_of(rule, at_ms)
    following = period_of(rule, end)
    assert following != period_of(rule, at_ms)
    assert bounds_of(rule, following)[0] == end


@given(INSTANTS)
def test_without_periods_there_is_one_for_all_time(at_ms: int) -> None:
    rule = PeriodRule(PeriodKind.NONE)
    assert period_of(rule, at_ms) == "all"
    assert bounds_of(rule, "all") == (None, None)
