"""What providers tell of refunds and disputes: in any order, any number of times, before or after the payment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.domain import Provider, RefundStatus
from engine.errors import ProviderError
from engine.orders import RefundShown
from engine.payments.port import Dispute, ProviderRefund, ProviderRefundStatus, RefundTotal
from persistence.repositories.refund_news import note_refund
from tests.books import TENANT, Books, open_books, somebody_waits

PENDING, SUCCEEDED, FAILED = ProviderRefundStatus
News = ProviderRefund | RefundTotal | Dispute


@pytest.fixture
async def books(database_url: str) -> AsyncIterator[Books]:
    """With one paid order of 49.00."""
    async with open_books(database_url) as opened:
        await opened.add_order()
        await opened.add_payment("pi_1", 4900)
        yield opened


def of(ref: str | None, amount: int, status: ProviderRefundStatus = SUCCEEDED, alias: str | None = None) -> News:
    return ProviderRefund(ref, "pi_1", amount, "GBP", status, alias=alias)


def total(amount: int) -> News:
    return RefundTotal("pi_1", amount, "GBP")


async def everything(books: Books) -> dict[str, list[tuple[Any, ...]]]:
    """The rows that refunds leave, without what differs by when they were written."""
    return {
        "orders": await books.run("select id, status, refunded_minor from orders order by id"),
        "payments": await books.run("select ref, status, refunded_minor from payments order by ref"),
        "refunds": await books.run(
            "select payment_id, cause, amount_minor, status, round, claim, called_at is null from refunds order by 1, 2"
        ),
        "provider_refunds": await books.run(
            "select provider, ref, alias, payment_ref, refund_id is null, amount_minor, status, counted"
            " from provider_refunds order by 1, 2"
        ),
        "totals": await books.run("select payment_ref, total_minor, counted from refund_totals"),
        "disputes": await books.run("select ref, status, is_closed, counted from disputes"),
    }


async def start_anew(books: Books) -> None:
    """As the fixture left it."""
    await books.run(
        "truncate provider_refunds, refund_totals, disputes, refunds, payments, order_history, orders cascade"
    )
    await books.add_order()
    await books.add_payment("pi_1", 4900)


CUMULATIVE: list[News] = [total(1000), total(1500)]
BY_ID: list[News] = [of("re_1", 1000), of("re_2", 500)]
BOTH: list[News] = [*CUMULATIVE, *BY_ID]


@pytest.mark.parametrize("news", [CUMULATIVE, BY_ID, BOTH], ids=["totals", "refunds", "both"])
async def test_refunds_add_up_in_any_order(books: Books, news: Sequence[News]) -> None:
    """E4: 1000, then 1500 in all, replayed and in any order."""
    seen = []
    for order in permutations(news):
        await start_anew(books)
        for one in (*order, *order[:2]):
            await books.hear(one)
        assert await books.payment() == ("kept", 1500)
        assert await books.order() == ("paid", 1500)
        seen.append(await everything(books))
    assert all(rows == seen[0] for rows in seen)
    assert len(seen[0]["provider_refunds"]) == (0 if news is CUMULATIVE else 2)


async def test_what_somebody_sent_back_by_hand_counts_and_is_told(books: Books) -> None:
    await books.hear(of("re_9", 1200, PENDING))
    assert await books.order() == ("paid", 0)
    await books.hear(of("re_9", 1200))
    assert await books.order() == ("paid", 1200)
    assert await books.shown() == [RefundShown("re_9", 1200, RefundStatus.REFUNDED)]
    assert await books.events() == ["paid", "refund_pending", "refunded"]
    await books.hear(of("re_10", 3700))
    assert await books.order() == ("refunded", 4900)
    await books.hear(of("re_10", 3700, FAILED))
    assert await books.order() == ("paid", 1200)
    assert await books.events() == ["paid", "refund_pending", "refunded", "refunded", "refund_failed"]


async def test_a_total_that_failed_in_part(books: Books) -> None:
    for news in (total(3000), of("re_1", 1000), of("re_2", 2000, FAILED)):
        await books.hear(news)
    assert await books.payment() == ("kept", 1000)


async def test_another_currency_counts_for_nothing(books: Books) -> None:
    await books.hear(ProviderRefund("re_1", "pi_1", 1000, "USD", SUCCEEDED))
    await books.hear(ProviderRefund("re_2", "pi_1", 500, "gbp", SUCCEEDED))
    assert await books.payment() == ("kept", 500)


PAYSTACK: list[News] = [
    of(None, 1000, PENDING),
    of(None, 1000, SUCCEEDED, "A"),
    of(None, 500, PENDING, "B"),
    of(None, 500, FAILED, "B"),
]


async def test_news_without_ids_end_alike(books: Books) -> None:
    """As Paystack tells it: no id, another name only once it is through."""
    seen = []
    for order in permutations(PAYSTACK):
        await start_anew(books)
        for one in (*order, *order[:2]):
            await books.hear(one)
        assert await books.payment() == ("kept", 1000)
        seen.append(await everything(books))
    assert all(rows == seen[0] for rows in seen)
    assert [row[1] for row in seen[0]["provider_refunds"]] == ["event:A", "event:B"]


async def test_who_learns_the_id_adopts_what_events_told(books: Books) -> None:
    await books.hear(of(None, 1000, PENDING))
    await books.hear(of(None, 1000, SUCCEEDED, "A"))
    await books.store.record(Provider.STRIPE, "pi_1", [ProviderRefund("77", "pi_1", 1000, "GBP", PENDING)])
    assert await books.run("select ref, alias, status from provider_refunds") == [("77", "A", "succeeded")]
    assert await books.payment() == ("kept", 1000)


@pytest.mark.parametrize("first", ["event", "answer"])
async def test_our_own_refund_is_recognised_without_an_id(books: Books, first: str) -> None:
    """An event of the same amount is about the refund that we asked for, whichever comes first."""
    await books.add_payment("ps_1", 4900, provider=Provider.PAYSTACK)
    await books.owe("ps_1", provider=Provider.PAYSTACK)
    told = ProviderRefund(None, "ps_1", 4900, "GBP", SUCCEEDED, alias="A")
    if first == "event":
        await books.hear(told, Provider.PAYSTACK)
        await books.service.pay_due()
    else:
        books.paystack.refund_status = PENDING
        await books.service.pay_due()
        assert await books.refunds() == [("pending", 1, 4900)]
        await books.hear(told, Provider.PAYSTACK)
    assert await books.refunds() == [("refunded", 1, 4900)]
    assert await books.payment("ps_1") == ("refunded", 4900)
    assert await books.run("select count(*), sum(amount_minor) from provider_refunds") == [(1, 4900)]


async def test_news_before_their_payment_are_counted_when_it_comes(books: Books) -> None:
    other: list[News] = [
        ProviderRefund("re_5", "pi_5", 800, "GBP", SUCCEEDED),
        RefundTotal("pi_5", 1100, "GBP"),
        Dispute("dp_5", "pi_5", 2000, "GBP", "needs_response", "fraudulent", is_closed=False),
    ]
    for one in other:
        await books.hear(one)
    assert await books.service.count_pending() == 0
    await books.add_payment("pi_5", 2000)
    assert await books.service.count_pending() == 1
    assert await books.payment("pi_5") == ("kept", 1100)
    assert await books.order() == ("paid", 1100)
    assert await books.events() == ["paid", "refunded", "refund_total", "disputed"]
    assert await books.service.count_pending() == 0


async def test_a_dispute_is_told_once_per_stage(books: Books) -> None:
    stages = [("needs_response", False), ("under_review", False), ("lost", True)]
    news = [Dispute("dp_1", "pi_1", 4900, "GBP", status, "fraudulent", is_closed=done) for status, done in stages]
    for order in permutations(news):
        await start_anew(books)
        for one in (*order, *order):
            await books.hear(one)
        assert await books.run("select status, is_closed from disputes") == [("lost", True)]
        told = await books.run("select details->>'status' from order_history where event = 'disputed'")
        assert told[-1] == ("lost",)
        assert len(told) == len(set(told))
    assert await books.order() == ("paid", 0)


async def test_the_same_news_from_four_processes_at_once(books: Books) -> None:
    await books.cancel()
    await asyncio.gather(*(books.hear(one) for one in (of("re_1", 1000), of("re_2", 3900)) for _ in range(4)))
    assert await books.order() == ("refunded", 4900)
    assert await books.events() == ["paid", "cancelled", "refund_owed", "refunded", "refunded"]


async def test_a_flagged_payment_is_flagged_again_when_its_refund_fails(books: Books) -> None:
    await books.run(
        "insert into settlements (id, provider, dedup_key, kind, state)"
        " values ('s9', 'stripe', 's9', 'complete', 'mismatched')"
    )
    await books.add_payment("pi_9", 100, status="flagged")
    await books.run("update payments set settlement_id = 's9' where ref = 'pi_9'")
    news = ProviderRefund("re_9", "pi_9", 100, "GBP", SUCCEEDED)
    await books.hear(news)
    assert await books.payment("pi_9") == ("refunded", 100)
    assert await books.order() == ("paid", 100), "what was never its price doesn't make an order refunded"
    await books.hear(ProviderRefund("re_9", "pi_9", 100, "GBP", FAILED))
    assert await books.payment("pi_9") == ("flagged", 0)


MARKED = [
    ProviderRefund("re_1", "pi_1", 4900, "GBP", status, marked_refund_id="ours", marked_round=1)
    for status in (PENDING, SUCCEEDED, FAILED)
]
AGAIN = [
    ProviderRefund("re_2", "pi_1", 4900, "GBP", status, marked_refund_id="ours", marked_round=2)
    for status in (PENDING, SUCCEEDED)
]


async def owe_ours(books: Books) -> None:
    await books.cancel()
    await books.run("update refunds set id = 'ours', called_at = now()")


async def test_news_of_one_refund_end_in_one_state(books: Books) -> None:
    """All orders of all news of a refund that fails in the end, each replayed."""
    seen = []
    for order in permutations(MARKED):
        await start_anew(books)
        await owe_ours(books)
        for one in (*order, *order):
            await books.hear(one)
        assert await books.refunds() == [("owed", 2, 4900)]
        assert await books.order() == ("cancelled", 0)
        seen.append(await everything(books))
    assert all(rows == seen[0] for rows in seen)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations([*MARKED, *AGAIN, total(4900)]), repeats=st.lists(st.integers(0, 5), max_size=5))
def test_news_of_both_rounds_end_in_one_state(order: list[News], repeats: list[int], told_url: str) -> None:
    """A refund that failed and was made anew: whatever comes late, or twice, it is refunded once."""

    async def tell() -> None:
        async with open_books(told_url) as books:
            await start_anew(books)
            await owe_ours(books)
            for one in (*order, *(order[index] for index in repeats)):
                await books.hear(one)
            assert await books.order() == ("refunded", 4900)
            assert [row[0] for row in await books.refunds()] == ["refunded"]
            assert await books.service.pay_due() == 0

    asyncio.run(tell())


@pytest.fixture
def told_url(database_url: str) -> str:
    return database_url


async def test_of_two_refunds_for_one_debt_the_one_that_went_through_counts(books: Books) -> None:
    """A worker that was thought dead asked too: one fails, the other is through, and nothing is asked for again."""
    twins = [
        ProviderRefund(ref, "pi_1", 4900, "GBP", status, marked_refund_id="ours", marked_round=1)
        for ref, status in (("re_1", PENDING), ("re_1", FAILED), ("re_2", PENDING), ("re_2", SUCCEEDED))
    ]
    for order in permutations(twins):
        await start_anew(books)
        await owe_ours(books)
        for one in order:
            await books.hear(one)
        assert [row[0] for row in await books.refunds()] == ["refunded"]
        assert await books.order() == ("refunded", 4900)


async def test_a_failure_beside_one_that_is_under_way_asks_for_nothing(books: Books) -> None:
    await owe_ours(books)
    for ref, status in (("re_1", PENDING), ("re_2", PENDING), ("re_1", FAILED)):
        await books.hear(ProviderRefund(ref, "pi_1", 4900, "GBP", status, marked_refund_id="ours", marked_round=1))
    assert await books.refunds() == [("pending", 1, 4900)]


async def test_two_events_at_one_moment_of_a_payment_that_nobody_knows_yet(books: Books) -> None:
    """There is no order to lock: the second waits for the first and goes further."""
    async with books.database.begin() as connection:
        await note_refund(connection, Provider.STRIPE, ProviderRefund("re_7", "pi_7", 100, "GBP", PENDING))
        hearing = asyncio.create_task(books.hear(ProviderRefund("re_7", "pi_7", 100, "GBP", SUCCEEDED)))
        await somebody_waits(books.database, hearing)
    await hearing
    assert await books.run("select status, counted from provider_refunds") == [("succeeded", False)]


async def test_what_went_back_in_an_earlier_round_is_back(books: Books) -> None:
    """It was taken for refused, and is a part of the payment: what is left of that would allow another."""
    books.stripe.before["refund"] = [ProviderError(provider_code="no")]
    await books.service.request(TENANT, "o1", "r1", 1000, "")
    assert await books.refunds() == [("owed", 2, 1000)]
    (row,) = await books.run("select id from refunds")
    await books.hear(ProviderRefund("re_1", "pi_1", 1000, "GBP", SUCCEEDED, marked_refund_id=row[0], marked_round=1))
    assert await books.shown() == [RefundShown("r1", 1000, RefundStatus.REFUNDED)]
    assert await books.order() == ("paid", 1000)
