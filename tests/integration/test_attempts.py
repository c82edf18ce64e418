"""One attempt after the other on one reservation: never two sessions on offer, and no unit given back in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from engine.domain import AttemptStatus, OrderStatus, Outcome, PaymentStatus, Provider
from engine.errors import IdConflict, ProviderError, ProviderTimeout, Refused
from engine.payments.port import EventKind, SessionState
from engine.pricing import WantedLine
from tests.shop import PRODUCT, TENANT, Shop, event, open_shop

if TYPE_CHECKING:
    from tests.conftest import RedisBackend


@pytest.fixture
async def shop(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Shop]:
    async with open_shop(redis_backend.url, database_url) as opened:
        await opened.stock(cap=2, per_customer=1)
        yield opened


def session_of(answer: Any) -> str:
    assert answer.attempt is not None
    assert answer.attempt.session_id is not None
    return str(answer.attempt.session_id)


async def test_the_same_customer_and_lines_get_the_same_reservation_with_a_fresh_attempt(shop: Shop) -> None:
    first = await shop.buy("k1")
    await shop.advance(600)
    again = await shop.buy("k2")
    assert (again.order.id, again.order.reservation_id) == (first.order.id, first.order.reservation_id)
    assert again.created
    assert session_of(again) != session_of(first)
    assert shop.provider.sessions[session_of(first)].state is SessionState.EXPIRED
    assert shop.provider.payable == [session_of(again)]
    assert (await shop.pool()).reserved == 1
    # Its life begins anew, and the session ends before it.
    assert first.order.expires_at_ms is not None
    assert again.order.expires_at_ms is not None
    assert again.order.expires_at_ms - first.order.expires_at_ms in (599_000, 600_000, 601_000)
    assert again.attempt is not None
    assert again.attempt.frozen.expires_at_s is not None
    assert again.attempt.frozen.expires_at_s * 1000 < again.order.expires_at_ms
    story = await shop.story(first.order.id)
    assert [entry.event for entry in story.history] == [
        "created",
        "session_opened",
        "session_closed",
        "session_opened",
    ]


async def test_news_that_the_old_session_ended_give_nothing_back(shop: Shop) -> None:
    first = await shop.buy("k1")
    again = await shop.buy("k2")
    for _ in range(2):
        await shop.settlement.receive(Provider.STRIPE, event(EventKind.EXPIRED, session_of(first)))
    assert (await shop.pool()).reserved == 1
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, session_of(again)))
    story = await shop.story(first.order.id)
    assert (story.order.status, story.order.late) == (OrderStatus.PAID, False)


async def test_news_of_the_end_between_closing_and_the_next_attempt_give_nothing_back(shop: Shop) -> None:
    """The provider's event of our own closing is quicker than we are."""
    first = await shop.buy("k1")
    shop.provider.after["expire"] = [ProviderTimeout()]
    with pytest.raises(ProviderTimeout):
        await shop.buy("k2")
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.EXPIRED, session_of(first)))
    assert (await shop.pool()).reserved == 1
    again = await shop.buy("k2")
    assert (again.order.id, again.order.reservation_id) == (first.order.id, first.order.reservation_id)
    assert shop.provider.payable == [session_of(again)]


async def test_the_key_of_a_fresh_attempt_is_answered_the_same_again(shop: Shop) -> None:
    await shop.buy("k1")
    again = await shop.buy("k2")
    repeat = await shop.buy("k2")
    assert (repeat.created, session_of(repeat)) == (False, session_of(again))
    # So is the key that made the order: there is one session on offer, whoever asks.
    assert session_of(await shop.buy("k1")) == session_of(again)
    with pytest.raises(IdConflict):
        await shop.buy("k2", email="other@example.com")
    assert len(shop.provider.sessions) == 2


async def test_other_lines_end_the_old_reservation_first(shop: Shop) -> None:
    first = await shop.buy("k1")
    other = await shop.buy("k2", lines=(WantedLine(PRODUCT, 3),))
    assert other.order.id != first.order.id
    assert shop.provider.payable == [session_of(other)]
    assert (await shop.pool()).reserved == 1
    assert (await shop.order(first.order.id)).status is OrderStatus.CANCELLED
    released = await shop.engine.read(TENANT, first.order.reservation_id or "")
    assert released.status.value == "released"


async def test_what_closing_finds_paid_is_settled_and_the_limit_stands(shop: Shop) -> None:
    first = await shop.buy("k1")
    shop.provider.pay(session_of(first))
    for lines in (1, 2):
        with pytest.raises(Refused) as refused:
            await shop.buy(f"again-{lines}", lines=(WantedLine(PRODUCT, lines),))
        assert refused.value.refusal.outcome is Outcome.LIMIT_REACHED
    assert (await shop.order(first.order.id)).status is OrderStatus.PAID
    assert (len(shop.provider.sessions), (await shop.pool()).completed) == (1, 1)


async def test_a_session_that_can_not_be_closed_is_followed_by_no_other(shop: Shop) -> None:
    first = await shop.buy("k1")
    shop.provider.before["expire"] = [ProviderTimeout(), ProviderError()]
    for error in (ProviderTimeout, ProviderError):
        with pytest.raises(error):
            await shop.buy("k2")
        assert shop.provider.payable == [session_of(first)]
    # A buyer who pays there after all has paid.
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, session_of(first)))
    assert (await shop.order(first.order.id)).status is OrderStatus.PAID


async def test_attempts_on_one_reservation_are_bounded(shop: Shop) -> None:
    for number in range(shop.settings.checkout_attempts):
        await shop.buy(f"k{number}")
    with pytest.raises(Refused) as refused:
        await shop.buy("one-too-many")
    assert refused.value.details["attempts_left"] == 0
    assert len(shop.provider.payable) == 1


