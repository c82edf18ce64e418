"""Stripe's news of money that goes back: refunds, a charge's refunded total, disputes (case E4)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import stripe
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import MalformedBody
from engine.payments.port import (
    Dispute,
    EventKind,
    ProviderEvent,
    ProviderRefund,
    ProviderRefundStatus,
    RefundTotal,
)
from engine.payments.stripe_events import StripeEvents
from tests.odd_bodies import json_values

SECRET = "whsec_of_the_tests"
NOW = 1_750_000_000

REFUND_EVENTS = ["refund.created", "refund.updated", "refund.failed", "charge.refund.updated"]
DISPUTE_EVENTS = ["created", "updated", "closed", "funds_withdrawn", "funds_reinstated"]


def read(event_type: str, found: dict[str, Any]) -> ProviderEvent:
    event = {"id": "evt_1", "object": "event", "created": NOW, "type": event_type, "data": {"object": found}}
    body = json.dumps(event).encode()
    header = stripe.WebhookSignature.generate_signature_header(body.decode(), SECRET, NOW)
    return StripeEvents(SECRET).verify(body, header, NOW)


def refund(**changes: Any) -> dict[str, Any]:
    return {
        "id": "re_1",
        "object": "refund",
        "amount": 1000,
        "currency": "gbp",
        "charge": "ch_1",
        "payment_intent": "pi_1",
        "status": "succeeded",
        "metadata": {
            "lastportion_refund": "rfd_1",
            "lastportion_round": "1",
            "lastportion_order": "ord-1",
            "lastportion_tenant": "demo",
        },
    } | changes


def charge(**changes: Any) -> dict[str, Any]:
    return {
        "id": "ch_1",
        "object": "charge",
        "amount": 2000,
        "amount_refunded": 1500,
        "currency": "gbp",
        "payment_intent": "pi_1",
        "metadata": {},
    } | changes


def dispute(**changes: Any) -> dict[str, Any]:
    return {
        "id": "dp_1",
        "object": "dispute",
        "amount": 2000,
        "currency": "gbp",
        "payment_intent": "pi_1",
        "status": "needs_response",
        "reason": "fraudulent",
        "metadata": {},
    } | changes


@pytest.mark.parametrize("event_type", REFUND_EVENTS)
def test_a_refund_is_read_with_our_mark(event_type: str) -> None:
    event = read(event_type, refund())
    assert (event.kind, event.type, event.dedup_key) == (EventKind.REFUND, event_type, "evt_1")
    assert (event.session_id, event.payment_ref, event.amount_minor, event.currency) == (None, "pi_1", 1000, "GBP")
    assert (event.marked_order_id, event.marked_tenant, event.created_at_s) == ("ord-1", "demo", NOW)
    assert event.refund == ProviderRefund(
        ref="re_1",
        payment_ref="pi_1",
        amount_minor=1000,
        currency="GBP",
        status=ProviderRefundStatus.SUCCEEDED,
        marked_refund_id="rfd_1",
        marked_round=1,
    )
    assert (event.refund_total, event.dispute) == (None, None)


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("pending", ProviderRefundStatus.PENDING),
        ("requires_action", ProviderRefundStatus.PENDING),
        ("succeeded", ProviderRefundStatus.SUCCEEDED),
        ("failed", ProviderRefundStatus.FAILED),
        ("canceled", ProviderRefundStatus.FAILED),
    ],
)
def test_the_status_decides_and_not_the_events_name(word: str, status: ProviderRefundStatus) -> None:
    for event_type in REFUND_EVENTS:
        found = read(event_type, refund(status=word, failure_reason="expired_or_canceled_card")).refund
        assert found is not None
        assert (found.status, found.reason) == (status, "expired_or_canceled_card")


def test_a_refund_that_somebody_else_made_has_no_mark() -> None:
    found = read("refund.created", refund(metadata=None)).refund
    assert found is not None
    assert (found.marked_refund_id, found.marked_round) == (None, None)


def test_a_charge_tells_how_much_went_back_in_all() -> None:
    event = read("charge.refunded", charge())
    assert (event.kind, event.payment_ref, event.refund) == (EventKind.REFUND, "pi_1", None)
    assert event.refund_total == RefundTotal("pi_1", 1500, "GBP")
    assert (event.amount_minor, event.currency) == (1500, "GBP")


@pytest.mark.parametrize("act", DISPUTE_EVENTS)
def test_a_dispute_is_read_with_what_it_asks_back(act: str) -> None:
    event = read(f"charge.dispute.{act}", dispute())
    assert (event.kind, event.payment_ref, event.amount_minor) == (EventKind.DISPUTE, "pi_1", 2000)
    assert event.dispute == Dispute(
        ref="dp_1",
        payment_ref="pi_1",
        amount_minor=2000,
        currency="GBP",
        status="needs_response",
        reason="fraudulent",
        is_closed=act == "closed",
    )


@pytest.mark.parametrize(
    ("status", "closed"),
    [
        ("warning_needs_response", False),
        ("warning_under_review", False),
        ("warning_closed", True),
        ("needs_response", False),
        ("under_review", False),
        ("won", True),
        ("lost", True),
        ("prevented", True),
    ],
)
def test_a_dispute_ends_with_its_status(status: str, closed: bool) -> None:
    found = read("charge.dispute.updated", dispute(status=status, reason=None)).dispute
    assert found is not None
    assert (found.is_closed, found.reason) == (closed, None)


@pytest.mark.parametrize(
    ("event_type", "found"),
    [("refund.created", refund()), ("charge.refunded", charge()), ("charge.dispute.created", dispute())],
)
def test_the_payment_is_named_plain_or_expanded_or_is_not_ours(event_type: str, found: dict[str, Any]) -> None:
    assert read(event_type, found | {"payment_intent": {"id": "pi_2", "amount": 5}}).payment_ref == "pi_2"
    foreign = read(event_type, found | {"payment_intent": None})
    assert (foreign.kind, foreign.payment_ref, foreign.dedup_key) == (EventKind.FOREIGN, None, "evt_1")


@pytest.mark.parametrize(
    ("amount", "currency", "minor"),
    [(80, "jpy", 80), (10000, "ugx", 100), (18600, "kwd", 18600), (35200, "bhd", 35200)],
)
def test_amounts_come_in_our_minor_units(amount: int, currency: str, minor: int) -> None:
    assert read("refund.created", refund(amount=amount, currency=currency)).amount_minor == minor
    assert read("charge.refunded", charge(amount_refunded=amount, currency=currency)).amount_minor == minor
    assert read("charge.dispute.created", dispute(amount=amount, currency=currency)).amount_minor == minor


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": None},
        {"id": 7},
        {"amount": None, "amount_refunded": None},
        {"amount": "1000", "amount_refunded": "1000"},
        {"amount": -1, "amount_refunded": -1},
        {"amount": True, "amount_refunded": True},
        {"amount": 10050, "amount_refunded": 10050, "currency": "ugx"},
        {"currency": None},
        {"status": None},
        {"status": ["won"]},
        {"payment_intent": 5},
        {"payment_intent": {}},
        {"metadata": "text"},
        {"metadata": {"lastportion_order": 5}},
        {"reason": 5, "failure_reason": 5},
    ],
)
def test_an_object_with_a_wrong_type_is_malformed(wrong: dict[str, Any]) -> None:
    for event_type, found in (("refund.updated", refund()), ("charge.dispute.created", dispute())):
        with pytest.raises(MalformedBody):
            read(event_type, found | wrong)
    if wrong.keys() & {"amount", "currency", "payment_intent", "metadata"}:
        with pytest.raises(MalformedBody):
            read("charge.refunded", charge(**wrong))


def test_a_refund_with_an_odd_status_is_malformed() -> None:
    with pytest.raises(MalformedBody):
        read("refund.updated", refund(status="odd"))


@pytest.mark.parametrize("event_type", ["refund.created", "charge.refunded", "charge.dispute.created"])
def test_an_event_without_its_object_is_malformed(event_type: str) -> None:
    body = json.dumps({"id": "evt_1", "type": event_type, "data": {"object": "re_1"}}).encode()
    header = stripe.WebhookSignature.generate_signature_header(body.decode(), SECRET, NOW)
    with pytest.raises(MalformedBody):
        StripeEvents(SECRET).verify(body, header, NOW)


fields = st.sampled_from(
    ["id", "amount", "amount_refunded", "currency", "metadata", "payment_intent", "status", "reason", "failure_reason"]
)


@given(
    made=st.sampled_from([("refund.updated", refund), ("charge.refunded", charge), ("charge.dispute.closed", dispute)]),
    found=st.dictionaries(fields, json_values, max_size=8),
)
def test_whatever_stands_in_an_object_it_is_read_or_malformed(made: Any, found: dict[str, Any]) -> None:
    event_type, make = made
    try:
        event = read(event_type, make(**found))
    except MalformedBody:
        return
    assert event.kind is EventKind.FOREIGN or (event.payment_ref and event.amount_minor is not None)
