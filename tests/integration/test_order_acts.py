"""What a seller does with an order: confirming and cancelling, before and after it was paid, at both providers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from engine import order_acts
from engine.code_reservations import CodeReservations
from engine.domain import OrderStatus, PaymentStatus, Provider, RefundStatus
from engine.errors import IllegalTransition, ProviderTimeout, Unknown
from engine.order_acts import OrderActs
from engine.paying import Paying
from engine.payments.port import EventKind
from engine.pricing import WantedLine
from engine.settlement import SettlementService
from tests.crashing import MOST_CALLS, Crash, Fuse
from tests.shop import TENANT, Shop, event, open_shop

if TYPE_CHECKING:
    from tests.conftest import RedisBackend


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No persister runs beside these tests, so there is no effect to wait for."""
    monkeypatch.setattr(order_acts, "LOOKS_FOR_EFFECT", 0)


@pytest.fixture
async def shop(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Shop]:
    async with open_shop(redis_backend.url, database_url) as opened:
        await opened.stock(cap=2)
        yield opened


async def paid_order(shop: Shop, key: str, code: str | None) -> str:
    answer = await shop.buy(key, code=code)
    assert answer.attempt is not None
    session = answer.attempt.session_id or ""
    shop.provider.pay(session)
    amount = 4410 if code else 4900
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, session, amount_minor=amount))
    await shop.persist()
    return answer.order.id


async def cancel(shop: Shop, order_id: str, *, restock: bool) -> None:
    """Cancel, without a persister that runs beside."""
    await shop.acts.cancel(TENANT, order_id, restock=restock)
    await shop.persist()


async def test_a_paid_order_is_confirmed_once_and_no_other_is(shop: Shop) -> None:
    order = await paid_order(shop, "k1", "SCHOOL10")
    for _ in range(2):
        await shop.acts.confirm(TENANT, order)
    story = await shop.story(order)
    assert story.order.status is OrderStatus.CONFIRMED
    assert [entry.event for entry in story.history].count("confirmed") == 1
    pending = await shop.buy("k2", customer="bob")
    with pytest.raises(IllegalTransition) as refused:
        await shop.acts.confirm(TENANT, pending.order.id)
    assert refused.value.details["status"] == "pending"
    with pytest.raises(Unknown):
        await shop.acts.confirm("another", order)


@pytest.mark.parametrize("restock", [True, False])
@pytest.mark.parametrize("code", ["SCHOOL10", None])
async def test_cancelling_a_paid_order_sends_the_money_back_once(shop: Shop, code: str | None, restock: bool) -> None:
    order = await paid_order(shop, "k1", code)
    for _ in range(2):
        await cancel(shop, order, restock=restock)
    story = await shop.story(order)
    assert story.order.status is OrderStatus.CANCELLED
    assert [p.status for p in story.payments] == [PaymentStatus.REFUND_OWED]
    for _ in range(2):
        await shop.refunds.pay_due()
        await cancel(shop, order, restock=restock)
    story = await shop.story(order)
    amount = 4410 if code else 4900
    assert (story.order.status, story.order.refunded_minor) == (OrderStatus.REFUNDED, amount)
    assert [(r.amount_minor, r.status) for r in story.refunds] == [(amount, RefundStatus.REFUNDED)]
    assert [r.amount_minor for r in shop.provider.refunds] == [amount]
    told = [entry.event for entry in story.history]
    assert told == ["created", "session_opened", "paid", "cancelled", "refund_owed", "refunded"]
    if code is not None:
        assert (await shop.pool()).completed == (0 if restock else 1)


@pytest.mark.parametrize("code", ["SCHOOL10", None])
async def test_cancelling_an_unpaid_order_closes_its_session_first(shop: Shop, code: str | None) -> None:
    answer = await shop.buy("k1", code=code)
    shop.provider.before["expire"] = [ProviderTimeout()]
    with pytest.raises(ProviderTimeout):
        await cancel(shop, answer.order.id, restock=True)
    assert (await shop.order(answer.order.id)).status is OrderStatus.PENDING
    for _ in range(2):
        await cancel(shop, answer.order.id, restock=True)
    assert shop.provider.payable == []
    story = await shop.story(answer.order.id)
    assert (story.order.status, story.order.withdrawn) == (OrderStatus.CANCELLED, True)
    assert [entry.event for entry in story.history][2:] == ["session_closed", "cancelled"]
    assert (await shop.pool()).reserved == 0
    # The same key brings no session any more: the seller said no.
    with pytest.raises(IllegalTransition):
        await shop.buy("k1", code=code)
    assert shop.provider.payable == []