async def test_twins_under_different_keys_leave_one_session_on_offer(shop: Shop) -> None:
    first = await shop.buy("k1")
    answers = await asyncio.gather(*(shop.buy(f"twin-{n}") for n in range(3)), return_exceptions=True)
    assert {a.order.id for a in answers if not isinstance(a, BaseException)} == {first.order.id}
    assert len(shop.provider.payable) == 1
    assert (await shop.pool()).reserved == 1


async def test_a_customer_without_a_limit_has_an_order_for_each_key(shop: Shop) -> None:
    await shop.stock(cap=10)
    first, second = await shop.buy("k1"), await shop.buy("k2")
    assert first.order.id != second.order.id
    assert len(shop.provider.payable) == 2


async def test_the_next_attempt_may_be_at_the_other_provider(shop: Shop) -> None:
    """The abandoned session of the first expires a day later, and nobody minds."""
    first = await shop.buy("k1")
    await shop.stock_naira()
    second = await shop.buy("k2", customer="bola", lines=(WantedLine("ng", 1),), provider=Provider.PAYSTACK)
    third = await shop.buy("k3", customer="bola", lines=(WantedLine("ng", 1),), provider=Provider.STRIPE)
    assert third.order.id == second.order.id
    assert third.attempt is not None
    assert third.attempt.provider is Provider.STRIPE
    paid = event(EventKind.PAID, session_of(third), amount_minor=225000, currency="NGN")
    await shop.settlement.receive(Provider.STRIPE, paid)
    await shop.advance(24 * 3600)
    await shop.overdue.close()
    assert (await shop.order(third.order.id)).status is OrderStatus.PAID
    assert (await shop.order(first.order.id)).status is OrderStatus.CANCELLED


async def test_paystack_has_one_reference_on_offer_and_a_second_payment_is_owed_back(shop: Shop) -> None:
    await shop.stock_naira()
    line = (WantedLine("ng", 1),)
    first = await shop.buy("k1", lines=line, provider=Provider.PAYSTACK)
    assert session_of(first) == f"{first.order.id}-1"
    assert first.attempt is not None
    assert first.attempt.frozen.expires_at_s is None
    second = await shop.buy("k2", lines=line, provider=Provider.PAYSTACK)
    assert session_of(second) == f"{first.order.id}-2"
    for session in (session_of(first), session_of(second)):
        paid = event(EventKind.PAID, session, amount_minor=225000, currency="NGN", payment_ref=session)
        await shop.settlement.receive(Provider.PAYSTACK, paid)
    story = await shop.story(first.order.id)
    assert story.order.status is OrderStatus.PAID
    assert [(p.ref, p.status) for p in story.payments] == [
        (session_of(first), PaymentStatus.KEPT),
        (session_of(second), PaymentStatus.REFUND_OWED),
    ]
    assert (await shop.pool()).completed == 1


@pytest.mark.parametrize("code", ["SCHOOL10", None])
async def test_an_address_that_is_lost_is_replaced_by_another_attempt(shop: Shop, code: str | None) -> None:
    """Paystack tells an address once: after a time-out the reference is known there and of no use."""
    await shop.stock_naira()
    shop.paystack.after["open"] = [ProviderTimeout()]
    line = (WantedLine("ng", 1),)
    with pytest.raises(ProviderTimeout):
        await shop.buy("k1", code=code, lines=line, provider=Provider.PAYSTACK)
    answer = await shop.buy("k1", code=code, lines=line, provider=Provider.PAYSTACK)
    assert answer.attempt is not None
    assert (answer.attempt.frozen.number, answer.attempt.status) == (2, AttemptStatus.OPEN)
    assert answer.attempt.url is not None
    if code is not None:
        assert (await shop.pool()).reserved == 1


async def test_a_reference_that_was_paid_before_it_was_noted_finds_its_order(shop: Shop) -> None:
    """No metadata, no attached session: the reference was ours to choose."""
    await shop.stock_naira()
    shop.paystack.after["open"] = [ProviderTimeout()]
    with pytest.raises(ProviderTimeout):
        await shop.buy("k1", lines=(WantedLine("ng", 1),), provider=Provider.PAYSTACK)
    (reference,) = shop.paystack.sessions
    shop.paystack.pay(reference)
    paid = event(EventKind.PAID, reference, amount_minor=225000, currency="NGN", payment_ref=reference)
    await shop.settlement.receive(Provider.PAYSTACK, paid)
    answer = await shop.buy("k1", lines=(WantedLine("ng", 1),), provider=Provider.PAYSTACK)
    assert (await shop.order(answer.order.id)).status is OrderStatus.PAID


async def test_a_reference_that_nobody_pays_lapses_with_its_reservation(shop: Shop) -> None:
    await shop.stock_naira()
    answer = await shop.buy("k1", lines=(WantedLine("ng", 1),), provider=Provider.PAYSTACK)
    await shop.advance(2400 + 120)
    assert await shop.overdue.close() == 1
    assert await shop.overdue.close() == 0
    assert (await shop.order(answer.order.id)).status is OrderStatus.CANCELLED
    assert await shop.rows("select status from attempts") == [("expired",)]
    # Its address is still good: what is paid there is a late payment.
    reference = session_of(answer)
    paid = event(EventKind.PAID, reference, amount_minor=225000, currency="NGN", payment_ref=reference)
    await shop.settlement.receive(Provider.PAYSTACK, paid)
    order = await shop.order(answer.order.id)
    assert (order.status, order.late) == (OrderStatus.PAID, True)
