"""Money that goes back at the stand-ins: through the adapters, from the dashboard, later, in vain, and by dispute."""

from __future__ import annotations

from typing import Any

import pytest
import stripe

from engine.errors import AlreadyRefunded, ProviderError, ProviderTimeout
from engine.payments.port import EventKind, ProviderRefundStatus, SessionState
from tests.stand_in import PAYSTACK_KEY, StandIn, library

SUCCEEDED, PENDING, FAILED = ProviderRefundStatus.SUCCEEDED, ProviderRefundStatus.PENDING, ProviderRefundStatus.FAILED


async def paid_at_stripe(stand_in: StandIn, order: str = "ord-1", **changes: Any) -> tuple[str, str]:
    """A paid session of 12.50 GBP: its id and its PaymentIntent."""
    session = await stand_in.payments.open(stand_in.attempt(order, **changes))
    answer = await stand_in.act(session.id, "pay")
    stand_in.received.clear()
    return session.id, answer["payment_ref"]


async def paid_at_paystack(stand_in: StandIn, order: str = "ord-1") -> str:
    """A paid transaction of 1,250.00 NGN."""
    session = await stand_in.paystack.open(stand_in.transaction(order))
    await stand_in.act(session.id, "pay")
    stand_in.received.clear()
    return session.id


def told(stand_in: StandIn) -> list[tuple[str, ProviderRefundStatus | int | None]]:
    """Each event with the status of its refund, or with the total that went back."""
    found: list[tuple[str, ProviderRefundStatus | int | None]] = []
    for event in stand_in.received:
        assert event.kind is EventKind.REFUND
        total = event.refund_total
        found.append((event.type, total.total_minor if total else event.refund.status if event.refund else None))
    return sorted(found, key=str)


# Stripe


async def test_a_stripe_refund_is_processed_at_once(still_stand_in: StandIn) -> None:
    session_id, intent = await paid_at_stripe(still_stand_in)
    part = await still_stand_in.payments.refund(still_stand_in.refund_of(intent, 400))
    assert (part.status, part.amount_minor, part.currency) == (SUCCEEDED, 400, "GBP")
    assert (part.marked_refund_id, part.marked_round) == ("rf-1", 1)
    await still_stand_in.sandbox.catch_up()
    assert told(still_stand_in) == [("charge.refunded", 400), ("refund.created", SUCCEEDED)]
    rest = await still_stand_in.payments.refund(still_stand_in.refund_of(intent, 850, id="rf-2"))
    await still_stand_in.sandbox.catch_up()
    assert ("charge.refunded", 1250) in told(still_stand_in)
    assert [refund.ref for refund in await still_stand_in.payments.look_up_refunds(intent)] == [rest.ref, part.ref]
    shown = await still_stand_in.session(session_id)
    assert (shown["amount_refunded_minor"], shown["status"]) == (1250, "complete")
    assert [refund["amount_minor"] for refund in shown["refunds"]] == [400, 850]
    with pytest.raises(AlreadyRefunded):
        await still_stand_in.payments.refund(still_stand_in.refund_of(intent, 1, id="rf-3"))


async def test_one_key_is_one_stripe_refund(stand_in: StandIn) -> None:
    session_id, intent = await paid_at_stripe(stand_in)
    await stand_in.fault("stripe", "timeout_after_success")
    with pytest.raises(ProviderTimeout):
        await stand_in.payments.refund(stand_in.refund_of(intent, 1000))
    again = await stand_in.payments.refund(stand_in.refund_of(intent, 1000))
    assert [refund["id"] for refund in await stand_in.refunds(session_id)] == [again.ref]


async def test_more_than_is_left_never_goes_back(stand_in: StandIn) -> None:
    session_id, intent = await paid_at_stripe(stand_in)
    await stand_in.payments.refund(stand_in.refund_of(intent, 1000))
    async with library(stand_in) as client:
        for params, message in (
            ({"payment_intent": intent, "amount": 251}, "greater than unrefunded amount"),
            ({"payment_intent": intent, "amount": 0}, "Invalid amount"),
            ({"payment_intent": "pi_nothing"}, "No such payment_intent"),
            ({"charge": "ch_nothing"}, "No such charge"),
            ({"amount": 5}, "payment_intent or charge"),
            ({"payment_intent": intent, "instructions": "x"}, "unknown parameter"),
        ):
            with pytest.raises(stripe.InvalidRequestError, match=message) as raised:
                await client.v1.refunds.create_async(params)  # type: ignore[arg-type]  # wrong on purpose
            assert raised.value.http_status in (400, 404)
        charge = (await client.v1.payment_intents.retrieve_async(intent)).latest_charge
        rest = await client.v1.refunds.create_async({"charge": str(charge), "reason": "duplicate"})
        assert (rest.amount, rest.reason, rest.payment_intent) == (250, "duplicate", intent)
        assert (await client.v1.refunds.retrieve_async(rest.id)).status == "succeeded"
        with pytest.raises(stripe.InvalidRequestError) as gone:
            await client.v1.refunds.create_async({"payment_intent": intent})
        assert gone.value.code == "charge_already_refunded"
    assert [refund["amount_minor"] for refund in await stand_in.refunds(session_id)] == [1000, 250]


