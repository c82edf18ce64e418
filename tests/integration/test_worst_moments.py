"""A crash, a twin or a provider's bad minute at the worst moment of paying, cancelling and refunding."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from engine import order_acts, paying
from engine.catalogue import CodeDefinition, Discount
from engine.domain import LatePayment, OrderStatus, Provider
from engine.errors import IllegalTransition, ProviderError, ProviderTimeout, Refused, StorageUnavailable
from engine.payments.port import EventKind, SessionState
from engine.periods import PeriodKind, PeriodRule
from engine.pricing import WantedLine
from tests.books import Books, open_books, told
from tests.shop import PRODUCT, TENANT, Shop, event, open_shop

if TYPE_CHECKING:
    from tests.conftest import RedisBackend

OUT_OF_ORDER = ProviderError(provider_code="api_error", is_final=False)


class Crash(BaseException):
    """The process dies here."""


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No persister and no other process run beside these tests, so there is nothing to wait for."""
    monkeypatch.setattr(order_acts, "LOOKS_FOR_EFFECT", 0)
    monkeypatch.setattr(paying, "LOOKS_FOR_TWIN", 1)


@pytest.fixture
async def shop(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Shop]:
    async with open_shop(redis_backend.url, database_url) as opened:
        await opened.stock(cap=5, per_customer=1)
        await opened.stock_naira()
        yield opened


@pytest.fixture
async def books(database_url: str) -> AsyncIterator[Books]:
    async with open_books(database_url) as opened:
        await opened.add_order()
        yield opened


def session_of(answer: Any) -> str:
    return str(answer.attempt.session_id)


async def dies(*_: Any, **__: Any) -> Any:
    raise Crash


async def test_a_provider_that_acted_and_said_it_failed_is_looked_up_first(books: Books) -> None:
    await books.add_payment("pi_1")
    books.stripe.after["refund"] = [OUT_OF_ORDER]
    books.stripe.before["look_up_refunds"] = [ProviderTimeout()]
    await books.service.request("school", "o1", "r1", 1000, "x")
    await books.let_pause_pass()
    await books.service.pay_due()
    assert books.stripe.sent_back("pi_1") == 1000
    assert await books.payment() == ("kept", 1000)


async def test_the_same_after_a_call_whose_answer_was_lost(books: Books) -> None:
    await books.add_payment("pi_1")
    books.stripe.before["refund"] = [ProviderTimeout()]
    await books.service.request("school", "o1", "r1", 1000, "x")
    await books.let_pause_pass()
    books.stripe.after["refund"] = [OUT_OF_ORDER]
    await books.service.pay_due()
    await books.let_pause_pass()
    await books.service.pay_due()
    assert books.stripe.sent_back("pi_1") == 1000


async def test_two_refunds_of_one_payment_may_both_fail_after_all(books: Books) -> None:
    await books.add_payment("pi_1")
    by_hand = books.stripe.send_back_by_hand("pi_1", 400)
    await books.hear(by_hand)
    await books.owe("pi_1")
    await books.service.pay_due()
    await books.hear(books.stripe.fail_refund(by_hand.ref or ""))
    ours = next(r for r in books.stripe.refunds if r.ref != by_hand.ref)
    await books.hear(books.stripe.fail_refund(ours.ref or ""))
    assert await books.payment() == ("refund_owed", 0)
    await books.let_pause_pass()
    await books.service.pay_due()
    assert books.stripe.sent_back("pi_1") == 4900
    assert await books.payment() == ("refunded", 4900)


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_cancel_that_failed_half_way_leaves_one_session_at_most(shop: Shop, is_answered: bool) -> None:
    """No reservation: the buyer asks again between the seller's two tries."""
    if not is_answered:
        shop.provider.after["open"] = [ProviderTimeout()]
        with pytest.raises(ProviderTimeout):
            await shop.buy("k1", code=None)
    else:
        await shop.buy("k1", code=None)
    ((order,),) = await shop.rows("select id from orders")
    shop.provider.before["expire"] = [ProviderTimeout()]
    with pytest.raises(ProviderTimeout):
        await shop.acts.cancel(TENANT, order, restock=True)
    again = await shop.buy("k1", code=None)
    assert shop.provider.payable == [session_of(again)]
    await shop.acts.cancel(TENANT, order, restock=True)
    assert shop.provider.payable == []
    assert (await shop.order(order)).status is OrderStatus.CANCELLED


