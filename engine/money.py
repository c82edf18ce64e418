"""Money: integer minor units and an ISO currency, with the providers' and the discount's rules in one place.

Where nothing else is said, the minor unit is that of ISO 4217. MGA is the exception: its subunit is out of
use, and Stripe takes whole ariary, so its minor unit here is the ariary itself.
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal

from engine.domain import Provider
from engine.errors import Invalid

LARGEST_AMOUNT_MINOR = 99_999_999
"""Stripe takes eight digits at most; a larger price is a slip of the keyboard anywhere."""

_ZERO_DECIMAL_CODES = """
    BIF CLP DJF GNF ISK JPY KMF KRW MGA PYG RWF UGX VND VUV XAF XOF XPF
"""
_THREE_DECIMAL_CODES = """
    BHD JOD KWD OMR TND
"""
_TWO_DECIMAL_CODES = """
    AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BRL BSD BWP BYN BZD CAD CDF
    CHF CNY COP CRC CVE CZK DKK DOP DZD EGP ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG
    HUF IDR ILS INR JMD KES KGS KHR KYD KZT LAK LBP LKR LRD LSL MAD MDL MKD MMK MNT MOP MUR MVR MWK
    MXN MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SEK SGD
    SHP SLE SOS SRD STD SZL THB TJS TOP TRY TTD TWD TZS UAH USD UYU UZS WST XCD YER ZAR ZMW
"""

_EXPONENT = {
    code: places
    for places, codes in ((0, _ZERO_DECIMAL_CODES), (2, _TWO_DECIMAL_CODES), (3, _THREE_DECIMAL_CODES))
    for code in codes.split()
}

_STRIPE_PADDED = frozenset({"ISK", "UGX"})
"""Stripe counts these two in hundredths for backward compatibility, though they have no subunit."""


_LEAST_AT_STRIPE = {
    **dict.fromkeys(["AUD", "BRL", "CAD", "CHF", "EUR", "INR", "NZD", "SGD", "USD", "JPY"], 50),
    **{"GBP": 30, "AED": 200, "BGN": 100, "CZK": 1500, "DKK": 250, "HKD": 400, "HUF": 17500, "MXN": 1000},
    **{"MYR": 200, "NOK": 300, "PLN": 200, "RON": 200, "SEK": 300, "THB": 1000},
}
"""The smallest charges in minor units, from "Minimum and maximum charge amounts" at docs.stripe.com/currencies.

Stripe applies the minimum of the currency it settles in, so the least step of an unlisted currency may still be
refused by Stripe itself, as a provider's error.
"""

_LEAST_AT_PAYSTACK = {"NGN": 5000, "GHS": 10, "ZAR": 100, "KES": 300, "USD": 200}
"""The currencies that Paystack takes with their smallest charges, from paystack.com/docs/api, "Supported currency".

Paystack counts each of them in its subunit, which is our minor unit, so its amounts need no conversion.
"""


def check_payable(amount_minor: int, currency: str, provider: Provider) -> None:
    """Raises ``Invalid`` for an amount that the provider would not charge, or a currency that it does not take.

    A total of 0 is less than any minimum: it is completed without a provider, so it is never asked about.
    """
    known = check_currency(currency)
    least = (_LEAST_AT_PAYSTACK if provider is Provider.PAYSTACK else _LEAST_AT_STRIPE).get(known)
    if least is None and provider is Provider.PAYSTACK:
        taken = ", ".join(sorted(_LEAST_AT_PAYSTACK))
        raise Invalid(f"Paystack takes no {known}.", fields={"provider": f"takes {taken}, not {known}"})
    if least is not None and amount_minor < least:
        raise Invalid(
            f"{show(amount_minor, known)} is less than can be charged.",
            fields={"lines": f"must come to {show(least, known)} at least, which is the least that is charged"},
        )


def check_currency(currency: str) -> str:
    """The currency in capitals. Raises ``Invalid`` for one whose minor unit we don't know.

    Guessing the unit would charge a hundred times too much or too little.
    """
    known = currency.upper()
    # The long s of old print becomes an S in capitals, hence ASCII only.
    if currency.isascii() and known in _EXPONENT:
        return known
    raise Invalid(
        f"The currency {currency[:16]!r} is not known.",
        fields={"currency": "must be an ISO 4217 code that the payment providers take"},
    )


def exponent(currency: str) -> int:
    """Decimal places of the currency's minor unit: 0, 2 or 3. Raises ``Invalid`` for an unknown currency."""
    return _EXPONENT[check_currency(currency)]


