"""Paystack's signed webhooks: what is trusted, what is refused, and what is read (cases C9, D2, D4)."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import BadSignature, MalformedBody
from engine.payments.paystack import PaystackPayments
from engine.payments.paystack_events import PaystackEvents
from engine.payments.port import Dispute, EventKind, ProviderEvent, ProviderRefund, ProviderRefundStatus
from tests.odd_bodies import NO_IDS, ODD_BODIES, json_values

KEY = "sk_test_of_the_tests"


def signed(body: bytes, secret: str = KEY) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha512).hexdigest()


def charge(**data: Any) -> bytes:
    found = {"reference": "ref-1", "amount": 10000, "currency": "NGN", "status": "success", "metadata": None} | data
    return json.dumps({"event": "charge.success", "data": found}).encode()


def refund(status: str = "processed", event: str | None = None, **data: Any) -> bytes:
    found = {
        "status": status,
        "transaction_reference": "ref-1",
        "refund_reference": "132013318360",
        "amount": "2500",
        "currency": "NGN",
        "processor": "instant-transfer",
        "customer": {"first_name": "Ada", "last_name": None, "email": "pupil@school.example"},
        "integration": 412829,
        "domain": "live",
    } | data
    return json.dumps({"event": event or f"refund.{status}", "data": found}).encode()


def dispute(event: str = "create", **data: Any) -> bytes:
    found = {
        "id": 358950,
        "refund_amount": 5800,
        "currency": "NGN",
        "status": "awaiting-merchant-feedback",
        "resolution": None,
        "domain": "live",
        "transaction": {"id": 896467688, "reference": "ref-1", "amount": 10000, "currency": "NGN"},
        "category": "chargeback",
    } | data
    return json.dumps({"event": f"charge.dispute.{event}", "data": found}).encode()


def read(body: bytes) -> ProviderEvent:
    return PaystackEvents(KEY).verify(body, signed(body))


# What is trusted


@pytest.mark.parametrize("body", ODD_BODIES.values(), ids=ODD_BODIES.keys())
def test_bodies_are_verified_as_they_came(body: bytes) -> None:
    event = read(body.replace(b'"type"', b'"event"'))
    assert (event.kind, event.type) in ((EventKind.FOREIGN, "t"), (EventKind.FOREIGN, "a/b"))


@pytest.mark.parametrize("body", ODD_BODIES.values(), ids=ODD_BODIES.keys())
def test_one_changed_byte_anywhere_is_refused(body: bytes) -> None:
    for place in range(len(body)):
        changed = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        with pytest.raises(BadSignature):
            PaystackEvents(KEY).verify(changed, signed(body))


@pytest.mark.parametrize("more", [b" ", b"\n", b"\0"])
def test_a_body_cut_or_padded_is_refused(more: bytes) -> None:
    body = charge()
    for other in (body[:-1], body[1:], body + more, b""):
        with pytest.raises(BadSignature):
            PaystackEvents(KEY).verify(other, signed(body))


@pytest.mark.parametrize("header", [None, "", "00", "é" * 128, "sha512=00"])
def test_a_header_that_signs_nothing_is_refused(header: str | None) -> None:
    with pytest.raises(BadSignature):
        PaystackEvents(KEY).verify(charge(), header)


@pytest.mark.parametrize("secret", ["", " ", "\t\n"])
def test_without_a_secret_nothing_is_trusted(secret: str) -> None:
    body = charge()
    with pytest.raises(BadSignature):
        PaystackEvents(secret).verify(body, signed(body, secret))


def test_another_secret_or_another_hash_is_refused() -> None:
    body = charge()
    sha256 = hmac.new(KEY.encode(), body, hashlib.sha256).hexdigest()
    for header in (signed(body, "sk_other"), sha256):
        with pytest.raises(BadSignature):
            PaystackEvents(KEY).verify(body, header)


@given(st.binary(max_size=200), st.text(max_size=80))
def test_noise_is_refused_and_never_breaks(body: bytes, header: str) -> None:
    with pytest.raises(BadSignature):
        PaystackEvents(KEY).verify(body, header)


async def test_no_stamp_is_signed_so_any_time_will_do() -> None:
    payments = PaystackPayments(KEY)
    body = charge()
    assert (
        payments.verify(body, signed(body), 0).kind is payments.verify(body, signed(body), 9e9).kind is EventKind.PAID
    )
    await payments.close()


# Charges


@pytest.mark.parametrize(
    "metadata",
    [None, "", 0, {}, [], "not json", "[1]", '{"lastportion_order": 5}', *({"lastportion_order": m} for m in NO_IDS)],
)
def test_metadata_of_any_shape_is_a_help_and_no_need(metadata: object) -> None:
    event = read(charge(metadata=metadata))
    assert (event.kind, event.session_id, event.marked_order_id) == (EventKind.PAID, "ref-1", None)


def test_metadata_may_be_missing() -> None:
    body = json.dumps(
        {"event": "charge.success", "data": {"reference": "r", "amount": 1, "currency": "NGN", "status": "success"}}
    ).encode()
    assert (read(body).session_id, read(body).marked_order_id) == ("r", None)


@pytest.mark.parametrize("shape", [dict, json.dumps])
def test_metadata_carries_our_marks_as_object_or_text(shape: Any) -> None:
    marks = {"lastportion_order": "ord-1", "lastportion_tenant": "demo", "lastportion_attempt": "3"}
    event = read(charge(metadata=shape(marks)))
    assert (event.marked_order_id, event.marked_tenant, event.marked_attempt) == ("ord-1", "demo", 3)


def test_charges_are_told_apart_by_what_they_say() -> None:
    def key(**data: Any) -> str:
        return read(charge(**data)).dedup_key

    assert key() == key(id=5) == key(amount="10000") == "charge.success|ref-1|10000|NGN|success"
    different = {key(), key(amount=9999), key(currency="GHS"), key(status="reversed"), key(reference="ref-2")}
    assert len(different) == 5


def test_a_charge_that_did_not_succeed_settles_nothing() -> None:
    assert read(charge(status="reversed")).kind is EventKind.FOREIGN


def test_an_amount_may_be_text() -> None:
    assert read(charge(amount="10000")).amount_minor == 10000


@pytest.mark.parametrize(
    "wrong",
    [
        {"reference": None},
        {"reference": 5},
        {"amount": None},
        {"amount": "1e4"},
        {"amount": "٣"},
        {"amount": 1.5},
        {"amount": False},
        {"amount": -1},
        {"amount": "9" * 19},
        {"currency": None},
        {"currency": "NAIRA"},
        {"status": 1},
    ],
)
def test_a_charge_with_a_wrong_type_is_malformed(wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedBody):
        read(charge(**wrong))


# Refunds


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("pending", ProviderRefundStatus.PENDING),
        ("processing", ProviderRefundStatus.PENDING),
        ("needs-attention", ProviderRefundStatus.PENDING),
        ("processed", ProviderRefundStatus.SUCCEEDED),
        ("failed", ProviderRefundStatus.FAILED),
    ],
)
def test_refund_events_are_reduced_to_what_matters(word: str, status: ProviderRefundStatus) -> None:
    event = read(refund(word))
    assert (event.kind, event.type, event.session_id) == (EventKind.REFUND, f"refund.{word}", None)
    assert (event.payment_ref, event.amount_minor, event.currency) == ("ref-1", 2500, "NGN")
    assert event.refund == ProviderRefund(
        ref=None, payment_ref="ref-1", amount_minor=2500, currency="NGN", status=status, alias="132013318360"
    )


@pytest.mark.parametrize(("number", "ref"), [(None, None), (3018284, "3018284"), ("3018284", "3018284")])
def test_a_refund_has_its_id_where_the_event_has_one(number: object, ref: str | None) -> None:
    found = read(refund(id=number)).refund
    assert found is not None
    assert found.ref == ref


def test_a_refund_that_has_not_begun_has_no_reference_yet() -> None:
    event = read(refund("pending", refund_reference=None))
    assert event.refund is not None
    assert (event.refund.ref, event.refund.alias) == (None, None)
    assert event.dedup_key == "refund.pending|ref-1|2500|NGN|pending|"


def test_refund_events_are_told_apart_by_what_they_say() -> None:
    def key(status: str = "processed", **data: Any) -> str:
        return read(refund(status, **data)).dedup_key

    assert key() == key(amount=2500) == "refund.processed|ref-1|2500|NGN|processed|132013318360"
    different = {
        key(),
        key("failed"),
        key("pending"),
        key(refund_reference="132013318361"),
        key(transaction_reference="ref-2"),
        key(amount=2501),
        key(currency="GHS"),
        key(event="refund.processing"),
    }
    assert len(different) == 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "odd", "event": "refund.processed"},
        {"transaction_reference": None},
        {"amount": "25.00"},
        {"amount": None},
        {"currency": 5},
        {"refund_reference": 5},
        {"id": {}},
        {"id": ""},
    ],
)
def test_a_refund_with_a_wrong_type_is_malformed(wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedBody):
        read(refund(**wrong))


# Disputes


def test_a_dispute_is_read_with_what_it_asks_back() -> None:
    event = read(dispute())
    assert (event.kind, event.session_id, event.payment_ref) == (EventKind.DISPUTE, None, "ref-1")
    assert event.dispute == Dispute(
        ref="358950",
        payment_ref="ref-1",
        amount_minor=5800,
        currency="NGN",
        status="awaiting-merchant-feedback",
        reason="chargeback",
        is_closed=False,
    )
    assert event.dedup_key == "charge.dispute.create|ref-1|5800|NGN|awaiting-merchant-feedback|358950"


def test_a_dispute_without_an_amount_is_about_the_whole_payment() -> None:
    found = read(dispute(refund_amount=None, currency=None)).dispute
    assert found is not None
    assert (found.amount_minor, found.currency) == (10000, "NGN")


@pytest.mark.parametrize(
    ("event", "status", "closed"),
    [
        ("create", "awaiting-merchant-feedback", False),
        ("remind", "awaiting-merchant-feedback", False),
        ("remind", "awaiting-bank-feedback", False),
        ("remind", "resolved", True),
        ("resolve", "resolved", True),
        ("resolve", "pending", True),
    ],
)
def test_a_dispute_ends_when_it_is_resolved(event: str, status: str, closed: bool) -> None:
    found = read(dispute(event, status=status, resolution="declined" if closed else None)).dispute
    assert found is not None
    assert (found.is_closed, found.reason) == (closed, "declined" if closed else "chargeback")


@pytest.mark.parametrize("transaction", [None, 5, {}, {"reference": None}])
def test_a_dispute_that_names_no_transaction_is_foreign(transaction: object) -> None:
    assert read(dispute(transaction=transaction)).kind is EventKind.FOREIGN


# Everything else


@pytest.mark.parametrize("event", ["transfer.success", "subscription.create", "refund.something", "charge.dispute.odd"])
def test_what_is_not_about_our_money_is_foreign(event: str) -> None:
    body = json.dumps({"event": event, "data": {"reference": "ref-1"}}).encode()
    found = read(body)
    assert (found.kind, found.session_id, found.payment_ref) == (EventKind.FOREIGN, None, None)
    assert found.dedup_key == f"{event}|{hashlib.sha256(body).hexdigest()}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"event":5}',
        b'{"event":"charge.success","data":[]}',
        b'{"event":"refund.processed"}',
        b'{"event":"charge.dispute.create","data":7}',
        b'{"event":"' + b"e" * 101 + b'"}',
    ],
)
def test_an_authentic_body_that_is_no_event_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        read(body)


fields = st.sampled_from(
    [
        "id",
        "reference",
        "transaction_reference",
        "refund_reference",
        "amount",
        "refund_amount",
        "currency",
        "status",
        "metadata",
        "transaction",
        "category",
        "resolution",
    ]
)


@pytest.mark.parametrize("make", [charge, refund, dispute])
@given(found=st.dictionaries(fields, json_values, max_size=8))
def test_whatever_stands_in_an_event_it_is_read_or_malformed(make: Any, found: dict[str, Any]) -> None:
    try:
        event = read(make(**({"event": "refund.processed"} if make is refund else {}), **found))
    except MalformedBody:
        return
    # A unique index of the database takes about 2,700 bytes.
    assert len(event.dedup_key.encode()) < 2700
    assert event.amount_minor is None or event.amount_minor >= 0
