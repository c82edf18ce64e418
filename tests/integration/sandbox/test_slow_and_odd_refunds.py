"""Refunds at the stand-ins that take their time, get lost on the way, or are more than can go back."""

from __future__ import annotations

from typing import Any

import pytest
import stripe

from engine.errors import AlreadyRefunded, ProviderError, ProviderTimeout
from engine.payments.port import EventKind, ProviderRefundStatus
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


async def test_a_lost_answer_is_one_refund_at_stripe(stand_in: StandIn) -> None:
    session_id, intent = await paid_at_stripe(stand_in)
    await stand_in.fault("stripe", "timeout_after_success")
    with pytest.raises(ProviderTimeout):
        await stand_in.payments.refund(stand_in.refund_of(intent, 1000))
    again = await stand_in.payments.refund(stand_in.refund_of(intent, 1000))
    assert [refund["id"] for refund in await stand_in.refunds(session_id)] == [again.ref]


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


async def test_what_was_free_can_not_be_refunded(stand_in: StandIn) -> None:
    free = await stand_in.payments.open(stand_in.attempt(amount_minor=0))
    await stand_in.act(free.id, "pay")
    await stand_in.refund(free.id, status=409)
    await stand_in.act(free.id, "dispute", 409)


@pytest.mark.parametrize(("currency", "amount", "sent"), [("UGX", 50, "5000"), ("KWD", 1230, "1230")])
async def test_refunds_are_counted_in_stripes_unit_too(
    stand_in: StandIn, currency: str, amount: int, sent: str
) -> None:
    session_id, intent = await paid_at_stripe(stand_in, amount_minor=18_600, currency=currency)
    refund = await stand_in.payments.refund(stand_in.refund_of(intent, amount, currency=currency))
    assert refund.amount_minor == amount
    assert (await stand_in.calls())[-1]["params"]["amount"] == sent
    assert (await stand_in.refund(session_id, 18_600 - amount))["amount_refunded_minor"] == 18_600


async def test_a_lost_dispute_leaves_nothing_to_refund(stand_in: StandIn) -> None:
    session_id, intent = await paid_at_stripe(stand_in)
    (dispute,) = (await stand_in.act(session_id, "dispute"))["disputes"]
    closed = await stand_in.post(f"/sandbox/disputes/{dispute['id']}/lost", None)
    assert closed["event"]["type"] == "charge.dispute.closed"
    with pytest.raises(ProviderError) as raised:
        await stand_in.payments.refund(stand_in.refund_of(intent, 100))
    assert raised.value.details["provider_code"] == "charge_disputed"
    assert await stand_in.refunds(session_id) == []
    await stand_in.post("/sandbox/disputes/dp_nothing/won", None, 404)
