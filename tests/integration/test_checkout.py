"""Checkout on real Redis and Postgres: its order of things, its repeats, and what a crash in between leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from engine.domain import AttemptStatus, OrderStatus, Outcome, Provider
from engine.errors import (
    IdConflict,
    Invalid,
    NotReady,
    ProviderError,
    ProviderTimeout,
    Refused,
    StorageUnavailable,
    Unknown,
)
from engine.orders import OrderFilter, Placement
from engine.payments.port import EventKind
from tests.shop import CODE, TENANT, Shop, event, open_shop, request

if TYPE_CHECKING:
    from tests.conftest import RedisBackend


@pytest.fixture
async def shop(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Shop]:
    async with open_shop(redis_backend.url, database_url) as opened:
        await opened.stock()
        yield opened


async def test_a_checkout_holds_one_redemption_and_two_clocks_in_order(shop: Shop) -> None:
    answer = await shop.buy("k1")
    assert answer.created
    assert (answer.order.amount_minor, answer.order.discount_minor, answer.order.currency) == (4410, 490, "GBP")
    assert answer.attempt is not None
    end_s = answer.attempt.frozen.expires_at_s
    reservation = await shop.engine.read(TENANT, answer.order.reservation_id or "")
    assert end_s == reservation.created_at_ms // 1000 + 1860
    assert end_s * 1000 < reservation.expires_at_ms == answer.order.expires_at_ms
    assert (reservation.code, reservation.period, reservation.order_id) == (CODE, "all", answer.order.id)
    assert (await shop.pool()).reserved == 1
    assert (await shop.order(answer.order.id)).status is OrderStatus.PENDING


async def test_everything_stands_in_postgres_before_the_provider_hears_of_it(shop: Shop) -> None:
    seen: list[list[tuple[object, ...]]] = []

    async def look(_: object) -> None:
        seen.append(
            await shop.rows(
                "select o.status, a.status, r.status, a.parameters->>'amount_minor' from orders o"
                " join attempts a on a.order_id = o.id"
                " join reservations r on r.tenant = o.tenant and r.id = o.reservation_id"
            )
        )

    shop.provider.opened = look
    await shop.buy("k1")
    assert seen == [[("pending", "frozen", "reserved", "4410")]]


async def test_without_a_code_nothing_is_reserved_and_no_session_end_is_set(shop: Shop) -> None:
    answer = await shop.buy("k1", code=None)
    assert answer.attempt is not None
    assert answer.order.reservation_id is None
    assert answer.attempt.frozen.expires_at_s is None
    assert (answer.order.amount_minor, answer.order.expires_at_ms) == (4900, None)
    assert (await shop.pool()).reserved == 0


async def test_the_same_key_gets_the_same_and_other_content_a_conflict(shop: Shop) -> None:
    first, second = await shop.buy("k1"), await shop.buy("k1")
    assert (first.created, second.created) == (True, False)
    assert second.order.id == first.order.id
    assert second.attempt is not None
    assert first.attempt is not None
    assert second.attempt.session_id == "cs_1"
    assert second.attempt.frozen == first.attempt.frozen
    assert (await shop.pool()).reserved == 1
    with pytest.raises(IdConflict):
        await shop.buy("k1", customer="grace")
    assert (await shop.pool()).reserved == 1


async def test_without_a_key_every_call_is_a_checkout_of_its_own(shop: Shop) -> None:
    first, second = await shop.buy(), await shop.buy()
    assert first.order.id != second.order.id
    assert (await shop.pool()).reserved == 2


async def test_codes_are_trimmed_and_case_does_not_matter(shop: Shop) -> None:
    answer = await shop.buy("k1", code="  school10 ")
    assert answer.order.code == CODE
    with pytest.raises(Unknown, match="NOSUCH"):
        await shop.buy("k2", code="nosuch")
    with pytest.raises(Invalid):
        await shop.buy("k3", code="a{b}")


async def test_a_refusal_names_pool_and_code_and_holds_nothing(shop: Shop) -> None:
    await shop.stock(cap=1)
    await shop.buy("k1")
    with pytest.raises(Refused) as refused:
        await shop.buy("k2", customer="grace")
    assert refused.value.refusal.outcome is Outcome.ALL_RESERVED
    assert refused.value.refusal.pool == f"codes/{CODE}/all"
    assert refused.value.details["promotion_code"] == CODE
    assert await shop.rows("select count(*) from orders") == [(1,)]
    assert len(shop.provider.sessions) == 1


async def test_a_provider_error_gives_the_units_back_at_once_and_the_same_key_may_try_again(shop: Shop) -> None:
    await shop.stock(cap=1)
    shop.provider.before["open"] = [ProviderError()]
    with pytest.raises(ProviderError):
        await shop.buy("k1")
    assert (await shop.pool()).reserved == 0
    assert await shop.rows("select o.status, a.status from orders o join attempts a on a.order_id = o.id") == [
        ("cancelled", "failed")
    ]
    answer = await shop.buy("k1")
    assert answer.attempt is not None
    assert (answer.attempt.frozen.number, answer.order.status) == (2, OrderStatus.PENDING)
    assert (await shop.pool()).reserved == 1
    assert [key.split(":")[1] for verb, key in shop.provider.calls if verb == "open"] == ["1", "2"]


async def test_thirty_buyers_get_thirty_places_though_the_provider_fails_ten(shop: Shop) -> None:
    shop.provider.before["open"] = [ProviderError() if n % 3 == 1 else None for n in range(30)]

    async def persistent(buyer: int) -> None:
        while True:
            try:
                await shop.buy(f"k{buyer}", customer=f"student-{buyer}")
            except (ProviderError, Refused):
                continue
            return

    await asyncio.gather(*(persistent(n) for n in range(30)))
    assert (await shop.pool()).reserved == 30
    assert len(shop.provider.payable) == 30


async def test_a_time_out_keeps_the_units_and_a_repeat_sends_the_same_bytes(shop: Shop) -> None:
    shop.provider.after["open"] = [ProviderTimeout()]
    with pytest.raises(ProviderTimeout):
        await shop.buy("k1")
    assert (await shop.pool()).reserved == 1
    await shop.advance(20)
    answer = await shop.buy("k1")
    assert answer.attempt is not None
    assert (answer.attempt.session_id, answer.attempt.frozen.number) == ("cs_1", 1)
    assert len(shop.provider.sessions) == 1
    assert (await shop.pool()).reserved == 1


@pytest.mark.parametrize("acted", [True, False], ids=["session made", "never heard"])
@pytest.mark.parametrize("later_s", [600, 1900, 2500], ids=["short of life", "session over", "reservation over"])
async def test_a_repeat_that_comes_too_late_starts_anew_with_one_payable_session(
    shop: Shop, acted: bool, later_s: int
) -> None:
    plan = shop.provider.after if acted else shop.provider.before
    plan["open"] = [ProviderTimeout()]
    with pytest.raises(ProviderTimeout):
        await shop.buy("k1")
    await shop.advance(later_s)
    answer = await shop.buy("k1")
    assert answer.attempt is not None
    # Ten minutes on, a session that was made is still open and simply found again.
    assert answer.attempt.frozen.number == (1 if acted and later_s == 600 else 2)
    assert shop.provider.payable == [answer.attempt.session_id]
    assert (await shop.pool()).reserved == 1
    shop.provider.pay(shop.provider.payable[0])
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, answer.attempt.session_id or ""))
    assert (await shop.order(answer.order.id)).status is OrderStatus.PAID
    assert (await shop.pool()).completed == 1


async def test_a_free_order_is_paid_without_a_provider(shop: Shop) -> None:
    await shop.stock(percent=100)
    answer = await shop.buy("k1")
    assert (answer.order.amount_minor, answer.order.discount_minor, answer.attempt) == (0, 4900, None)
    story = await shop.story(answer.order.id)
    assert (story.order.status, story.order.provider, story.payments) == (OrderStatus.PAID, Provider.NONE, ())
    assert (await shop.pool()).completed == 1
    assert shop.provider.calls == []
    assert (await shop.buy("k1")).order.id == answer.order.id
    assert (await shop.pool()).completed == 1


async def test_an_order_whose_reservation_ends_unpaid_reads_cancelled(shop: Shop) -> None:
    answer = await shop.buy("k1")
    await shop.advance(2401)
    assert (await shop.order(answer.order.id)).status is OrderStatus.CANCELLED
    assert (await shop.pool()).available == 30


async def test_an_order_whose_reservation_was_extended_is_pending_as_long_as_that_lives(shop: Shop) -> None:
    answer = await shop.buy("k1")
    await shop.engine.extend(TENANT, answer.order.reservation_id or "", 3 * 3600 * 1000)
    await shop.persist()
    await shop.advance(2 * 3600)
    assert (await shop.order(answer.order.id)).status is OrderStatus.PENDING
    assert len(await shop.reader.orders(TENANT, OrderFilter(status=OrderStatus.PENDING))) == 1
    await shop.advance(3601)
    assert (await shop.order(answer.order.id)).status is OrderStatus.CANCELLED
    assert await shop.reader.orders(TENANT, OrderFilter(status=OrderStatus.PENDING)) == []


@pytest.mark.parametrize(("key", "kept"), [("k1", 1), (None, 0)])
async def test_what_postgres_fails_to_commit_waits_for_a_repeat_where_there_can_be_one(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, key: str | None, kept: int
) -> None:
    async def away(_: object) -> bool:
        raise StorageUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(shop.orders, "place", away)
        with pytest.raises(StorageUnavailable):
            await shop.buy(key)
    assert (await shop.pool()).reserved == kept
    answer = await shop.buy(key)
    assert answer.created
    assert (await shop.pool()).reserved == 1


async def test_the_primitive_may_not_touch_the_ids_of_a_checkout(shop: Shop) -> None:
    first = await shop.buy("k1")
    await shop.engine.release(TENANT, first.order.reservation_id or "")
    await shop.persist()
    # The answer was given; what became of the reservation is for the order to say.
    again = await shop.buy("k1")
    assert again.attempt is not None
    assert again.attempt.status is AttemptStatus.OPEN
    assert (await shop.order(first.order.id)).status is OrderStatus.CANCELLED


async def test_a_reservation_that_redis_forgot_is_not_granted_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    async def killed(_: Placement) -> bool:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shop.orders, "place", killed)
        with pytest.raises(Killed):
            await shop.buy("k1")
    await shop.persist()
    ((reservation_id, version),) = await shop.rows("select id, version from reservations")
    await shop.advance(9 * 24 * 3600)
    assert await shop.engine.remove_reservations(TENANT, [(reservation_id, version)]) == 1
    answer = await shop.buy("k1")
    assert answer.order.reservation_id != reservation_id
    await shop.persist()
    assert await shop.rows("select count(*) from set_aside_entries") == [(0,)]


async def test_a_period_that_turns_between_two_looks_at_the_clock_is_taken_up(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition, _ = await shop.catalogue.code(TENANT, CODE)
    from engine.periods import PeriodKind, PeriodRule  # noqa: PLC0415 -- only this test cuts periods

    await shop.catalogue.put_code(replace(definition, period=PeriodRule(PeriodKind.MONTH)))
    true_now, looks = shop.engine.now_ms, [0]

    async def a_month_ago_at_first(tenant: str = "") -> int:
        looks[0] += 1
        return await true_now(tenant) - (31 * 24 * 3600 * 1000 if looks[0] == 1 else 0)

    monkeypatch.setattr(shop.engine, "now_ms", a_month_ago_at_first)
    answer = await shop.buy("k1")
    monkeypatch.undo()
    _, usage = await shop.catalogue.code(TENANT, CODE)
    assert (answer.order.period, usage.reserved) == (usage.period, 1)


def test_requests_that_differ_have_other_fingerprints() -> None:
    base = request("k1")
    others = [
        replace(base, customer="grace"),
        replace(base, email="x@example.com"),
        replace(base, lines=(replace(base.lines[0], quantity=2),)),
        replace(base, code=None),
        replace(base, success_url="https://else.example/"),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 6


async def test_what_was_granted_before_a_loss_is_not_sold_after_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis loses its data between the grant and the commit; the rebuild can't know of the grant."""
    place = shop.orders.place

    async def place_after_a_loss(placement: Placement) -> bool:
        monkeypatch.undo()
        await shop.redis.flushall()
        await shop.admission.ensure()
        return await place(placement)

    monkeypatch.setattr(shop.orders, "place", place_after_a_loss)
    with pytest.raises(NotReady):
        await shop.buy("k1")
    assert await shop.rows("select * from orders") == []
    assert shop.provider.payable == []
    assert (await shop.pool()).reserved == 0
    repeated = await shop.buy("k1")
    assert repeated.created
    assert (await shop.pool()).reserved == 1
