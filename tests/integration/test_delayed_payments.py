"""Methods whose money takes days: the units are kept meanwhile, and taken again where the news came late."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from engine.catalogue import CodeDefinition, Discount
from engine.domain import LatePayment, OrderStatus, PaymentStatus, Provider
from engine.errors import Refused
from engine.payments.port import EventKind
from engine.periods import PeriodKind, PeriodRule
from tests.shop import CODE, TENANT, Shop, event, open_shop

if TYPE_CHECKING:
    from tests.conftest import RedisBackend

DAY = 24 * 3600


@pytest.fixture
async def shop(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Shop]:
    async with open_shop(redis_backend.url, database_url) as opened:
        await opened.stock(cap=1)
        yield opened


async def hear(shop: Shop, kind: EventKind, session: str = "cs_1") -> None:
    await shop.settlement.receive(Provider.STRIPE, event(kind, session))
    await shop.persist()


async def test_units_are_kept_for_fourteen_days_and_the_money_completes(shop: Shop) -> None:
    answer = await shop.buy("k1")
    await hear(shop, EventKind.UNPAID)
    story = await shop.story(answer.order.id)
    assert story.order.status is OrderStatus.PENDING
    assert (story.history[-1].event, story.history[-1].details["held"]) == ("payment_pending", True)
    await shop.advance(3 * DAY)
    with pytest.raises(Refused):
        await shop.buy("k2", customer="bob")
    await hear(shop, EventKind.PAID)
    order = await shop.order(answer.order.id)
    assert (order.status, order.late) == (OrderStatus.PAID, False)
    assert (await shop.pool()).completed == 1


async def test_money_that_does_not_come_gives_the_units_back_once(shop: Shop) -> None:
    answer = await shop.buy("k1")
    await hear(shop, EventKind.UNPAID)
    await shop.advance(3 * DAY)
    for _ in range(2):
        await hear(shop, EventKind.EXPIRED)
    assert (await shop.order(answer.order.id)).status is OrderStatus.CANCELLED
    assert (await shop.pool()).reserved == 0
    assert (await shop.buy("k2", customer="bob")).created


async def test_after_fourteen_days_the_units_are_free_again(shop: Shop) -> None:
    answer = await shop.buy("k1")
    await hear(shop, EventKind.UNPAID)
    await shop.advance(14 * DAY - 60)
    with pytest.raises(Refused):
        await shop.buy("k2", customer="bob")
    await shop.advance(62)
    assert (await shop.buy("k3", customer="bob")).created
    assert (await shop.reader.order(TENANT, answer.order.id)).order.status is OrderStatus.CANCELLED


async def test_news_that_came_late_take_the_units_again_where_there_is_room(shop: Shop) -> None:
    answer = await shop.buy("k1")
    await shop.advance(2500)
    assert (await shop.pool()).reserved == 0
    await hear(shop, EventKind.UNPAID)
    assert (await shop.pool()).reserved == 1
    assert (await shop.order(answer.order.id)).status is OrderStatus.PENDING
    await shop.advance(DAY)
    await hear(shop, EventKind.PAID)
    order = await shop.order(answer.order.id)
    assert (order.status, order.late) == (OrderStatus.PAID, False)


@pytest.mark.parametrize(
    ("policy", "status", "payment"),
    [
        (LatePayment.HONOUR, OrderStatus.PAID, PaymentStatus.KEPT),
        (LatePayment.REFUND_IF_FULL, OrderStatus.CANCELLED, PaymentStatus.REFUND_OWED),
        (LatePayment.REFUND, OrderStatus.CANCELLED, PaymentStatus.REFUND_OWED),
    ],
)
async def test_without_room_the_late_policy_decides_when_the_money_comes(
    shop: Shop, policy: LatePayment, status: OrderStatus, payment: PaymentStatus
) -> None:
    await shop.catalogue.put_code(
        CodeDefinition(TENANT, CODE, 1, PeriodRule(PeriodKind.NONE), Discount(percent_off=10), late_payment=policy)  # type: ignore[arg-type]
    )
    answer = await shop.buy("k1")
    await shop.advance(2500)
    other = await shop.buy("k2", customer="bob")
    await hear(shop, EventKind.UNPAID)
    story = await shop.story(answer.order.id)
    assert story.history[-1].details["held"] is False
    await hear(shop, EventKind.PAID, other.attempt.session_id or "" if other.attempt else "")
    await hear(shop, EventKind.PAID)
    story = await shop.story(answer.order.id)
    assert (story.order.status, [p.status for p in story.payments]) == (status, [payment])
    assert (await shop.pool()).completed == (2 if policy is LatePayment.HONOUR else 1)


async def test_an_amount_that_differs_holds_nothing(shop: Shop) -> None:
    answer = await shop.buy("k1")
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.UNPAID, "cs_1", amount_minor=4409))
    story = await shop.story(answer.order.id)
    assert (story.history[-1].event, story.payments) == ("amount_mismatch", ())
    await shop.advance(2500)
    assert (await shop.pool()).reserved == 0


async def test_an_order_without_reservation_waits_for_its_money(shop: Shop) -> None:
    answer = await shop.buy("k1", code=None)
    for kind, status in ((EventKind.UNPAID, OrderStatus.PENDING), (EventKind.PAID, OrderStatus.PAID)):
        await shop.settlement.receive(Provider.STRIPE, event(kind, "cs_1", amount_minor=4900))
        assert (await shop.order(answer.order.id)).status is status


async def test_a_session_whose_money_takes_days_is_not_followed_by_another(shop: Shop) -> None:
    await shop.stock(cap=2, per_customer=1)
    await shop.buy("k1")
    await hear(shop, EventKind.UNPAID)
    with pytest.raises(Refused):
        await shop.buy("k2")
    assert len(shop.provider.sessions) == 1
