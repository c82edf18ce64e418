"""Definitions on their way from Postgres to Redis, and codes counted per period."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from engine.catalogue import CodeDefinition, Discount, Product, Recurrence
from engine.domain import Claim, Outcome, PoolDefinition, ReservationRequest
from engine.errors import Invalid, NotReady, Refused, Unknown
from engine.periods import PeriodKind, PeriodRule
from tests.shop import CODE, PRODUCT, TENANT, Shop, open_shop

if TYPE_CHECKING:
    from tests.conftest import RedisBackend

SCHOOL_YEAR = PeriodRule(PeriodKind.ACADEMIC_YEAR, "Europe/London")


@pytest.fixture
async def shop(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Shop]:
    async with open_shop(redis_backend.url, database_url) as opened:
        yield opened


def school_code(cap: int | None = 30, period: PeriodRule = SCHOOL_YEAR) -> CodeDefinition:
    return CodeDefinition(TENANT, CODE, cap, period, Discount(percent_off=Decimal(10)))


def pool(name: str, cap: int | None) -> PoolDefinition:
    return PoolDefinition(TENANT, name, cap, rev=0)


async def stock_school_year(shop: Shop, cap: int = 30) -> None:
    await shop.catalogue.put_product(Product(TENANT, PRODUCT, "Practice pack", 4900, "GBP"))
    await shop.catalogue.put_code(school_code(cap))


async def turn_of_the_school_year(shop: Shop) -> int:
    """Seconds until the next first of September in London."""
    now = datetime.fromtimestamp(await shop.engine.now_ms(TENANT) / 1000, UTC).astimezone(ZoneInfo("Europe/London"))
    year = now.year if (now.month, now.day) < (9, 1) else now.year + 1
    return int(datetime(year, 9, 1, tzinfo=ZoneInfo("Europe/London")).timestamp() - now.timestamp())


async def test_a_code_is_counted_per_period_and_the_old_period_keeps_its_count_and_cap(shop: Shop) -> None:
    await stock_school_year(shop)
    first = await shop.buy("k1")
    year = int(first.order.period[:4])
    until_turn = await turn_of_the_school_year(shop)
    await shop.advance(until_turn - 60)
    assert (await shop.buy("k2", customer="bo")).order.period == first.order.period
    await shop.advance(61)
    third = await shop.buy("k3", customer="cy")
    following = f"{year + 1}-{(year + 2) % 100:02d}"
    assert third.order.period == following
    await shop.catalogue.put_code(school_code(cap=5))
    _, usage = await shop.catalogue.code(TENANT, CODE)
    assert (usage.period, usage.reserved, usage.available) == (following, 1, 4)
    past = await shop.catalogue.usage(TENANT, CODE, first.order.period)
    assert (past.reserved, past.available) == (1, 29)
    assert (await shop.catalogue.usage(TENANT, CODE, "2099-00")).available == 5
    with pytest.raises(Invalid):
        await shop.catalogue.usage(TENANT, CODE, "2026-28")


async def test_the_script_itself_refuses_a_redemption_under_the_wrong_period(shop: Shop) -> None:
    await stock_school_year(shop)
    answer = await shop.buy("k1")
    last_year = f"codes/{CODE}/{answer.order.period}"
    await shop.advance(await turn_of_the_school_year(shop) + 1)
    with pytest.raises(Refused) as refused:
        await shop.engine.reserve(ReservationRequest(TENANT, "r1", (Claim(last_year, 1),), 60_000))
    assert refused.value.refusal.outcome is Outcome.CLOSED


async def test_a_period_in_which_nothing_was_sold_reads_empty_and_defines_nothing(shop: Shop) -> None:
    await stock_school_year(shop)
    usage = await shop.catalogue.usage(TENANT, CODE, "2050-51")
    assert (usage.completed, usage.reserved, usage.available) == (0, 0, 30)
    assert await shop.rows("select count(*) from pools") == [(1,)]


async def test_the_window_is_what_code_and_period_have_in_common(shop: Shop) -> None:
    now_ms = await shop.engine.now_ms()
    await shop.catalogue.put_product(Product(TENANT, PRODUCT, "Practice pack", 4900, "GBP"))
    await shop.catalogue.put_code(replace(school_code(), opens_at_ms=now_ms + 3_600_000))
    with pytest.raises(Refused) as refused:
        await shop.buy("k1")
    assert (refused.value.code, refused.value.refusal.opens_at_ms) == ("not_open", now_ms + 3_600_000)
    await shop.catalogue.put_code(replace(school_code(), closes_at_ms=now_ms - 1))
    with pytest.raises(Refused) as closed:
        await shop.buy("k1")
    assert closed.value.code == "closed"


async def test_a_definition_that_changes_under_a_checkout_is_taken_up(shop: Shop) -> None:
    await shop.stock()
    offer = shop.held._catalogue.offer
    looks = [0]

    async def changed_right_after(tenant: str, products: object, code: object, at_ms: int) -> object:
        found = await offer(tenant, products, code, at_ms)  # type: ignore[arg-type]
        looks[0] += 1
        if looks[0] == 1:
            await shop.stock(percent=50)
        return found

    shop.held._catalogue.offer = changed_right_after  # type: ignore[assignment]
    answer = await shop.buy("k1")
    # Priced by the definition that the units were granted under.
    assert (answer.order.discount_minor, (await shop.pool()).reserved) == (2450, 1)


async def test_what_a_crash_left_between_commit_and_push_is_pushed_by_the_job(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> object:
        raise NotReady

    with monkeypatch.context() as patch:
        patch.setattr(shop.engine, "define_pool", away)
        with pytest.raises(NotReady):
            await shop.definitions.put(TENANT, pool("dish", 4))
        with pytest.raises(NotReady):
            await shop.definitions.push_pending()
    # The tenant's very first pool: it must still count as such, whenever the push succeeds.
    assert await shop.definitions.push_pending() == 1
    assert (await shop.engine.read_pool(TENANT, "dish")).available == 4
    assert await shop.definitions.push_pending() == 0


async def test_first_pools_of_a_tenant_at_one_moment_all_arrive(shop: Shop) -> None:
    states = await asyncio.gather(*(shop.definitions.put(TENANT, pool(f"dish-{n}", n)) for n in range(8)))
    assert [state.available for state in states] == list(range(8))
    assert await shop.rows("select count(*) from pools where pushed_rev = rev") == [(8,)]


async def test_of_many_writers_redis_ends_with_what_postgres_has(shop: Shop) -> None:
    for _ in range(3):
        await asyncio.gather(*(shop.definitions.put(TENANT, pool("dish", cap)) for cap in range(20)))
        ((cap, rev),) = await shop.rows("select cap, rev from pools")
        state = await shop.engine.read_pool(TENANT, "dish")
        assert (state.definition.cap, state.definition.rev) == (cap, rev)


async def test_a_push_into_data_that_is_being_replaced_does_not_count(shop: Shop) -> None:
    async with shop.database.begin() as connection:
        await connection.exec_driver_sql(
            "insert into redis_epochs (epoch, server, run_id, replication_id, build, reason)"
            " select max(epoch) + 1, 's', 'r', 'p', 2, 'test' from redis_epochs"
        )
    await shop.definitions.put(TENANT, pool("dish", 4))
    assert await shop.rows("select pushed_rev from pools") == [(0,)]


async def test_a_pool_that_redis_forgot_is_counted_from_postgres(shop: Shop) -> None:
    await shop.stock(cap=3)
    answer = await shop.buy("k1")
    await shop.settlement.complete(TENANT, answer.order.reservation_id or "", "till")
    await shop.persist()
    ((rev,),) = await shop.rows("select rev from pools")
    assert await shop.engine.remove_pool(TENANT, f"codes/{CODE}/all", rev)
    usage = await shop.catalogue.usage(TENANT, CODE, "all")
    assert (usage.completed, usage.reserved, usage.available) == (1, 0, 2)
    # Nor is it made anew by a checkout, which would begin to count at nothing.
    with pytest.raises(NotReady):
        await shop.buy("k2", customer="bo")


async def test_codes_and_products_are_read_as_they_were_written(shop: Shop) -> None:
    definition = replace(
        school_code(cap=None, period=PeriodRule(PeriodKind.ACADEMIC_YEAR, "Asia/Tokyo", "04-01")),
        discount=Discount(amount_off_minor=500, currency="GBP"),
        per_customer=2,
        opens_at_ms=1_000,
        closes_at_ms=9_000_000_000_000,
        products=("a", "b"),
    )
    await shop.catalogue.put_code(definition)
    read, usage = await shop.catalogue.code(TENANT, f" {CODE.lower()} ")
    assert replace(read, rev=0) == definition
    assert usage.available is None
    product = await shop.catalogue.put_product(Product(TENANT, "p", "P", 900, "gbp", Recurrence("month")))
    assert await shop.catalogue.product(TENANT, "p") == product
    for ask in (shop.catalogue.product(TENANT, "q"), shop.catalogue.code(TENANT, "q")):
        with pytest.raises(Unknown):
            await ask
