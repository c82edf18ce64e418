"""Currencies, Stripe's units, and the rounding of discounts. Expected values are literals."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Invalid
from engine.money import (
    amount_discount,
    check_amount,
    check_currency,
    exponent,
    from_stripe,
    payable_step,
    percent_discount,
    show,
    spread_discount,
    to_stripe,
)


@pytest.mark.parametrize(
    ("currency", "minor", "sent"),
    [
        ("GBP", 1250, 1250),
        ("JPY", 80, 80),
        ("KRW", 80, 80),
        ("MGA", 80, 80),
        ("XOF", 80, 80),
        ("KWD", 18600, 18600),
        ("BHD", 35200, 35200),
        ("UGX", 100, 10000),
        ("ISK", 100, 10000),
    ],
)
def test_an_amount_goes_to_stripe_in_its_unit_and_comes_back(currency: str, minor: int, sent: int) -> None:
    assert to_stripe(minor, currency) == sent
    assert from_stripe(sent, currency.lower()) == minor


def test_an_amount_that_is_no_whole_number_of_shillings_equals_no_orders() -> None:
    assert from_stripe(10050, "ugx") is None


@pytest.mark.parametrize("currency", ["", "XXX", "GB", "GBPP", "BTC", "£", "\u017fek", "GBP\0", "KWD "])
def test_a_currency_that_is_not_known_is_refused(currency: str) -> None:
    for refused in (check_currency, exponent, payable_step):
        with pytest.raises(Invalid):
            refused(currency)
    with pytest.raises(Invalid):
        to_stripe(100, currency)


@pytest.mark.parametrize(
    ("currency", "places"), [("GBP", 2), ("ngn", 2), ("JPY", 0), ("UGX", 0), ("ISK", 0), ("KWD", 3), ("TND", 3)]
)
def test_the_minor_unit_has_the_places_of_iso_4217(currency: str, places: int) -> None:
    assert exponent(currency) == places


@pytest.mark.parametrize(("amount", "currency"), [(-1, "GBP"), (100_000_000, "GBP"), (18605, "KWD"), (1, "BHD")])
def test_an_amount_that_nobody_could_be_charged_is_refused(amount: int, currency: str) -> None:
    with pytest.raises(Invalid):
        check_amount(amount, currency)


@pytest.mark.parametrize(
    ("price", "percent", "currency", "discount"),
    [
        (1999, 10, "GBP", 199),
        (1999, 33, "GBP", 659),
        (999, Decimal("12.5"), "GBP", 124),
        (1, 99, "GBP", 0),
        (1, 100, "GBP", 1),
        (0, 50, "GBP", 0),
        (80, 10, "JPY", 8),
        (85, 10, "JPY", 8),
        # 33 % of 18.600 is 6.138; the last digit of what is left has to be 0, so 6.130 comes off.
        (18600, 33, "KWD", 6130),
        (18600, 100, "KWD", 18600),
        (10000, 60, "USD", 6000),
    ],
)
def test_a_percentage_is_rounded_down(price: int, percent: int | Decimal, currency: str, discount: int) -> None:
    assert percent_discount(price, percent, currency) == discount


@pytest.mark.parametrize("percent", [0, -1, 101, Decimal("100.01")])
def test_a_percentage_outside_its_bounds_is_refused(percent: int | Decimal) -> None:
    with pytest.raises(Invalid):
        percent_discount(1000, percent, "GBP")


@pytest.mark.parametrize(
    ("price", "off", "currency", "discount"),
    [(1000, 250, "GBP", 250), (1000, 1000, "GBP", 1000), (1000, 5000, "GBP", 1000), (18600, 1005, "KWD", 1000)],
)
def test_an_amount_off_is_never_more_than_the_price(price: int, off: int, currency: str, discount: int) -> None:
    assert amount_discount(price, off, currency) == discount


@pytest.mark.parametrize("off", [0, -5])
def test_an_amount_off_has_to_be_positive(off: int) -> None:
    with pytest.raises(Invalid):
        amount_discount(1000, off, "GBP")


prices = st.integers(min_value=0, max_value=99_999_990).map(lambda amount: amount // 10 * 10)
currencies = st.sampled_from(["GBP", "JPY", "KWD", "UGX"])


@given(prices, st.integers(min_value=1, max_value=100), currencies)
def test_what_is_left_after_a_percentage_can_be_charged(price: int, percent: int, currency: str) -> None:
    discount = percent_discount(price, percent, currency)
    assert 0 <= discount <= price
    assert discount * 100 <= price * percent
    assert check_amount(price - discount, currency) == price - discount


@given(st.lists(prices, max_size=12), st.integers(min_value=0, max_value=10**9), currencies)
def test_a_discount_spread_over_lines_adds_up(lines: list[int], wanted: int, currency: str) -> None:
    total = sum(lines)
    discount = min(total, wanted // 10 * 10)
    left = spread_discount(discount, tuple(lines), currency)
    assert sum(left) == total - discount
    assert all(0 <= after <= before for after, before in zip(left, lines, strict=True))
    assert all(after % payable_step(currency) == 0 for after in left)


def test_what_rounding_leaves_over_comes_off_the_first_lines() -> None:
    assert spread_discount(100, (333, 333, 334), "GBP") == (299, 300, 301)
    assert spread_discount(1000, (333, 333, 334), "GBP") == (0, 0, 0)
    assert spread_discount(0, (5, 6), "GBP") == (5, 6)


@pytest.mark.parametrize("discount", [-1, 1001])
def test_more_than_the_lines_cannot_be_spread(discount: int) -> None:
    with pytest.raises(ValueError, match="can't be taken off"):
        spread_discount(discount, (400, 600), "GBP")


@pytest.mark.parametrize(
    ("amount", "currency", "shown"),
    [
        (1250, "gbp", "12.50 GBP"),
        (5, "USD", "0.05 USD"),
        (-5, "USD", "-0.05 USD"),
        (80, "JPY", "80 JPY"),
        (18600, "KWD", "18.600 KWD"),
    ],
)
def test_amounts_are_shown_with_their_places(amount: int, currency: str, shown: str) -> None:
    assert show(amount, currency) == shown