async def test_what_was_not_paid_is_not_refunded(stand_in: StandIn) -> None:
    session = await stand_in.payments.open(stand_in.attempt())
    await stand_in.refund(session.id, status=409)
    pending = await stand_in.act(session.id, "pay_later")
    with pytest.raises(ProviderError):
        await stand_in.payments.refund(stand_in.refund_of(pending["payment_ref"], 100))
    free = await stand_in.payments.open(stand_in.attempt("ord-2", amount_minor=0))
    await stand_in.act(free.id, "pay")
    await stand_in.refund(free.id, status=409)
    transaction = await stand_in.paystack.open(stand_in.transaction())
    with pytest.raises(ProviderError):
        await stand_in.paystack.refund(stand_in.refund_of(transaction.id, 100, currency="NGN"))


async def test_a_delayed_stripe_refund_is_processed_five_seconds_later(still_stand_in: StandIn) -> None:
    session_id, intent = await paid_at_stripe(still_stand_in)
    await still_stand_in.fault("stripe", "delay")
    refund = await still_stand_in.payments.refund(still_stand_in.refund_of(intent, 1250))
    assert refund.status is PENDING
    await still_stand_in.sandbox.catch_up()
    assert told(still_stand_in) == [("refund.created", PENDING)]
    assert (await still_stand_in.session(session_id))["amount_refunded_minor"] == 0
    with pytest.raises(AlreadyRefunded):
        await still_stand_in.payments.refund(still_stand_in.refund_of(intent, 1, id="rf-2"))
    await still_stand_in.advance(5)
    await still_stand_in.advance(5)
    assert told(still_stand_in) == [
        ("charge.refunded", 1250),
        ("refund.created", PENDING),
        ("refund.updated", SUCCEEDED),
    ]


async def test_a_stripe_refund_that_failed_can_be_made_again(still_stand_in: StandIn) -> None:
    session_id, intent = await paid_at_stripe(still_stand_in)
    refund = await still_stand_in.payments.refund(still_stand_in.refund_of(intent, 1250))
    await still_stand_in.sandbox.catch_up()
    still_stand_in.received.clear()
    answer = await still_stand_in.post(f"/sandbox/refunds/{refund.ref}/fail", None)
    assert [event["type"] for event in answer["events"]] == ["refund.failed", "refund.updated"]
    assert told(still_stand_in) == [("refund.failed", FAILED), ("refund.updated", FAILED)]
    assert (answer["id"], answer["amount_refunded_minor"]) == (session_id, 0)
    assert (await still_stand_in.payments.look_up_refunds(intent))[0].status is FAILED
    await still_stand_in.post(f"/sandbox/refunds/{refund.ref}/fail", None, 409)
    await still_stand_in.post("/sandbox/refunds/re_nothing/fail", None, 404)
    await still_stand_in.post("/sandbox/refunds/7/fail", None, 404)
    again = await still_stand_in.payments.refund(still_stand_in.refund_of(intent, 1250, round=2))
    assert (again.status, again.marked_round) == (SUCCEEDED, 2)


@pytest.mark.parametrize(("currency", "amount", "sent"), [("UGX", 50, "5000"), ("KWD", 1230, "1230")])
async def test_refunds_are_counted_in_stripes_unit_too(
    stand_in: StandIn, currency: str, amount: int, sent: str
) -> None:
    session_id, intent = await paid_at_stripe(stand_in, amount_minor=18_600, currency=currency)
    refund = await stand_in.payments.refund(stand_in.refund_of(intent, amount, currency=currency))
    assert refund.amount_minor == amount
    assert (await stand_in.calls())[-1]["params"]["amount"] == sent
    assert (await stand_in.refund(session_id, 18_600 - amount))["amount_refunded_minor"] == 18_600