@pytest.mark.parametrize("code", ["SCHOOL10", None])
async def test_an_order_that_turns_out_to_be_paid_is_cancelled_as_a_paid_one(shop: Shop, code: str | None) -> None:
    answer = await shop.buy("k1", code=code)
    assert answer.attempt is not None
    shop.provider.pay(answer.attempt.session_id or "")
    await cancel(shop, answer.order.id, restock=True)
    await shop.refunds.pay_due()
    order = await shop.order(answer.order.id)
    assert order.status is OrderStatus.REFUNDED
    assert (await shop.pool()).completed == 0


@pytest.mark.parametrize("code", ["SCHOOL10", None])
async def test_a_payment_for_an_order_that_its_seller_withdrew_goes_back(shop: Shop, code: str | None) -> None:
    """Paystack closes nothing, so the buyer may pay after the seller said no."""
    await shop.stock_naira()
    answer = await shop.buy("k1", code=code, lines=(WantedLine("ng", 1),), provider=Provider.PAYSTACK)
    assert answer.attempt is not None
    reference = answer.attempt.session_id or ""
    await cancel(shop, answer.order.id, restock=True)
    shop.paystack.pay(reference)
    amount = 225000 if code else 250000
    paid = event(EventKind.PAID, reference, amount_minor=amount, currency="NGN", payment_ref=reference)
    for _ in range(2):
        await shop.settlement.receive(Provider.PAYSTACK, paid)
    await shop.persist()
    for waiting in await shop.settlements.load_waiting_of(answer.order.id):
        await shop.settlement.apply_quietly(waiting)
    await shop.persist()
    await shop.refunds.pay_due()
    story = await shop.story(answer.order.id)
    assert (story.order.status, story.order.refunded_minor) == (OrderStatus.REFUNDED, amount)
    assert (len(shop.paystack.refunds), (await shop.pool()).completed) == (1, 0)


@pytest.mark.parametrize("is_paid", [True, False], ids=["paid", "unpaid"])
@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
async def test_a_crash_anywhere_in_a_cancellation_is_mended_by_a_repeat(shop: Shop, after: bool, is_paid: bool) -> None:
    await shop.stock(cap=None)
    places = 0
    for place in range(1, MOST_CALLS):
        key = f"k{place}"
        if is_paid:
            order = await paid_order(shop, key, "SCHOOL10")
        else:
            order = (await shop.buy(key)).order.id
        fuse = Fuse(place, after=after)
        try:
            await dying_acts(shop, fuse).cancel(TENANT, order, restock=True)
        except Crash:
            places += 1
        else:
            break
        await cancel(shop, order, restock=True)
        await shop.persist()
    assert places >= 4
    for waiting in await shop.settlements.load_waiting(100):
        await shop.settlement.apply_quietly(waiting)
    await shop.persist()
    await shop.refunds.pay_due()
    status = "refunded" if is_paid else "cancelled"
    assert await shop.rows("select status, count(*) from orders group by 1") == [(status, places + 1)]
    assert [r.amount_minor for r in shop.provider.refunds] == ([4410] * (places + 1) if is_paid else [])
    pool = await shop.pool()
    assert (pool.reserved, pool.completed, shop.provider.payable) == (0, 0, [])


def dying_acts(shop: Shop, fuse: Fuse) -> OrderActs:
    """The shop's acts as a process of its own, whose every way out passes the fuse."""
    engine, orders = fuse.around(shop.engine), fuse.around(shop.orders)
    held = CodeReservations(shop.settings, engine, shop.held._lookup, shop.held._catalogue, shop.definitions)
    settlements = SettlementService(fuse.around(shop.settlements), engine, shop.settings.delayed_hold_seconds)
    paying = Paying(
        held=held,
        orders=orders,
        attempts=fuse.around(shop.attempts),
        payments={provider: fuse.around(port) for provider, port in shop.payments.items()},
        settlements=settlements,
        most_attempts=shop.settings.checkout_attempts,
    )
    return OrderActs(orders, paying, held, settlements)


async def test_what_is_not_there_is_unknown(shop: Shop) -> None:
    with pytest.raises(Unknown):
        await shop.acts.cancel(TENANT, "nothing", restock=True)
    with pytest.raises(Unknown):
        await shop.refunds.request(TENANT, "nothing", "r1", None, "")
