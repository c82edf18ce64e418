"""Money that is owed goes back once: whatever crashes, times out, is asked twice or done by somebody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.domain import Provider, RefundCause, RefundStatus
from engine.errors import ProviderError, ProviderTimeout
from engine.orders import RefundShown
from engine.payments.port import FrozenRefund, ProviderRefundStatus
from engine.refunds import RefundService
from tests.books import CLAIM_SECONDS, Books, open_books
from tests.integration.test_checkout_crashes import Crash, Fuse

MOST_CALLS = 30


@pytest.fixture
async def books(database_url: str) -> AsyncIterator[Books]:
    """With one paid order."""
    async with open_books(database_url) as opened:
        await opened.add_order()
        yield opened


async def test_a_payment_that_is_owed_goes_back(books: Books) -> None:
    await books.add_payment("pi_1")
    await books.add_payment("pi_2", 4900)
    await books.owe("pi_2")
    assert await books.service.pay_due() == 1
    assert books.stripe.sent_back("pi_2") == 4900
    assert await books.payment("pi_2") == ("refunded", 4900)
    assert await books.payment("pi_1") == ("kept", 0)
    assert await books.order() == ("paid", 4900)
    assert await books.events() == ["paid", "refund_owed", "refunded"]
    assert [(shown.amount_minor, shown.status) for shown in await books.shown()] == [(4900, RefundStatus.REFUNDED)]
    assert await books.service.pay_due() == 0
    assert len(books.stripe.called("refund")) == 1


async def test_a_cancelled_order_is_refunded_when_all_is_back(books: Books) -> None:
    await books.add_payment("pi_1")
    await books.add_payment("pi_2", 1000)
    await books.owe("pi_2")
    await books.cancel()
    owed = await books.service.owed()
    assert owed.count == 2
    assert owed.oldest_seconds >= 0
    assert await books.service.pay_due() == 2
    assert await books.order() == ("refunded", 5900)
    assert (await books.service.owed()).count == 0


async def test_what_is_owed_is_entered_once(books: Books) -> None:
    await books.add_payment("pi_1")
    for cause in (RefundCause.DUPLICATE, RefundCause.LATE, RefundCause.DUPLICATE):
        await books.owe("pi_1", cause)
    await books.cancel()
    assert await books.refunds() == [("owed", 1, 4900)]
    assert (await books.events()).count("refund_owed") == 1


async def test_nothing_is_owed_for_a_payment_of_nothing(books: Books) -> None:
    await books.add_payment("pi_0", 0)
    await books.owe("pi_0")
    assert await books.refunds() == []


async def test_a_payment_without_an_order_goes_back_too(books: Books) -> None:
    await books.add_payment("pi_x", 700, order=None)
    await books.owe("pi_x")
    assert await books.service.pay_due() == 1
    assert await books.payment("pi_x") == ("refunded", 700)


@pytest.mark.parametrize("provider", [Provider.STRIPE, Provider.PAYSTACK])
@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
@pytest.mark.parametrize("becomes", [ProviderRefundStatus.SUCCEEDED, ProviderRefundStatus.PENDING])
async def test_a_crash_anywhere_leaves_one_refund(
    books: Books, provider: Provider, after: bool, becomes: ProviderRefundStatus
) -> None:
    port = books.port(provider)
    port.refund_status = becomes
    places = 0
    for place in range(1, MOST_CALLS):
        ref = f"pi_{place}"
        await books.add_payment(ref, 1250, provider=provider)
        await books.owe(ref, provider=provider)
        fuse = Fuse(place, after=after)
        dying = RefundService(fuse.around(books.store), {provider: fuse.around(port)}, CLAIM_SECONDS)
        try:
            await dying.pay_due()
        except Crash:
            await books.let_claims_go_stale()
            await books.service.pay_due()
            assert port.sent_back(ref) == 1250, f"crashed at call {place}"
            continue
        places = place
        break
    assert places >= 4
    await books.service.pay_due()
    for place in range(1, places + 1):
        assert [r.amount_minor for r in port.refunds if r.payment_ref == f"pi_{place}"] == [1250]
    expected = "refunded" if becomes is ProviderRefundStatus.SUCCEEDED else "pending"
    assert await books.run("select distinct status from refunds") == [(expected,)]


@pytest.mark.parametrize("provider", [Provider.STRIPE, Provider.PAYSTACK])
async def test_a_lost_answer_is_looked_up_before_it_is_asked_for_again(books: Books, provider: Provider) -> None:
    """E6: lost response, then retry."""
    port = books.port(provider)
    await books.add_payment("pi_1", provider=provider)
    await books.owe(provider=provider)
    port.after["refund"] = [ProviderTimeout()]
    assert await books.service.pay_due() == 1
    assert await books.refunds() == [("owed", 1, 4900)]
    assert await books.service.pay_due() == 0, "it waits until a call that is still under way must be over"
    await books.let_pause_pass()
    assert await books.service.pay_due() == 1
    assert port.calls[1:] == [("look_up_refunds", "pi_1")]
    assert port.sent_back("pi_1") == 4900
    assert await books.payment() == ("refunded", 4900)
    assert await books.events() == ["paid", "refund_owed", "refunded"], "a time-out is no failure"


async def test_a_call_that_was_never_heard_is_made_again_under_its_key(books: Books) -> None:
    await books.add_payment("pi_1")
    await books.owe()
    books.stripe.before["refund"] = [ProviderTimeout()]
    await books.service.pay_due()
    await books.let_pause_pass()
    await books.service.pay_due()
    first, second = books.stripe.called("refund")
    assert first == second
    assert await books.payment() == ("refunded", 4900)


async def test_without_a_look_up_nothing_is_asked_for_again(books: Books) -> None:
    await books.add_payment("pi_1")
    await books.owe()
    books.stripe.before["refund"] = [ProviderTimeout()]
    books.stripe.before["look_up_refunds"] = [ProviderTimeout(), ProviderError(provider_code="no")]
    for _ in range(3):
        await books.service.pay_due()
        await books.let_pause_pass()
    assert len(books.stripe.called("refund")) == 1
    assert await books.refunds() == [("owed", 1, 4900)]
    await books.service.pay_due()
    assert books.stripe.sent_back("pi_1") == 4900


async def test_a_refusal_is_told_and_tried_again_under_a_new_key(books: Books) -> None:
    """A provider that keeps its answers by key would refuse for a day what it would do by now."""
    await books.add_payment("pi_1")
    await books.owe()
    books.stripe.before["refund"] = [ProviderError(provider_code="balance_insufficient")] * 2
    for _ in range(3):
        assert await books.service.pay_due() == 1
        await books.let_pause_pass()
    assert len(set(books.stripe.called("refund"))) == 3
    assert await books.events() == ["paid", "refund_owed", "refund_failed", "refunded"]
    assert (await books.run("select details->>'reason' from order_history where event = 'refund_failed'")) == [
        ("balance_insufficient",)
    ]
    assert await books.payment() == ("refunded", 4900)


async def test_pauses_grow_to_an_hour(books: Books) -> None:
    await books.add_payment("pi_1")
    await books.owe()
    books.stripe.before["refund"] = [ProviderError(provider_code="no")] * 8
    pauses = []
    for _ in range(8):
        await books.service.pay_due()
        # The pause begins where the transaction did that gave the claim up; nothing has written the row since.
        pauses += await books.run("select round(extract(epoch from next_try_at - now()) / 60)::integer from refunds")
        await books.let_pause_pass()
    assert [minutes for (minutes,) in pauses] == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_already_refunded_is_final(books: Books) -> None:
    """E5: one call and one look-up at most."""
    await books.add_payment("pi_1")
    await books.cancel()
    books.stripe.send_back_by_hand("pi_1", 4900)
    await books.service.pay_due()
    assert [verb for verb, _ in books.stripe.calls] == ["refund", "look_up_refunds"]
    assert await books.payment() == ("refunded", 4900)
    assert await books.order() == ("refunded", 4900)
    await books.let_pause_pass()
    assert await books.service.pay_due() == 0
    assert await books.run("select amount_minor from provider_refunds") == [(4900,)]
    assert (await books.events()).count("refunded") == 1


async def test_already_refunded_is_final_though_nothing_is_listed(books: Books) -> None:
    await books.add_payment("pi_1")
    await books.cancel()
    books.stripe.send_back_by_hand("pi_1", 4900)
    books.stripe.before["look_up_refunds"] = [ProviderTimeout()]
    await books.service.pay_due()
    assert await books.payment() == ("refunded", 4900)
    assert await books.order() == ("refunded", 4900)
    assert await books.refunds() == [("refunded", 1, 4900)]
    assert await books.events() == ["paid", "cancelled", "refund_owed", "refunded", "refund_total"]


async def test_a_refund_that_fails_later_is_owed_again_and_seen(books: Books) -> None:
    await books.add_payment("pi_1")
    await books.cancel()
    books.stripe.refund_status = ProviderRefundStatus.PENDING
    await books.service.pay_due()
    assert [shown.status for shown in await books.shown()] == [RefundStatus.PENDING]
    await books.hear(books.stripe.refund_becomes("re_1", ProviderRefundStatus.SUCCEEDED))
    assert await books.order() == ("refunded", 4900)
    await books.hear(books.stripe.fail_refund("re_1"))
    assert await books.order() == ("cancelled", 0)
    assert await books.payment() == ("refund_owed", 0)
    assert [shown.status for shown in await books.shown()] == [RefundStatus.OWED]
    assert await books.service.pay_due() == 0
    await books.let_pause_pass()
    books.stripe.refund_status = ProviderRefundStatus.SUCCEEDED
    assert await books.service.pay_due() == 1
    first, second = books.stripe.called("refund")
    assert first != second
    assert await books.refunds() == [("refunded", 2, 4900)]
    assert await books.order() == ("refunded", 4900)
    assert await books.events() == [
        "paid",
        "cancelled",
        "refund_owed",
        "refund_pending",
        "refunded",
        "refund_failed",
        "refunded",
    ]


async def test_a_pending_refund_is_only_looked_up(books: Books) -> None:
    await books.add_payment("pi_1", provider=Provider.PAYSTACK)
    await books.owe(provider=Provider.PAYSTACK)
    books.paystack.refund_status = ProviderRefundStatus.PENDING
    await books.service.pay_due()
    assert await books.service.pay_due() == 0, "it is given an hour"
    await books.let_pause_pass()
    assert await books.service.pay_due() == 1
    assert await books.refunds() == [("pending", 1, 4900)]
    # Neither a look-up that does not list it, nor a worker that dies over it, has it made again.
    kept, books.paystack.refunds = books.paystack.refunds, []
    await books.let_pause_pass()
    await books.service.pay_due()
    await books.let_pause_pass()
    assert await books.store.claim([Provider.PAYSTACK], CLAIM_SECONDS) is not None
    await books.let_claims_go_stale()
    await books.service.pay_due()
    assert await books.refunds() == [("pending", 1, 4900)]
    books.paystack.refunds = kept
    books.paystack.refund_becomes("re_1", ProviderRefundStatus.SUCCEEDED)
    await books.let_pause_pass()
    await books.service.pay_due()
    assert await books.payment() == ("refunded", 4900)
    assert len(books.paystack.called("refund")) == 1


async def test_four_workers_make_one_call(books: Books) -> None:
    for number in range(5):
        await books.add_payment(f"pi_{number}", 1000 + number, provider=Provider.PAYSTACK)
        await books.owe(f"pi_{number}", provider=Provider.PAYSTACK)
    done = await asyncio.gather(*(books.service.pay_due() for _ in range(4)))
    assert sum(done) == 5
    assert sorted(r.amount_minor for r in books.paystack.refunds) == [1000, 1001, 1002, 1003, 1004]


async def test_a_stale_claim_is_taken_over_and_the_first_worker_changes_nothing(books: Books) -> None:
    await books.add_payment("pi_1")
    await books.owe()
    first = await books.store.claim([Provider.STRIPE], CLAIM_SECONDS)
    assert first is not None
    assert not first.was_called
    assert await books.store.claim([Provider.STRIPE], CLAIM_SECONDS) is None
    await books.let_claims_go_stale()
    second = await books.store.claim([Provider.STRIPE], CLAIM_SECONDS)
    assert second is not None
    assert second.was_called
    assert second.frozen == first.frozen
    assert not await books.store.is_open(first)
    await books.store.put_back(first, "late", 60, is_refused=True, may_have_acted=False)
    assert await books.refunds() == [("requesting", 1, 4900)]
    assert await books.store.is_open(second)


async def test_a_provider_that_does_not_answer_holds_up_nobody_else(books: Books) -> None:
    for number in range(3):
        await books.add_payment(f"ps_{number}", provider=Provider.PAYSTACK)
        await books.owe(f"ps_{number}", provider=Provider.PAYSTACK)
    await books.add_payment("pi_1")
    await books.owe()
    books.paystack.before["refund"] = [ProviderTimeout()] * 3
    assert await books.service.pay_due() == 2
    assert books.stripe.sent_back("pi_1") == 4900
    assert len(books.paystack.called("refund")) == 1


async def test_a_part_sent_back_by_hand_is_not_sent_again(books: Books) -> None:
    await books.add_payment("pi_1")
    await books.cancel()
    await books.hear(books.stripe.send_back_by_hand("pi_1", 1000))
    assert await books.refunds() == [("owed", 1, 3900)]
    await books.service.pay_due()
    assert books.stripe.sent_back("pi_1") == 4900
    assert await books.order() == ("refunded", 4900)
    assert [(shown.amount_minor, shown.status) for shown in await books.shown()] == [
        (3900, RefundStatus.REFUNDED),
        (1000, RefundStatus.REFUNDED),
    ]
    await books.hear(books.stripe.fail_refund("re_1"))
    assert await books.refunds() == [("refunded", 1, 3900), ("owed", 1, 1000)]
    await books.service.pay_due()
    assert books.stripe.sent_back("pi_1") == 4900
    assert await books.order() == ("refunded", 4900)


async def test_all_sent_back_by_hand_closes_what_is_owed(books: Books) -> None:
    await books.add_payment("pi_1")
    await books.cancel()
    await books.hear(books.stripe.send_back_by_hand("pi_1", 4900))
    assert await books.refunds() == [("refunded", 1, 4900)]
    assert await books.service.pay_due() == 0
    assert await books.order() == ("refunded", 4900)


async def test_news_may_come_before_the_answer(books: Books) -> None:
    """The event overtakes the answer, and the answer changes nothing."""
    await books.add_payment("pi_1")
    await books.cancel()

    async def tell(_: FrozenRefund) -> None:
        await books.hear(books.stripe.refunds[-1])
        assert await books.order() == ("refunded", 4900)

    books.stripe.refunding = tell
    await books.service.pay_due()
    assert await books.order() == ("refunded", 4900)
    assert (await books.events()).count("refunded") == 1


async def test_what_is_shown_names_our_own_by_the_id_that_was_asked_for(books: Books) -> None:
    await books.add_payment("pi_1")
    await books.service.request("school", "o1", "r-1", 900, "A broken one")
    await books.hear(books.stripe.send_back_by_hand("pi_1", 100))
    assert await books.shown() == [
        RefundShown("r-1", 900, RefundStatus.REFUNDED),
        RefundShown("re_2", 100, RefundStatus.REFUNDED),
    ]


@pytest.mark.parametrize("was_called", [False, True])
async def test_what_is_refused_for_being_too_much_is_cut_to_what_is_left(books: Books, was_called: bool) -> None:
    """Somebody sent a part back at the provider, and no event told of it."""
    await books.add_payment("pi_1")
    await books.cancel()
    if was_called:
        books.stripe.before["refund"] = [ProviderTimeout()]
        await books.service.pay_due()
        await books.let_pause_pass()
    books.stripe.send_back_by_hand("pi_1", 1000)
    await books.service.pay_due()
    assert await books.refunds() == [("owed", 2, 3900)]
    await books.let_pause_pass()
    await books.service.pay_due()
    assert books.stripe.sent_back("pi_1") == 4900
    assert await books.order() == ("refunded", 4900)