async def test_a_session_that_is_opened_while_its_seller_cancels_is_closed_too(shop: Shop) -> None:
    answer = await shop.buy("k1")
    real = shop.attempts.end

    async def end(attempt: Any) -> None:
        await real(attempt)
        shop.attempts.end = real  # type: ignore[method-assign]
        await shop.buy("k1")

    shop.attempts.end = end  # type: ignore[method-assign]
    await shop.acts.cancel(TENANT, answer.order.id, restock=True)
    assert shop.provider.payable == []
    assert (await shop.pool()).reserved == 0


async def test_a_payment_of_another_amount_stands_in_nobodys_way(shop: Shop) -> None:
    for code in ("SCHOOL10", None):
        answer = await shop.buy(f"k-{code}", code=code)
        paid = event(EventKind.PAID, session_of(answer), amount_minor=1)
        await shop.settlement.receive(Provider.STRIPE, paid)
        if code is not None:
            other = await shop.buy("another")
            assert other.order.id != answer.order.id
        await shop.acts.cancel(TENANT, answer.order.id, restock=True)
        assert (await shop.order(answer.order.id)).status is OrderStatus.CANCELLED


async def test_a_payment_of_another_amount_that_a_cancel_meets_is_no_hindrance(shop: Shop) -> None:
    """Closing finds the session complete, with another amount than was asked for."""
    answer = await shop.buy("k1")
    session = session_of(answer)
    shop.provider.pay(session)
    shop.provider.sessions[session] = replace(shop.provider.sessions[session], amount_minor=1)
    await shop.acts.cancel(TENANT, answer.order.id, restock=True)
    story = await shop.story(answer.order.id)
    assert (story.order.status, story.order.withdrawn) == (OrderStatus.CANCELLED, True)
    assert [payment.status.value for payment in story.payments] == ["refund_owed"]
    assert (await shop.pool()).reserved == 0


async def test_an_order_whose_late_payment_goes_back_is_cancelled_already(shop: Shop) -> None:
    await shop.catalogue.put_code(
        CodeDefinition(
            TENANT,
            "SCHOOL10",
            5,
            PeriodRule(PeriodKind.NONE),
            Discount(percent_off=Decimal(10)),
            late_payment=LatePayment.REFUND,
        )
    )
    answer = await shop.buy("k1")
    await shop.advance(2500)
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, session_of(answer)))
    await shop.persist()
    for _ in range(2):
        await shop.acts.cancel(TENANT, answer.order.id, restock=True)
    assert (await shop.order(answer.order.id)).status is OrderStatus.CANCELLED


@pytest.mark.parametrize("code", ["SCHOOL10", None])
async def test_a_refund_by_hand_that_fails_after_a_cancellation_is_owed(shop: Shop, code: str | None) -> None:
    answer = await shop.buy("k1", code=code)
    session, amount = session_of(answer), 4410 if code else 4900
    shop.provider.pay(session)
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, session, amount_minor=amount))
    await shop.persist()
    by_hand = shop.provider.send_back_by_hand(f"pi_{session}", amount)
    await shop.refunds.receive(Provider.STRIPE, told(by_hand))
    await shop.acts.cancel(TENANT, answer.order.id, restock=True)
    assert (await shop.order(answer.order.id)).status is OrderStatus.REFUNDED
    await shop.refunds.receive(Provider.STRIPE, told(shop.provider.fail_refund(by_hand.ref or "")))
    assert (await shop.order(answer.order.id)).status is OrderStatus.CANCELLED
    await shop.refunds.pay_due()
    order = await shop.order(answer.order.id)
    assert (order.status, order.refunded_minor) == (OrderStatus.REFUNDED, amount)