async def test_the_library_pages_through_sessions_and_refunds(stand_in: StandIn) -> None:
    paid = [await paid_at_stripe(stand_in, f"ord-{number}") for number in range(5)]
    await stand_in.payments.open(stand_in.attempt("ord-open"))
    for _ in range(3):
        await stand_in.refund(paid[0][0], 100)
    async with library(stand_in) as client:
        sessions = await client.v1.checkout.sessions.list_async({"status": "complete", "limit": 2})
        assert sessions.has_more
        assert [item.id async for item in sessions.auto_paging_iter()] == [session for session, _ in reversed(paid)]
        refunds = await client.v1.refunds.list_async({"payment_intent": paid[0][1], "limit": 1})
        assert [item.amount async for item in refunds.auto_paging_iter()] == [100, 100, 100]
        for wrong in ({"limit": 0}, {"limit": 101}, {"starting_after": "cs_nothing"}, {"status": "paid"}):
            with pytest.raises(stripe.InvalidRequestError):
                await client.v1.checkout.sessions.list_async(wrong)  # type: ignore[arg-type]  # wrong on purpose
    since_s = stand_in.now_s()
    assert len([session async for session in stand_in.payments.paid_since(since_s - 600)]) == 5
    await stand_in.advance(100)
    assert [session async for session in stand_in.payments.paid_since(stand_in.now_s())] == []


# Paystack


async def test_a_paystack_refund_is_queued_and_then_processed_at_once(still_stand_in: StandIn) -> None:
    reference = await paid_at_paystack(still_stand_in)
    queued = await still_stand_in.paystack.refund(still_stand_in.refund_of(reference, 25_000, currency="NGN"))
    assert (queued.status, queued.amount_minor, queued.marked_refund_id) == (PENDING, 25_000, "rf-1")
    await still_stand_in.sandbox.catch_up()
    assert told(still_stand_in) == [
        ("refund.pending", PENDING),
        ("refund.processed", SUCCEEDED),
        ("refund.processing", PENDING),
    ]
    for event in still_stand_in.received:
        data = event.body["data"]
        assert isinstance(data, dict)
        assert (data["amount"], data["currency"], data["transaction_reference"]) == ("25000", "NGN", reference)
        assert (data["refund_reference"] is None) is (data["status"] == "pending")
    (found,) = await still_stand_in.paystack.look_up_refunds(reference)
    assert (found.ref, found.status) == (queued.ref, SUCCEEDED)
    assert (await still_stand_in.session(reference))["amount_refunded_minor"] == 25_000
    assert (await still_stand_in.paystack.look_up(reference)).state is SessionState.PAID


async def test_two_calls_are_two_paystack_refunds_and_all_of_it_is_a_reversal(stand_in: StandIn) -> None:
    reference = await paid_at_paystack(stand_in)
    half = stand_in.refund_of(reference, 62_500, currency="NGN")
    first, second = await stand_in.paystack.refund(half), await stand_in.paystack.refund(half)
    assert first.ref != second.ref
    assert len(await stand_in.paystack.look_up_refunds(reference)) == 2
    assert (await stand_in.session(reference))["status"] == "reversed"
    with pytest.raises(AlreadyRefunded):
        await stand_in.paystack.refund(half)
    assert [session async for session in stand_in.paystack.paid_since(0)] == []


async def test_what_paystack_refuses_of_a_refund_is_refused(stand_in: StandIn) -> None:
    reference = await paid_at_paystack(stand_in)
    headers = {"Authorization": f"Bearer {PAYSTACK_KEY}"}
    for body, message in (
        ({"transaction": reference, "amount": 125_001}, "cannot be more"),
        ({"transaction": reference, "currency": "GHS"}, "Currency"),
        ({"transaction": reference, "reason": "x"}, "not allowed"),
        ({"transaction": "nothing"}, "not found"),
        ({"amount": 5}, "required"),
    ):
        answer = await stand_in.http.post("/sandbox/paystack/refund", json=body, headers=headers)
        assert answer.status_code == 400
        assert message in answer.json()["message"]
    assert await stand_in.refunds(reference) == []
    # All that is left, by Paystack's own number of the transaction.
    found = await stand_in.http.get(f"/sandbox/paystack/transaction/verify/{reference}", headers=headers)
    made = await stand_in.http.post(
        "/sandbox/paystack/refund", json={"transaction": found.json()["data"]["id"]}, headers=headers
    )
    assert (made.json()["data"]["amount"], made.json()["data"]["status"]) == (125_000, "pending")
    fetched = await stand_in.http.get(f"/sandbox/paystack/refund/{made.json()['data']['id']}", headers=headers)
    assert fetched.json()["data"]["status"] == "processed"
    listed = await stand_in.http.get("/sandbox/paystack/refund", params={"reference": reference}, headers=headers)
    assert [row["id"] for row in listed.json()["data"]] == [made.json()["data"]["id"]]


