"""Codes and products in Postgres, and the pools that codes are counted in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from sqlalchemy import exists, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from engine.catalogue import CodeDefinition, Discount, Offer, Product, Recurrence, pools_of
from engine.domain import LatePayment, PoolDefinition
from engine.errors import Invalid
from engine.periods import PeriodKind, PeriodRule, bounds_of
from engine.periods import period_of as period_key
from persistence.database import transaction
from persistence.repositories import pools as pool_rows
from persistence.tables import Code, Pool, definition_rev
from persistence.tables import Product as ProductRow


class PostgresCatalogue:
    """Implements :class:`engine.catalogue.CatalogueStore`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def put_code(self, definition: CodeDefinition, now_ms: int) -> list[str]:
        """Commit a code with the pool of its present period and those of later ones; past ones keep their cap.

        A pool whose key the code's new rule doesn't know is left alone: nothing is reserved in it any more.
        """
        decided: dict[str, Any] = {
            "cap": definition.cap,
            "period": _rule_out(definition.period),
            "discount": _discount_out(definition.discount),
            "per_customer": definition.per_customer,
            "opens_at_ms": definition.opens_at_ms,
            "closes_at_ms": definition.closes_at_ms,
            "products": None if definition.products is None else list(definition.products),
            "late_payment": definition.late_payment.value,
        }
        statement = (
            insert(Code)
            .values(tenant=definition.tenant, code=definition.code, rev=definition_rev.next_value(), **decided)
            .on_conflict_do_update(
                index_elements=["tenant", "code"], set_={**decided, "rev": definition_rev.next_value()}
            )
        )
        async with transaction(self._engine) as connection:
            await pool_rows.ensure_tenant(connection, definition.tenant)
            # The code's row stays locked to the end, so that no pool of it is made from the definition before.
            await connection.execute(statement)
            present = await pool_rows.load_pools_beginning(connection, definition.tenant, pools_of(definition.code))
            renewed = {pool.pool: pool for old in present if (pool := _renewed(definition, old, now_ms)) is not None}
            current = definition.pool(period_key(definition.period, now_ms))
            for pool in (renewed | {current.pool: current}).values():
                await pool_rows.upsert_pool(connection, pool)
        return [*(renewed | {current.pool: current})]

    async def find_code(self, tenant: str, code: str) -> CodeDefinition | None:
        """The code, or None."""
        async with transaction(self._engine) as connection:
            return await _load_code(connection, tenant, code)

    async def put_product(self, product: Product) -> Product:
        """Commit a product under the next rev."""
        decided: dict[str, Any] = {
            "name": product.name,
            "amount_minor": product.amount_minor,
            "currency": product.currency,
            "recurring": None if product.recurring is None else {"interval": product.recurring.interval},
        }
        statement = (
            insert(ProductRow)
            .values(tenant=product.tenant, id=product.id, rev=definition_rev.next_value(), **decided)
            .on_conflict_do_update(
                index_elements=["tenant", "id"], set_={**decided, "rev": definition_rev.next_value()}
            )
            .returning(ProductRow.rev)
        )
        async with transaction(self._engine) as connection:
            await pool_rows.ensure_tenant(connection, product.tenant)
            return replace(product, rev=(await connection.execute(statement)).scalar_one())

    async def find_product(self, tenant: str, product: str) -> Product | None:
        """The product, or None."""
        async with transaction(self._engine) as connection:
            return (await _load_products(connection, tenant, [product])).get(product)

    async def offer(self, tenant: str, products: Sequence[str], code: str | None, at_ms: int) -> Offer:
        """Products, code and the code's pool of the period that ``at_ms`` lies in, made here if it is the first."""
        # One snapshot: a code and a pool of two different definitions would price by one and count by the other.
        async with transaction(self._engine.execution_options(isolation_level="REPEATABLE READ")) as connection:
            found = await _load_products(connection, tenant, products)
            definition = None if code is None else await _load_code(connection, tenant, code)
            if definition is None:
                return Offer(found)
            period = period_key(definition.period, at_ms)
            pools = await pool_rows.load_pools(connection, tenant, [definition.pool(period).pool])
        if pools:
            return Offer(found, definition, pools[0], period)
        async with transaction(self._engine) as connection:
            definition = await _load_code(connection, tenant, definition.code, lock=True)
            if definition is None:
                return Offer(found)
            period = period_key(definition.period, at_ms)
            return Offer(found, definition, await _make_pool(connection, definition.pool(period)), period)

    async def has_pool(self, tenant: str, pool: str) -> bool:
        """Whether a pool is defined."""
        async with transaction(self._engine) as connection:
            return bool(await connection.scalar(select(exists().where(Pool.tenant == tenant, Pool.id == pool))))

    async def count_redeemed(self, tenant: str, code: str, period: str) -> int:
        """Units sold of a code in a period, as persisted."""
        async with transaction(self._engine) as connection:
            return await pool_rows.count_units(connection, tenant, pools_of(code) + period)