def payable_step(currency: str) -> int:
    """The smallest amount, in minor units, that can be charged apart: 10 in a three-decimal currency, else 1.

    Card networks carry two decimals, so Stripe wants a 0 as the last digit of BHD, JOD, KWD, OMR and TND.
    """
    return 10 if exponent(currency) == 3 else 1


def check_amount(amount_minor: int, currency: str) -> int:
    """The amount, if it can be a price: 0 to 99,999,999 minor units in payable steps. Raises ``Invalid``."""
    step = payable_step(currency)
    if not 0 <= amount_minor <= LARGEST_AMOUNT_MINOR:
        problem = f"must be between 0 and {LARGEST_AMOUNT_MINOR}"
    elif amount_minor % step:
        problem = f"must end in 0: {check_currency(currency)} is charged in steps of {step}"
    else:
        return amount_minor
    raise Invalid(f"The amount {amount_minor} can't be charged.", fields={"amount_minor": problem})


def percent_discount(price_minor: int, percent: int | Decimal, currency: str) -> int:
    """What a percentage takes off, in minor units, rounded down to a payable step; 100 percent takes all.

    Rounded down because a buyer may be promised "10 % off" but no shop promised more than that.
    Raises ``Invalid`` unless 0 < percent ≤ 100.
    """
    if not 0 < percent <= 100:
        raise Invalid("A discount is more than 0 and at most 100 percent.", fields={"percent_off": "0 < n ≤ 100"})
    raw = (Decimal(price_minor) * Decimal(percent) / 100).to_integral_value(rounding=ROUND_FLOOR)
    return _in_steps(int(raw), price_minor, currency)


def amount_discount(price_minor: int, amount_off_minor: int, currency: str) -> int:
    """What a fixed amount takes off, in minor units: never more than the price, never below 0.

    Raises ``Invalid`` unless the amount off is positive.
    """
    if amount_off_minor <= 0:
        raise Invalid("An amount off is positive.", fields={"amount_off_minor": "must be positive"})
    return _in_steps(amount_off_minor, price_minor, currency)


def _in_steps(raw_minor: int, price_minor: int, currency: str) -> int:
    if raw_minor >= price_minor:
        return max(0, price_minor)
    return raw_minor - raw_minor % payable_step(currency)


def spread_discount(discount_minor: int, lines_minor: tuple[int, ...], currency: str) -> tuple[int, ...]:
    """The lines with the discount taken off, in proportion, each in payable steps and none below 0.

    The parts always add up to the sum of the lines less the discount. What rounding leaves over is taken from
    the first lines that can bear it, so the result depends on nothing but the arguments. Raises ``ValueError``
    when the discount is negative or larger than the lines together.
    """
    total = sum(lines_minor)
    if not 0 <= discount_minor <= total:
        raise ValueError(f"a discount of {discount_minor} can't be taken off lines of {total}")
    if discount_minor == 0:
        return lines_minor
    step = payable_step(currency)
    parts = [line * discount_minor // total // step * step for line in lines_minor]
    left = discount_minor - sum(parts)
    for index, line in enumerate(lines_minor):
        more = min(left, line - parts[index])
        parts[index] += more
        left -= more
    return tuple(line - part for line, part in zip(lines_minor, parts, strict=True))


def to_stripe(amount_minor: int, currency: str) -> int:
    """The amount in the unit that Stripe counts the currency in: UGX 100 is sent as 10000, JPY 80 as 80.

    Raises ``Invalid`` for an unknown currency and for an amount that Stripe can't charge.
    """
    known = check_currency(currency)
    return in_stripe_units(check_amount(amount_minor, known), known)


def in_stripe_units(amount_minor: int, currency: str) -> int:
    """An amount of money that Stripe has already, in its unit: the way back of :func:`from_stripe`.

    Unchecked, because what was paid goes back whole even where we would not have asked for such an amount.
    """
    return amount_minor * 100 if currency.upper() in _STRIPE_PADDED else amount_minor


def from_stripe(amount: int, currency: str) -> int | None:
    """Stripe's amount in our minor units; None when it is no whole number of them.

    An unknown currency keeps Stripe's number: whoever compares it with an order sees the currency differ.
    """
    if currency.upper() not in _STRIPE_PADDED:
        return amount
    return None if amount % 100 else amount // 100


def show(amount_minor: int, currency: str) -> str:
    """The amount for people to read, e.g. ``12.50 GBP``, ``80 JPY``, ``18.600 KWD``."""
    places = exponent(currency)
    if places == 0:
        return f"{amount_minor} {check_currency(currency)}"
    whole, rest = divmod(abs(amount_minor), 10**places)
    sign = "-" if amount_minor < 0 else ""
    return f"{sign}{whole}.{rest:0{places}d} {check_currency(currency)}"
