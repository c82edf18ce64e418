"""What the stand-in Stripe accepts in a new session: the parameters that are used, and Stripe's rules about them."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from api.sandbox.stripe_errors import StripeRefusal
from engine.errors import Invalid
from engine.money import check_currency, payable_step, to_stripe

SHORTEST_SECONDS = 30 * 60
LONGEST_SECONDS = 24 * 3600

MINIMUM_CHARGE = {"USD": 50, "EUR": 50, "AUD": 50, "GBP": 30}
"""Stripe's least charge in its own unit, for the currencies whose minimum is known here."""


def _within_metadata_limits(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > 50:
        raise ValueError("Metadata can have up to 50 keys")
    for name, value in metadata.items():
        if len(name) > 40:
            raise ValueError("Metadata keys can have up to 40 characters")
        if len(value) > 500:
            raise ValueError("Metadata values can have up to 500 characters")
    return metadata


def _web_address(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("Not a valid URL")
    return address


Text = Annotated[str, Field(min_length=1, max_length=5000)]
Whole = Annotated[int, Field(ge=0, le=2**53)]
Metadata = Annotated[dict[str, str], AfterValidator(_within_metadata_limits)]
Address = Annotated[Text, AfterValidator(_web_address)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProductData(_Strict):
    """What is sold, as the buyer reads it."""

    name: Annotated[str, Field(min_length=1, max_length=250)]
    description: Text | None = None
    metadata: Metadata | None = None


class PriceData(_Strict):
    """A price made for this session; ``unit_amount`` is in Stripe's unit."""

    currency: Text
    product_data: ProductData
    unit_amount: Whole


class LineItem(_Strict):
    """One line of a session."""

    price_data: PriceData
    quantity: Annotated[int, Field(ge=1, le=999_999)]


class PaymentIntentData(_Strict):
    """What goes onto the PaymentIntent."""

    metadata: Metadata | None = None
    description: Text | None = None


class SessionCreate(_Strict):
    """The parameters of ``POST /v1/checkout/sessions`` that the stand-in knows."""

    mode: Literal["payment"]
    line_items: Annotated[list[LineItem], Field(min_length=1, max_length=100)]
    success_url: Address
    cancel_url: Address | None = None
    customer_email: Annotated[Text, Field(pattern=r"^[^@\s]+@[^@\s]+$")] | None = None
    client_reference_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    metadata: Metadata | None = None
    payment_intent_data: PaymentIntentData | None = None
    expires_at: Whole | None = None
    expand: list[str] | None = None

    @property
    def currency(self) -> str:
        """In lower case, as Stripe writes it."""
        return self.line_items[0].price_data.currency.lower()

    @property
    def total(self) -> int:
        """In Stripe's unit."""
        return sum(line.price_data.unit_amount * line.quantity for line in self.line_items)


def session_create(params: dict[str, Any], now_s: float) -> SessionCreate:
    """The checked parameters of a new session, at ``now_s`` of the test clock. Raises ``StripeRefusal`` (400)."""
    try:
        created = SessionCreate.model_validate(params)
    except ValidationError as error:
        raise refusal_of(error) from error
    for number, line in enumerate(created.line_items):
        _check_price(line.price_data, created.currency, f"line_items[{number}][price_data]")
    _check_total(created)
    _check_expiry(created.expires_at, now_s)
    return created


def _check_price(price: PriceData, currency: str, where: str) -> None:
    try:
        known = check_currency(price.currency)
    except Invalid as error:
        raise StripeRefusal(
            400, f"Invalid currency: {price.currency[:16].lower()}.", param=f"{where}[currency]"
        ) from error
    if price.currency.lower() != currency:
        raise StripeRefusal(400, "All prices on a Checkout Session must have the same currency.", param="line_items")
    step = to_stripe(payable_step(known), known)
    if price.unit_amount % step:
        raise StripeRefusal(
            400,
            f"Invalid amount: in {currency} it must be a multiple of {step}.",
            code="parameter_invalid_integer",
            param=f"{where}[unit_amount]",
        )


def _check_total(created: SessionCreate) -> None:
    least = MINIMUM_CHARGE.get(created.currency.upper(), 1)
    if 0 < created.total < least:
        raise StripeRefusal(
            400,
            f"The Checkout Session's total amount due must add up to at least {least} in {created.currency}.",
            code="amount_too_small",
            param="line_items",
        )
    if created.total > 99_999_999:
        raise StripeRefusal(
            400,
            "The Checkout Session's total amount due must be no more than 99999999.",
            code="amount_too_large",
            param="line_items",
        )


def _check_expiry(expires_at: int | None, now_s: float) -> None:
    if expires_at is None:
        return
    # Against the clock of arrival, with its fraction: exactly 30 minutes from when the caller looked is too short.
    if expires_at < now_s + SHORTEST_SECONDS:
        problem = "must be at least 30 minutes"
    elif expires_at > now_s + LONGEST_SECONDS:
        problem = "must be less than 24 hours"
    else:
        return
    raise StripeRefusal(
        400, f"The `expires_at` timestamp {problem} from Checkout Session creation.", param="expires_at"
    )


def refusal_of(error: ValidationError) -> StripeRefusal:
    """The first thing wrong, as Stripe says it."""
    first = error.errors(include_url=False)[0]
    head, *rest = (str(part) for part in first["loc"])
    param = head + "".join(f"[{part}]" for part in rest)
    match first["type"]:
        case "extra_forbidden":
            return StripeRefusal(400, f"Received unknown parameter: {param}", code="parameter_unknown", param=param)
        case "missing":
            return StripeRefusal(400, f"Missing required param: {param}.", code="parameter_missing", param=param)
        case "string_too_short":
            return StripeRefusal(
                400, f"You passed an empty string for '{param}'.", code="parameter_invalid_empty", param=param
            )
        case "int_parsing" | "int_type" | "int_from_float":
            return StripeRefusal(400, f"Invalid integer: {param}", code="parameter_invalid_integer", param=param)
        case "value_error" if "URL" in first["msg"]:
            return StripeRefusal(400, "Not a valid URL", code="url_invalid", param=param)
        case _:
            return StripeRefusal(400, f"Invalid {param}: {first['msg']}.", param=param)
