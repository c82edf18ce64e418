"""What a tenant sells: products, and codes whose cap is counted per period, each period a pool of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from engine.domain import LARGEST_CAP, LARGEST_PER_CUSTOMER, LatePayment, PoolDefinition, PoolState
from engine.errors import Invalid, Unknown
from engine.money import check_amount, check_currency
from engine.periods import PeriodRule, bounds_of, period_of
from engine.reservations import ReservationEngine

LONGEST_CODE = 64
_CODE = re.compile(rf"[A-Za-z0-9._@+-]{{1,{LONGEST_CODE}}}", re.ASCII)
_POOLS_OF_CODES = "codes/"


def code_named(text: str) -> str:
    """A code as it is stored: trimmed and in capitals. Raises ``Invalid`` for what can't be one."""
    trimmed = text.strip()
    if _CODE.fullmatch(trimmed) is None:
        raise Invalid(
            f"{trimmed[:LONGEST_CODE]!r} can't be a code.",
            fields={"code": f"must be 1 to {LONGEST_CODE} letters, digits or . _ - @ +"},
        )
    return trimmed.upper()


def pools_of(code: str) -> str:
    """What the ids of all pools of a code begin with."""
    return f"{_POOLS_OF_CODES}{code}/"


@dataclass(frozen=True, slots=True)
class Discount:
    """A percentage, or an amount in one currency, off the products that a code is for. Raises ``Invalid``."""

    percent_off: Decimal | None = None
    amount_off_minor: int | None = None
    currency: str | None = None

    def __post_init__(self) -> None:
        if (self.percent_off is None) == (self.amount_off_minor is None):
            raise Invalid(
                "A discount is a percentage or an amount.",
                fields={"discount": "must have either percent_off, or amount_off_minor and currency"},
            )
        if self.percent_off is not None:
            if not 0 < self.percent_off <= 100 or self.percent_off != round(self.percent_off, 2):
                raise Invalid(
                    "A percentage is more than 0 and at most 100.",
                    fields={"discount.percent_off": "must be above 0, at most 100, with two decimals at most"},
                )
            return
        if self.currency is None:
            raise Invalid("An amount off needs a currency.", fields={"discount.currency": "is required"})
        object.__setattr__(self, "currency", check_currency(self.currency))
        if not self.amount_off_minor or self.amount_off_minor < 0:
            raise Invalid("An amount off is positive.", fields={"discount.amount_off_minor": "must be positive"})
        check_amount(self.amount_off_minor, self.currency)


@dataclass(frozen=True, slots=True)
class CodeDefinition:
    """A promotion code. ``cap`` and ``per_customer`` are counted per period; ``products`` None means all."""

    tenant: str
    code: str
    cap: int | None
    period: PeriodRule
    discount: Discount
    per_customer: int | None = None
    opens_at_ms: int | None = None
    closes_at_ms: int | None = None
    products: tuple[str, ...] | None = None
    late_payment: LatePayment = LatePayment.HONOUR
    rev: int = 0

    def __post_init__(self) -> None:
        if self.cap is not None and not 0 <= self.cap <= LARGEST_CAP:
            raise Invalid("The cap is out of range.", fields={"cap": f"must be 0 to {LARGEST_CAP}, or null"})
        if self.per_customer is not None and not 1 <= self.per_customer <= LARGEST_PER_CUSTOMER:
            raise Invalid(
                "The customer limit is out of range.", fields={"per_customer": f"must be 1 to {LARGEST_PER_CUSTOMER}"}
            )

    def pool(self, period: str) -> PoolDefinition:
        """The pool that counts this code's redemptions of one period.

        Its window is what the code's own and the period's have in common, so that the script refuses a
        redemption that would be counted under the wrong period. Raises ``Invalid`` for no period of the rule.
        """
        starts_ms, ends_ms = bounds_of(self.period, period)
        return PoolDefinition(
            tenant=self.tenant,
            pool=pools_of(self.code) + period,
            cap=self.cap,
            rev=self.rev,
            opens_at_ms=max((at for at in (starts_ms, self.opens_at_ms) if at is not None), default=None),
            closes_at_ms=min((at for at in (ends_ms, self.closes_at_ms) if at is not None), default=None),
            per_customer=self.per_customer,
            late_payment=self.late_payment,
        )


@dataclass(frozen=True, slots=True)
class Recurrence:
    """How often a product is billed: ``month`` or ``year``."""

    interval: str


