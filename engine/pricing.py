"""What an order costs: resolved from product ids and quantities alone, whatever a client believes the price to be.

A code's discount is worked out once, on the sum of the lines that it is for, and rounded down to what can be
charged; it is then spread over those lines, so that the lines add up to the amount due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.catalogue import CodeDefinition, Product
from engine.errors import CodeNotApplicable, Invalid, Unknown
from engine.money import LARGEST_AMOUNT_MINOR, amount_discount, percent_discount, spread_discount
from engine.payments.port import PricedLine


@dataclass(frozen=True, slots=True)
class WantedLine:
    """So many of one product."""

    product: str
    quantity: int


@dataclass(frozen=True, slots=True)
class OrderLine:
    """A line of an order; ``amount_minor`` is for the whole line, before the order's discount."""

    product: str
    name: str
    quantity: int
    unit_amount_minor: int
    amount_minor: int


@dataclass(frozen=True, slots=True)
class Priced:
    """An order's lines and sums. ``due`` are the lines with the discount taken off; they add up to the amount."""

    lines: tuple[OrderLine, ...]
    due: tuple[PricedLine, ...]
    amount_minor: int
    discount_minor: int
    currency: str


def price(wanted: Sequence[WantedLine], products: Mapping[str, Product], code: CodeDefinition | None) -> Priced:
    """Price lines with or without a code.

    Raises ``Unknown`` for a product that isn't there, ``Invalid`` for lines that can't be one order, and
    ``CodeNotApplicable`` for a code that is for other products or another currency.
    """
    lines = tuple(_line(line, products) for line in wanted)
    currency = _currency(wanted, products)
    total = sum(line.amount_minor for line in lines)
    if total > LARGEST_AMOUNT_MINOR:
        raise Invalid("The order is too large.", fields={"lines": f"must not exceed {LARGEST_AMOUNT_MINOR} in sum"})
    discount, amounts = 0, tuple(line.amount_minor for line in lines)
    if code is not None:
        discount, amounts = _discounted(lines, code, currency)
    due = tuple(PricedLine(_shown(line), amount) for line, amount in zip(lines, amounts, strict=True))
    return Priced(lines, due, total - discount, discount, currency)


def _line(wanted: WantedLine, products: Mapping[str, Product]) -> OrderLine:
    product = products.get(wanted.product)
    if product is None:
        raise Unknown("product", wanted.product)
    if product.recurring is not None:
        raise Invalid(
            f"The product {product.id!r} is a subscription, which a checkout can't start.",
            fields={"lines": "must be products that are paid once"},
        )
    return OrderLine(
        product=product.id,
        name=product.name,
        quantity=wanted.quantity,
        unit_amount_minor=product.amount_minor,
        amount_minor=product.amount_minor * wanted.quantity,
    )


def _currency(wanted: Sequence[WantedLine], products: Mapping[str, Product]) -> str:
    currencies = {products[line.product].currency for line in wanted}
    if len(currencies) != 1:
        raise Invalid("An order has one currency.", fields={"lines": "must be priced in one currency"})
    return currencies.pop()


def _discounted(lines: Sequence[OrderLine], code: CodeDefinition, currency: str) -> tuple[int, tuple[int, ...]]:
    """The discount, and what is left of each line."""
    suited = [code.products is None or line.product in code.products for line in lines]
    if not any(suited):
        raise CodeNotApplicable(f"The code {code.code} is for other products.")
    offered = tuple(line.amount_minor for line, suits in zip(lines, suited, strict=True) if suits)
    if code.discount.percent_off is not None:
        discount = percent_discount(sum(offered), code.discount.percent_off, currency)
    else:
        if code.discount.currency != currency:
            raise CodeNotApplicable(f"The code {code.code} is in {code.discount.currency}, the order in {currency}.")
        discount = amount_discount(sum(offered), code.discount.amount_off_minor or 0, currency)
    reduced = iter(spread_discount(discount, offered, currency))
    left = tuple(next(reduced) if suits else line.amount_minor for line, suits in zip(lines, suited, strict=True))
    return discount, left


def _shown(line: OrderLine) -> str:
    return line.name if line.quantity == 1 else f"{line.quantity} × {line.name}"  # noqa: RUF001 -- read by buyers
