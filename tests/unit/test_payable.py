"""The least that each provider charges, and the currencies that it takes. Expected values are literals."""

from __future__ import annotations

import pytest

from engine.domain import Provider
from engine.errors import Invalid
from engine.money import check_payable, in_stripe_units


@pytest.mark.parametrize(
    ("provider", "currency", "least"),
    [
        (Provider.STRIPE, "USD", 50),
        (Provider.STRIPE, "EUR", 50),
        (Provider.STRIPE, "gbp", 30),
        (Provider.STRIPE, "JPY", 50),
        (Provider.STRIPE, "MXN", 1000),
        (Provider.STRIPE, "HUF", 17500),
        (Provider.PAYSTACK, "NGN", 5000),
        (Provider.PAYSTACK, "GHS", 10),
        (Provider.PAYSTACK, "ZAR", 100),
        (Provider.PAYSTACK, "KES", 300),
        (Provider.PAYSTACK, "USD", 200),
    ],
)
def test_less_than_the_least_is_refused_with_the_least_named(provider: Provider, currency: str, least: int) -> None:
    check_payable(least, currency, provider)
    with pytest.raises(Invalid) as raised:
        check_payable(least - 1, currency, provider)
    assert list(raised.value.details["fields"]) == ["lines"]
    assert currency.upper() in raised.value.details["fields"]["lines"]


def test_the_refusal_says_the_least_as_people_write_it() -> None:
    with pytest.raises(Invalid) as raised:
        check_payable(4999, "NGN", Provider.PAYSTACK)
    assert "50.00 NGN" in raised.value.details["fields"]["lines"]
    with pytest.raises(Invalid) as raised:
        check_payable(49, "JPY", Provider.STRIPE)
    assert "50 JPY" in raised.value.details["fields"]["lines"]


@pytest.mark.parametrize(("currency", "amount"), [("KWD", 10), ("UGX", 1), ("NGN", 1)])
def test_where_stripe_lists_no_least_it_is_left_to_stripe(currency: str, amount: int) -> None:
    check_payable(amount, currency, Provider.STRIPE)


@pytest.mark.parametrize("currency", ["GBP", "EUR", "JPY", "XOF"])
def test_a_currency_that_paystack_does_not_take_is_refused(currency: str) -> None:
    check_payable(100_000, currency, Provider.STRIPE)
    with pytest.raises(Invalid) as raised:
        check_payable(100_000, currency, Provider.PAYSTACK)
    assert raised.value.details["fields"] == {"provider": f"takes GHS, KES, NGN, USD, ZAR, not {currency}"}


@pytest.mark.parametrize("provider", [Provider.STRIPE, Provider.PAYSTACK])
def test_a_currency_that_is_not_known_is_refused(provider: Provider) -> None:
    with pytest.raises(Invalid) as raised:
        check_payable(100_000, "XXX", provider)
    assert list(raised.value.details["fields"]) == ["currency"]


@pytest.mark.parametrize(
    ("minor", "currency", "sent"), [(80, "JPY", 80), (18605, "KWD", 18605), (100, "ugx", 10000), (5, "XXX", 5)]
)
def test_money_that_was_paid_goes_back_whole(minor: int, currency: str, sent: int) -> None:
    assert in_stripe_units(minor, currency) == sent