@dataclass(frozen=True, slots=True)
class Product:
    """Something sold without cap or window. Raises ``Invalid`` for a price that can't be charged."""

    tenant: str
    id: str
    name: str
    amount_minor: int
    currency: str
    recurring: Recurrence | None = None
    rev: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "currency", check_currency(self.currency))
        check_amount(self.amount_minor, self.currency)


@dataclass(frozen=True, slots=True)
class Usage:
    """How far a code is used up in one period. ``available`` is None when there is no cap."""

    period: str
    completed: int
    reserved: int
    available: int | None


@dataclass(frozen=True, slots=True)
class Offer:
    """All that a checkout needs of the catalogue, read in one transaction."""

    products: Mapping[str, Product]
    code: CodeDefinition | None = None
    pool: PoolDefinition | None = None
    """The pool of the code's present period, as Postgres has it."""
    period: str = ""


class CatalogueStore(Protocol):
    """The catalogue in Postgres. Every method is one transaction and raises ``StorageUnavailable``."""

    async def put_code(self, definition: CodeDefinition, now_ms: int) -> Sequence[str]:
        """Commit a code and the pools of its present and later periods; answers which pools changed."""
        ...

    async def find_code(self, tenant: str, code: str) -> CodeDefinition | None: ...

    async def put_product(self, product: Product) -> Product: ...

    async def find_product(self, tenant: str, product: str) -> Product | None: ...

    async def offer(self, tenant: str, products: Sequence[str], code: str | None, at_ms: int) -> Offer:
        """The products, the code and its pool of the period of ``at_ms``, which is made when it is the first."""
        ...

    async def has_pool(self, tenant: str, pool: str) -> bool: ...

    async def count_redeemed(self, tenant: str, code: str, period: str) -> int:
        """Redemptions of a period as persisted."""
        ...


class PoolPusher(Protocol):
    """Brings committed pool definitions to Redis."""

    async def push(self, tenant: str, pools: Sequence[str]) -> None:
        """Raises ``NotReady``; what is committed then waits for the job that pushes again."""
        ...


class CatalogueService:
    """Codes and products: committed in Postgres first, then pushed to Redis."""

    def __init__(self, store: CatalogueStore, pusher: PoolPusher, reservations: ReservationEngine) -> None:
        self._store = store
        self._pusher = pusher
        self._reservations = reservations

    async def put_code(self, definition: CodeDefinition) -> None:
        """Define a code; its present and later periods follow at once. Raises ``Unavailable``."""
        now_ms = await self._reservations.now_ms(definition.tenant)
        changed = await self._store.put_code(definition, now_ms)
        await self._pusher.push(definition.tenant, changed)

    async def code(self, tenant: str, code: str) -> tuple[CodeDefinition, Usage]:
        """A code and its usage in the present period. Raises ``Unknown``."""
        definition = await self._definition(tenant, code)
        now_ms = await self._reservations.now_ms(tenant)
        return definition, await self._usage(definition, period_of(definition.period, now_ms))

    async def usage(self, tenant: str, code: str, period: str | None) -> Usage:
        """A code's usage in a period, the present one if none is named. Raises ``Unknown`` and ``Invalid``."""
        definition = await self._definition(tenant, code)
        if period is None:
            period = period_of(definition.period, await self._reservations.now_ms(tenant))
        return await self._usage(definition, period)

    async def put_product(self, product: Product) -> Product:
        """Define a product; orders already made keep their price."""
        return await self._store.put_product(product)

    async def product(self, tenant: str, product: str) -> Product:
        """Raises ``Unknown``."""
        found = await self._store.find_product(tenant, product)
        if found is None:
            raise Unknown("product", product)
        return found

    async def _definition(self, tenant: str, code: str) -> CodeDefinition:
        found = await self._store.find_code(tenant, code_named(code))
        if found is None:
            raise Unknown("code", code.strip())
        return found

    async def _usage(self, definition: CodeDefinition, period: str) -> Usage:
        pool = definition.pool(period)
        state: PoolState | None = None
        if await self._store.has_pool(definition.tenant, pool.pool):
            try:
                state = await self._reservations.read_pool(definition.tenant, pool.pool)
            except Unknown:
                # Redis forgets a pool some days after it closed, and hasn't heard of one that waits to be pushed.
                redeemed = await self._store.count_redeemed(definition.tenant, definition.code, period)
                state = PoolState(pool, redeemed, 0, None)
        if state is None:
            return Usage(period, 0, 0, definition.cap)
        return Usage(period, state.completed, state.reserved, state.available)
