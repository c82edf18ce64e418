"""A refund that a seller asks for: once per id, never of more than was paid."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.domain import Provider, RefundStatus
from engine.errors import IdConflict, IllegalTransition, Invalid, ProviderError, ProviderTimeout, Unknown
from engine.orders import RefundShown
from tests.books import TENANT, Books, open_books


@pytest.fixture
async def books(database_url: str) -> AsyncIterator[Books]:
    """With one paid order of 49.00."""
    async with open_books(database_url) as opened:
        await opened.add_order()
        await opened.add_payment("pi_1", 4900)
        yield opened


async def ask(books: Books, request: str, amount_minor: int | None, order: str = "o1") -> None:
    await books.service.request(TENANT, order, request, amount_minor, "It was cold")


async def test_a_part_goes_back_at_once_and_the_order_stays_paid(books: Books) -> None:
    await ask(books, "r1", 1500)
    assert books.stripe.sent_back("pi_1") == 1500
    assert await books.order() == ("paid", 1500)
    assert await books.payment() == ("kept", 1500)
    assert await books.shown() == [RefundShown("r1", 1500, RefundStatus.REFUNDED)]
    story = await books.run("select event, details from order_history order by id")
    assert story[1:] == [
        (
            "refund_owed",
            {
                "refund": "r1",
                "amount_minor": 1500,
                "currency": "GBP",
                "cause": "requested",
                "reason": "It was cold",
            },
        ),
        (
            "refunded",
            {"refund": "r1", "provider": "stripe", "ref": "re_1", "amount_minor": 1500, "currency": "GBP"},
        ),
    ]


async def test_the_same_action_three_times_is_one_refund(books: Books) -> None:
    """E6."""
    for _ in range(3):
        await ask(books, "r1", 1500)
    assert books.stripe.sent_back("pi_1") == 1500
    assert await books.order() == ("paid", 1500)
    assert len(books.stripe.called("refund")) == 1


async def test_two_refunds_of_one_amount_are_two(books: Books) -> None:
    """E6, at a provider whose events name no refund."""
    await books.add_order("o2")
    await books.add_payment("ps_1", 4900, order="o2", provider=Provider.PAYSTACK)
    for order, port, ref in (("o1", books.stripe, "pi_1"), ("o2", books.paystack, "ps_1")):
        await ask(books, "r1", 1500, order)
        await ask(books, "r2", 1500, order)
        assert port.sent_back(ref) == 3000
        assert await books.order(order) == ("paid", 3000)


async def test_a_lost_answer_is_one_refund(books: Books) -> None:
    """E6: what is unknown is left to the job; asking again meanwhile asks nobody."""
    books.stripe.after["refund"] = [ProviderTimeout()]
    await ask(books, "r1", 1500)
    await ask(books, "r1", 1500)
    assert await books.shown() == [RefundShown("r1", 1500, RefundStatus.OWED)]
    await books.let_pause_pass()
    await books.service.pay_due()
    assert books.stripe.sent_back("pi_1") == 1500
    assert await books.shown() == [RefundShown("r1", 1500, RefundStatus.REFUNDED)]


async def test_without_an_amount_all_that_is_left_goes_back(books: Books) -> None:
    await ask(books, "r1", 1500)
    await ask(books, "r2", None)
    await ask(books, "r2", None)
    assert [shown.amount_minor for shown in await books.shown()] == [1500, 3400]
    assert await books.payment() == ("refunded", 4900)
    assert await books.order() == ("refunded", 4900)


async def test_another_amount_under_an_id_conflicts(books: Books) -> None:
    await ask(books, "r1", 1500)
    with pytest.raises(IdConflict):
        await ask(books, "r1", 1501)
    assert books.stripe.sent_back("pi_1") == 1500


async def test_an_id_still_means_what_was_asked_for_though_less_was_left(books: Books) -> None:
    books.stripe.before["refund"] = [ProviderError(provider_code="no")]
    await ask(books, "r1", 4000)
    await books.hear(books.stripe.send_back_by_hand("pi_1", 2000))
    assert [row[2] for row in await books.refunds()] == [2900]
    await ask(books, "r1", 4000)
    with pytest.raises(IdConflict):
        await ask(books, "r1", 2900)
    await books.let_pause_pass()
    await books.service.pay_due()
    assert await books.order() == ("refunded", 4900)
    assert books.stripe.sent_back("pi_1") == 4900


@pytest.mark.parametrize("amount", [4901, 3401, 0, -1])
async def test_more_than_is_left_or_nothing_is_refused(books: Books, amount: int) -> None:
    await ask(books, "r1", 1500)
    with pytest.raises(Invalid) as refused:
        await ask(books, "r2", amount)
    assert list(refused.value.details["fields"]) == ["amount_minor"]
    assert books.stripe.sent_back("pi_1") == 1500
    assert len(await books.refunds()) == 1


async def test_what_is_under_way_is_not_left(books: Books) -> None:
    books.stripe.before["refund"] = [ProviderTimeout()]
    await ask(books, "r1", 4000)
    with pytest.raises(Invalid):
        await ask(books, "r2", 901)
    await ask(books, "r3", 900)
    await books.let_pause_pass()
    await books.service.pay_due()
    assert books.stripe.sent_back("pi_1") == 4900


async def test_requests_at_one_moment_never_give_back_more_than_was_paid(books: Books) -> None:
    answers = await asyncio.gather(*(ask(books, f"r{number}", 1000) for number in range(10)), return_exceptions=True)
    assert [answer for answer in answers if answer is not None and not isinstance(answer, Invalid)] == []
    assert answers.count(None) == 4
    assert books.stripe.sent_back("pi_1") == 4000
    assert await books.order() == ("paid", 4000)


async def test_one_request_at_one_moment_from_several_is_one_refund(books: Books) -> None:
    await asyncio.gather(*(ask(books, "r1", 1000) for _ in range(8)))
    assert books.stripe.sent_back("pi_1") == 1000


async def test_only_what_can_be_paid_can_be_paid_back(books: Books) -> None:
    """The last digit of a dinar's thousandths is 0 at the providers."""
    await books.add_order("o2")
    await books.add_payment("pi_2", 18600, order="o2", currency="KWD")
    with pytest.raises(Invalid):
        await ask(books, "r1", 1005, "o2")
    await ask(books, "r1", 1010, "o2")
    assert books.stripe.sent_back("pi_2") == 1010


