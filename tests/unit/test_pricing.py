"""What an order costs: literal amounts, and that lines always add up."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.catalogue import CodeDefinition, Discount, Product, Recurrence, code_named
from engine.errors import CodeNotApplicable, Invalid, Unknown
from engine.periods import PeriodKind, PeriodRule
from engine.pricing import WantedLine, price

PRODUCTS = {
    "pack": Product("t", "pack", "Practice pack", 4999, "GBP"),
    "book": Product("t", "book", "Book", 333, "gbp"),
    "tea": Product("t", "tea", "お茶", 80, "JPY"),
    "dates": Product("t", "dates", "Dates", 18600, "KWD"),
    "club": Product("t", "club", "Club", 900, "GBP", Recurrence("month")),
}


def code(
    *, percent: str | None = None, off: int | None = None, currency: str | None = None, **rest: object
) -> CodeDefinition:
    discount = Discount(None if percent is None else Decimal(percent), off, currency)
    return CodeDefinition("t", "TEN", None, PeriodRule(PeriodKind.NONE), discount, **rest)  # type: ignore[arg-type]


def lines(*wanted: tuple[str, int]) -> list[WantedLine]:
    return [WantedLine(product, quantity) for product, quantity in wanted]


@pytest.mark.parametrize(
    ("wanted", "definition", "due", "discount", "currency"),
    [
        ([("pack", 1)], None, 4999, 0, "GBP"),
        ([("pack", 2), ("book", 3)], None, 10997, 0, "GBP"),
        ([("pack", 1)], code(percent="10"), 4500, 499, "GBP"),
        ([("pack", 1), ("book", 1)], code(percent="10"), 4799, 533, "GBP"),
        ([("pack", 1)], code(percent="12.5"), 4375, 624, "GBP"),
        ([("pack", 1)], code(percent="100"), 0, 4999, "GBP"),
        ([("pack", 1)], code(off=500, currency="gbp"), 4499, 500, "GBP"),
        ([("book", 1)], code(off=500, currency="GBP"), 0, 333, "GBP"),
        ([("tea", 1)], None, 80, 0, "JPY"),
        ([("tea", 1)], code(percent="33"), 54, 26, "JPY"),
        ([("dates", 1)], code(percent="33.33"), 12410, 6190, "KWD"),
        # The code is for one product, the order holds two.
        ([("pack", 1), ("book", 1)], code(percent="50", products=("book",)), 5166, 166, "GBP"),
    ],
)
def test_amounts(
    wanted: list[tuple[str, int]], definition: CodeDefinition | None, due: int, discount: int, currency: str
) -> None:
    priced = price(lines(*wanted), PRODUCTS, definition)
    assert (priced.amount_minor, priced.discount_minor, priced.currency) == (due, discount, currency)
    assert sum(line.amount_minor for line in priced.due) == due


def test_what_the_buyer_reads() -> None:
    priced = price(lines(("pack", 2), ("book", 1)), PRODUCTS, code(percent="10", products=("book",)))
    assert [(line.name, line.amount_minor) for line in priced.due] == [("2 × Practice pack", 9998), ("Book", 300)]  # noqa: RUF001
    assert [(line.product, line.quantity, line.unit_amount_minor, line.amount_minor) for line in priced.lines] == [
        ("pack", 2, 4999, 9998),
        ("book", 1, 333, 333),
    ]


def test_a_code_for_other_products_or_another_currency_does_not_apply() -> None:
    with pytest.raises(CodeNotApplicable):
        price(lines(("pack", 1)), PRODUCTS, code(percent="10", products=("book",)))
    with pytest.raises(CodeNotApplicable):
        price(lines(("pack", 1)), PRODUCTS, code(off=500, currency="EUR"))


def test_what_can_not_be_one_order() -> None:
    with pytest.raises(Unknown) as unknown:
        price(lines(("nothing", 1)), PRODUCTS, None)
    assert unknown.value.code == "unknown_product"
    with pytest.raises(Invalid, match="subscription"):
        price(lines(("club", 1)), PRODUCTS, None)
    with pytest.raises(Invalid, match="one currency"):
        price(lines(("pack", 1), ("tea", 1)), PRODUCTS, None)
    with pytest.raises(Invalid, match="too large"):
        price(lines(("pack", 1_000_000)), PRODUCTS, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"percent_off": Decimal(10), "amount_off_minor": 5, "currency": "GBP"},
        {"percent_off": Decimal(0)},
        {"percent_off": Decimal(101)},
        {"percent_off": Decimal("10.001")},
        {"amount_off_minor": 5},
        {"amount_off_minor": 0, "currency": "GBP"},
        {"amount_off_minor": -5, "currency": "GBP"},
        {"amount_off_minor": 5, "currency": "XXX"},
        {"amount_off_minor": 5, "currency": "KWD"},
    ],
)
def test_discounts_that_are_none(wrong: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        Discount(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "named"), [(" school10 ", "SCHOOL10"), ("a.b_c-d@e+f", "A.B_C-D@E+F"), ("X" * 64, "X" * 64)]
)
def test_codes_are_trimmed_and_in_capitals(text: str, named: str) -> None:
    assert code_named(text) == named


@pytest.mark.parametrize("text", ["", "   ", "a b", "a/b", "{x}", "a:b", "a|b", "é", "\u0131", "X" * 65, "a\0"])
def test_what_can_not_be_a_code(text: str) -> None:
    with pytest.raises(Invalid):
        code_named(text)


@given(
    wanted=st.lists(st.tuples(st.sampled_from(["pack", "book"]), st.integers(1, 50)), min_size=1, max_size=8),
    percent=st.decimals(min_value=Decimal("0.01"), max_value=100, places=2),
    only_books=st.booleans(),
)
def test_lines_add_up_and_nothing_is_below_zero(
    wanted: list[tuple[str, int]], percent: Decimal, only_books: bool
) -> None:
    if only_books and not any(product == "book" for product, _ in wanted):
        return
    definition = code(percent=str(percent), products=("book",) if only_books else None)
    priced = price(lines(*wanted), PRODUCTS, definition)
    full = sum(line.amount_minor for line in priced.lines)
    offered = sum(line.amount_minor for line in priced.lines if not only_books or line.product == "book")
    assert priced.discount_minor == int(offered * percent // 100)
    assert priced.amount_minor == full - priced.discount_minor >= 0
    assert sum(line.amount_minor for line in priced.due) == priced.amount_minor
    for shown, line in zip(priced.due, priced.lines, strict=True):
        assert 0 <= shown.amount_minor <= line.amount_minor
        if only_books and line.product != "book":
            assert shown.amount_minor == line.amount_minor
