"""Codes and products on the wire."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from api.schemas.base import Body, Cap, Identifier, InstantMs, PerCustomer, Printable
from api.times import written_or_none
from engine.catalogue import CodeDefinition, Discount, Product, Recurrence, Usage
from engine.domain import LatePayment
from engine.money import LARGEST_AMOUNT_MINOR
from engine.periods import PeriodKind, PeriodRule

MOST_PRODUCTS = 1000

Currency = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{3}$")]
AmountMinor = Annotated[int, Field(ge=0, le=LARGEST_AMOUNT_MINOR)]


class PeriodBody(Body):
    """How the cap's periods are cut. ``starts`` is the first day of an academic year, MM-DD."""

    kind: PeriodKind
    starts: str = "09-01"
    timezone: str | None = None

    @model_validator(mode="after")
    def _zone_is_said(self) -> Self:
        if self.timezone is None and self.kind is not PeriodKind.NONE:
            raise ValueError("timezone is required: a period turns at midnight somewhere")
        return self


class DiscountBody(Body):
    """``percent_off``, or ``amount_off_minor`` with ``currency``."""

    percent_off: Annotated[int | float, Field(gt=0, le=100)] | None = None
    amount_off_minor: Annotated[int, Field(gt=0, le=LARGEST_AMOUNT_MINOR)] | None = None
    currency: Currency | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        by_amount = self.amount_off_minor is not None and self.currency is not None
        if (self.percent_off is None) != by_amount or (self.percent_off is not None and self.currency is not None):
            raise ValueError("must have either percent_off, or amount_off_minor and currency")
        return self


class CodeBody(Body):
    """The whole definition of a code; ``cap`` and ``per_customer`` are counted per period."""

    cap: Cap | None
    period: PeriodBody
    discount: DiscountBody
    per_customer: PerCustomer | None = None
    opens_at: InstantMs | None = None
    closes_at: InstantMs | None = None
    products: Annotated[list[Identifier], Field(min_length=1, max_length=MOST_PRODUCTS)] | None = None
    late_payment: LatePayment = LatePayment.HONOUR

    @model_validator(mode="after")
    def _window_in_order(self) -> Self:
        if self.opens_at is not None and self.closes_at is not None and self.closes_at <= self.opens_at:
            raise ValueError("closes_at must lie after opens_at")
        return self

    def definition(self, tenant: str, code: str) -> CodeDefinition:
        """The definition without a ``rev``. Raises ``Invalid`` for what only the domain knows to be wrong."""
        discount, zone = self.discount, self.period.timezone
        return CodeDefinition(
            tenant=tenant,
            code=code,
            cap=self.cap,
            period=PeriodRule(self.period.kind, "UTC" if zone is None else zone, self.period.starts),
            discount=Discount(
                percent_off=None if discount.percent_off is None else Decimal(str(discount.percent_off)),
                amount_off_minor=discount.amount_off_minor,
                currency=discount.currency,
            ),
            per_customer=self.per_customer,
            opens_at_ms=self.opens_at,
            closes_at_ms=self.closes_at,
            products=None if self.products is None else tuple(dict.fromkeys(self.products)),
            late_payment=self.late_payment,
        )


class RecurringBody(Body):
    """How often a subscription is billed."""

    interval: Literal["month", "year"]


class ProductBody(Body):
    """The whole definition of a product; orders already made keep their price."""

    name: Printable
    amount_minor: AmountMinor
    currency: Currency
    recurring: RecurringBody | None = None

    def product(self, tenant: str, identifier: str) -> Product:
        """The product without a ``rev``. Raises ``Invalid`` for a price that can't be charged."""
        return Product(
            tenant=tenant,
            id=identifier,
            name=self.name,
            amount_minor=self.amount_minor,
            currency=self.currency,
            recurring=None if self.recurring is None else Recurrence(self.recurring.interval),
        )


def code_content(code: CodeDefinition) -> dict[str, Any]:
    """A code as the contract writes it, without its usage."""
    period: dict[str, Any] = {"kind": code.period.kind.value, "timezone": code.period.timezone}
    if code.period.kind is PeriodKind.ACADEMIC_YEAR:
        period["starts"] = code.period.starts
    return {
        "code": code.code,
        "cap": code.cap,
        "period": period,
        "discount": _discount_content(code.discount),
        "per_customer": code.per_customer,
        "opens_at": written_or_none(code.opens_at_ms),
        "closes_at": written_or_none(code.closes_at_ms),
        "products": None if code.products is None else list(code.products),
        "late_payment": code.late_payment.value,
    }


def usage_content(usage: Usage) -> dict[str, Any]:
    """How far a code is used up in a period."""
    return {
        "period": usage.period,
        "completed": usage.completed,
        "reserved": usage.reserved,
        "available": usage.available,
    }


def product_content(product: Product) -> dict[str, Any]:
    """A product as the contract writes it."""
    return {
        "id": product.id,
        "name": product.name,
        "amount_minor": product.amount_minor,
        "currency": product.currency,
        "recurring": None if product.recurring is None else {"interval": product.recurring.interval},
    }


def _discount_content(discount: Discount) -> dict[str, Any]:
    if discount.percent_off is None:
        return {"amount_off_minor": discount.amount_off_minor, "currency": discount.currency}
    whole = discount.percent_off == discount.percent_off.to_integral_value()
    return {"percent_off": int(discount.percent_off) if whole else float(discount.percent_off)}