@pytest.mark.parametrize("where", ["extend", "give_back"])
async def test_units_that_a_dead_process_left_are_free_for_their_customer(
    shop: Shop, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await shop.buy("k1")
    with monkeypatch.context() as dying:
        dying.setattr(shop.held, where, dies)
        dying_call = shop.buy("k2") if where == "extend" else shop.acts.cancel(TENANT, first.order.id, restock=True)
        with pytest.raises(Crash):
            await dying_call
    if where == "extend":
        # The session's time is over, the reservation's is not.
        await shop.advance(1930)
        await shop.overdue.close()
    else:
        await shop.acts.cancel(TENANT, first.order.id, restock=True)
        assert (await shop.pool()).reserved == 0
    again = await shop.buy("k3")
    assert again.order.id != first.order.id
    assert shop.provider.payable == [session_of(again)]
    assert (await shop.pool()).reserved == 1


async def test_an_order_that_was_refused_and_withdrawn_is_refused_at_once(shop: Shop) -> None:
    shop.provider.before["open"] = [ProviderError()]
    with pytest.raises(ProviderError):
        await shop.buy("k1")
    ((order,),) = await shop.rows("select id from orders")
    await shop.acts.cancel(TENANT, order, restock=True)
    calls = len(shop.provider.calls)
    with pytest.raises(IllegalTransition):
        await shop.buy("k1")
    assert (len(shop.provider.calls), (await shop.pool()).reserved) == (calls, 0)


async def test_cancelling_what_was_sold_without_a_payment_may_be_repeated(shop: Shop) -> None:
    await shop.stock(cap=5, percent=100)
    answer = await shop.buy("free")
    await shop.persist()
    for _ in range(3):
        await shop.acts.cancel(TENANT, answer.order.id, restock=True)
        await shop.persist()
    story = await shop.story(answer.order.id)
    assert (story.order.status, story.order.withdrawn) == (OrderStatus.CANCELLED, False)
    assert [entry.event for entry in story.history].count("cancelled") == 1
    assert (await shop.pool()).completed == 0


async def test_a_free_order_that_waits_for_its_settlement_keeps_its_units(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.stock(cap=5, per_customer=1, percent=100)
    with monkeypatch.context() as dying:
        dying.setattr(shop.settlement, "apply_waiting_of", dies)
        with pytest.raises(Crash):
            await shop.buy("k1")
    for quantity in (2, 1):
        with pytest.raises(Refused):
            await shop.buy(f"other-{quantity}", lines=(WantedLine(PRODUCT, quantity),))
    await shop.persist()
    assert (await shop.pool()).completed == 1


async def test_addresses_that_are_lost_again_and_again_are_bounded(shop: Shop) -> None:
    shop.paystack.after["open"] = [ProviderTimeout()] * 12
    for _ in range(12):
        with pytest.raises(ProviderTimeout):
            await shop.buy("k1", lines=(WantedLine("ng", 1),), provider=Provider.PAYSTACK)
    assert await shop.rows("select count(*) from attempts") == [(shop.settings.checkout_attempts,)]


async def test_a_provider_out_of_order_says_nothing_of_a_session(shop: Shop) -> None:
    """Neither that there is none to close, nor that nobody paid there."""
    shop.provider.after["open"] = [ProviderTimeout()]
    with pytest.raises(ProviderTimeout):
        await shop.buy("k1")
    shop.provider.before["open"] = [OUT_OF_ORDER]
    with pytest.raises(ProviderTimeout):
        await shop.buy("k2")
    shop.provider.before["open"] = [OUT_OF_ORDER]
    with pytest.raises(ProviderTimeout):
        await shop.buy("k1")
    assert len(shop.provider.sessions) == 1

    shop.paystack.after["open"] = [ProviderTimeout()]
    with pytest.raises(ProviderTimeout):
        await shop.buy("p1", customer="bola", lines=(WantedLine("ng", 1),), provider=Provider.PAYSTACK)
    (reference,) = shop.paystack.sessions
    shop.paystack.pay(reference)
    await shop.advance(2500)
    shop.paystack.before["look_up"] = [OUT_OF_ORDER]
    await shop.overdue.close()
    await shop.overdue.close()
    ((order,),) = await shop.rows("select id from orders where customer = 'bola'")
    assert (await shop.order(order)).status is OrderStatus.PAID


async def test_a_session_for_another_amount_is_offered_to_nobody(shop: Shop) -> None:
    real = shop.provider._open_session

    def other(attempt: Any, session_id: str) -> Any:
        return replace(real(attempt, session_id), amount_minor=1)

    shop.provider._open_session = other  # type: ignore[method-assign]
    with pytest.raises(ProviderError):
        await shop.buy("k1")
    assert (shop.provider.payable, (await shop.pool()).reserved) == ([], 0)


async def test_a_mark_of_another_tenant_finds_nothing(shop: Shop) -> None:
    answer = await shop.buy("k1")
    stray = replace(event(EventKind.PAID, "cs_stray", order=answer.order.id), marked_tenant="another")
    with pytest.raises(StorageUnavailable):
        await shop.settlement.receive(Provider.STRIPE, stray)
    assert (await shop.order(answer.order.id)).status is OrderStatus.PENDING
    assert shop.provider.sessions[session_of(answer)].state is SessionState.OPEN