async def _make_pool(connection: AsyncConnection, wanted: PoolDefinition) -> PoolDefinition:
    """Insert the pool of a new period; of two that do so at once, the second takes what the first wrote.

    The caller holds a share of the code's row, so that no pool is made from a definition that is being replaced.
    """
    statement = (
        insert(Pool)
        .values(
            tenant=wanted.tenant,
            id=wanted.pool,
            cap=wanted.cap,
            rev=definition_rev.next_value(),
            opens_at_ms=wanted.opens_at_ms,
            closes_at_ms=wanted.closes_at_ms,
            status=wanted.status.value,
            per_customer=wanted.per_customer,
            late_payment=wanted.late_payment.value,
        )
        .on_conflict_do_nothing()
    )
    await connection.execute(statement)
    return (await pool_rows.load_pools(connection, wanted.tenant, [wanted.pool]))[0]


def _renewed(definition: CodeDefinition, old: PoolDefinition, now_ms: int) -> PoolDefinition | None:
    period = old.pool.removeprefix(pools_of(definition.code))
    try:
        _, ends_ms = bounds_of(definition.period, period)
    except Invalid:
        return None
    return definition.pool(period) if ends_ms is None or ends_ms > now_ms else None


async def _load_code(
    connection: AsyncConnection, tenant: str, code: str, *, lock: bool = False
) -> CodeDefinition | None:
    statement = select(*Code.__table__.c).where(Code.tenant == tenant, Code.code == code)
    row = (await connection.execute(statement.with_for_update(read=True) if lock else statement)).one_or_none()
    if row is None:
        return None
    return CodeDefinition(
        tenant=row.tenant,
        code=row.code,
        cap=row.cap,
        period=_rule_in(row.period),
        discount=_discount_in(row.discount),
        per_customer=row.per_customer,
        opens_at_ms=row.opens_at_ms,
        closes_at_ms=row.closes_at_ms,
        products=None if row.products is None else tuple(row.products),
        late_payment=LatePayment(row.late_payment),
        rev=row.rev,
    )


async def _load_products(connection: AsyncConnection, tenant: str, products: Sequence[str]) -> dict[str, Product]:
    rows = await connection.execute(
        select(*ProductRow.__table__.c).where(ProductRow.tenant == tenant, ProductRow.id.in_(products))
    )
    return {
        row.id: Product(
            tenant=row.tenant,
            id=row.id,
            name=row.name,
            amount_minor=row.amount_minor,
            currency=row.currency,
            recurring=None if row.recurring is None else Recurrence(row.recurring["interval"]),
            rev=row.rev,
        )
        for row in rows
    }


def _rule_out(rule: PeriodRule) -> dict[str, str]:
    return {"kind": rule.kind.value, "starts": rule.starts, "timezone": rule.timezone}


def _rule_in(stored: dict[str, str]) -> PeriodRule:
    return PeriodRule(PeriodKind(stored["kind"]), stored["timezone"], stored["starts"])


def _discount_out(discount: Discount) -> dict[str, Any]:
    if discount.percent_off is not None:
        return {"percent_off": str(discount.percent_off)}
    return {"amount_off_minor": discount.amount_off_minor, "currency": discount.currency}


def _discount_in(stored: dict[str, Any]) -> Discount:
    percent = stored.get("percent_off")
    if percent is not None:
        return Discount(percent_off=Decimal(percent))
    return Discount(amount_off_minor=stored["amount_off_minor"], currency=stored["currency"])