async def test_a_delayed_paystack_refund_may_fail_instead(still_stand_in: StandIn) -> None:
    reference = await paid_at_paystack(still_stand_in)
    await still_stand_in.fault("paystack", "delay", 2)
    first = await still_stand_in.paystack.refund(still_stand_in.refund_of(reference, 25_000, currency="NGN"))
    second = await still_stand_in.paystack.refund(still_stand_in.refund_of(reference, 10_000, currency="NGN"))
    failed = await still_stand_in.post(f"/sandbox/refunds/{second.ref}/fail", None)
    assert [refund["status"] for refund in failed["refunds"]] == ["pending", "failed"]
    await still_stand_in.advance(5)
    assert [(r["id"], r["status"]) for r in await still_stand_in.refunds(reference)] == [
        (first.ref, "succeeded"),
        (second.ref, "failed"),
    ]
    assert told(still_stand_in) == [
        ("refund.failed", FAILED),
        ("refund.pending", PENDING),
        ("refund.pending", PENDING),
        ("refund.processed", SUCCEEDED),
        ("refund.processing", PENDING),
    ]


# The dashboard, and the bank


async def test_a_refund_from_the_dashboard_is_told_of_like_any(still_stand_in: StandIn) -> None:
    session_id, _ = await paid_at_stripe(still_stand_in)
    part = await still_stand_in.refund(session_id, 400)
    assert [event["delivered"] for event in part["events"]] == [True, True]
    assert told(still_stand_in) == [("charge.refunded", 400), ("refund.created", SUCCEEDED)]
    await still_stand_in.refund(session_id, 851, status=409)
    assert (await still_stand_in.refund(session_id))["amount_refunded_minor"] == 1250
    await still_stand_in.refund(session_id, status=409)
    await still_stand_in.refund(session_id, 0, status=422)
    await still_stand_in.refund("nothing", status=404)
    reference = await paid_at_paystack(still_stand_in)
    assert (await still_stand_in.act(reference, "refund"))["amount_refunded_minor"] == 125_000
    assert [event.type for event in still_stand_in.received] == [
        "refund.pending",
        "refund.processing",
        "refund.processed",
    ]


@pytest.mark.parametrize(("outcome", "refundable"), [("won", True), ("lost", False)])
async def test_a_dispute_is_opened_and_decided(stand_in: StandIn, outcome: str, refundable: bool) -> None:
    session_id, intent = await paid_at_stripe(stand_in)
    opened = await stand_in.act(session_id, "dispute")
    (dispute,) = opened["disputes"]
    assert dispute["status"] == "needs_response"
    await stand_in.act(session_id, "dispute", 409)
    with pytest.raises(ProviderError) as raised:
        await stand_in.payments.refund(stand_in.refund_of(intent, 100))
    assert raised.value.details["provider_code"] == "charge_disputed"
    closed = await stand_in.post(f"/sandbox/disputes/{dispute['id']}/{outcome}", None)
    assert closed["disputes"] == [{"id": dispute["id"], "status": outcome}]
    await stand_in.post(f"/sandbox/disputes/{dispute['id']}/{outcome}", None, 409)
    await stand_in.post("/sandbox/disputes/dp_nothing/won", None, 404)
    known = [(event.kind, event.type, event.payment_ref) for event in stand_in.received]
    assert known == [
        (EventKind.DISPUTE, "charge.dispute.created", intent),
        (EventKind.DISPUTE, "charge.dispute.closed", intent),
    ]
    last = stand_in.received[-1].dispute
    assert last is not None
    assert (last.amount_minor, last.status, last.is_closed) == (1250, outcome, True)
    if refundable:
        await stand_in.payments.refund(stand_in.refund_of(intent, 100, round=2))
    else:
        with pytest.raises(ProviderError):
            await stand_in.payments.refund(stand_in.refund_of(intent, 100, round=2))