async def test_an_order_that_is_not_there(books: Books) -> None:
    with pytest.raises(Unknown):
        await ask(books, "r1", 1, "o9")
    with pytest.raises(Unknown):
        await books.service.request("another", "o1", "r1", 1, "")


async def test_nothing_kept_is_nothing_to_refund(books: Books) -> None:
    await books.add_order("o2", "pending")
    with pytest.raises(IllegalTransition) as refused:
        await ask(books, "r1", None, "o2")
    assert refused.value.details["status"] == "pending"
    await books.cancel()
    with pytest.raises(IllegalTransition):
        await ask(books, "r1", None)


async def test_cancelling_owes_what_was_not_asked_for_yet(books: Books) -> None:
    books.stripe.before["refund"] = [ProviderTimeout()]
    await ask(books, "r1", 1500)
    await books.cancel()
    assert sorted(row[2] for row in await books.refunds()) == [1500, 3400]
    await books.let_pause_pass()
    await books.service.pay_due()
    assert books.stripe.sent_back("pi_1") == 4900
    assert await books.order() == ("refunded", 4900)


async def test_an_order_refunded_on_request_is_paid_again_when_that_fails(books: Books) -> None:
    await ask(books, "r1", None)
    assert await books.order() == ("refunded", 4900)
    await books.hear(books.stripe.fail_refund("re_1"))
    assert await books.order() == ("paid", 0)
    assert await books.payment() == ("kept", 0)
    assert await books.shown() == [RefundShown("r1", 4900, RefundStatus.OWED)]
