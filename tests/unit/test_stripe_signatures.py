"""Signed webhooks: what is trusted, what is refused, and what an authentic body is read as (cases C8, C9)."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
import stripe
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import BadSignature, MalformedBody
from engine.payments.port import EventKind, ProviderEvent
from engine.payments.stripe_events import StripeEvents
from tests.odd_bodies import NO_IDS, ODD_BODIES, json_values

SECRET = "whsec_of_the_tests"
NOW = 1_750_000_000


def signed(body: bytes, at: int = NOW, secret: str = SECRET) -> str:
    """A header as the library itself makes it."""
    header = stripe.WebhookSignature.generate_signature_header(body.decode(), secret, at)
    assert isinstance(header, str)
    return header


def stripe_event(event_type: str = "checkout.session.completed", **session: Any) -> bytes:
    found = {
        "id": "cs_test_1",
        "object": "checkout.session",
        "amount_total": 1250,
        "currency": "gbp",
        "metadata": {"lastportion_order": "ord-1", "lastportion_tenant": "demo"},
        "payment_intent": "pi_1",
        "payment_status": "paid",
        "status": "complete",
    } | session
    event = {"id": "evt_1", "object": "event", "created": NOW, "type": event_type, "data": {"object": found}}
    return json.dumps(event).encode()


def read(body: bytes) -> ProviderEvent:
    return StripeEvents(SECRET).verify(body, signed(body), NOW)


# What is trusted


@pytest.mark.parametrize("body", ODD_BODIES.values(), ids=ODD_BODIES.keys())
def test_bodies_are_verified_as_they_came(body: bytes) -> None:
    assert read(body).dedup_key == "evt_1"


@pytest.mark.parametrize("body", ODD_BODIES.values(), ids=ODD_BODIES.keys())
def test_one_changed_byte_anywhere_is_refused(body: bytes) -> None:
    header = signed(body)
    for place in range(len(body)):
        changed = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        with pytest.raises(BadSignature):
            StripeEvents(SECRET).verify(changed, header, NOW)


@pytest.mark.parametrize("changed", [b"", b" ", b"\n"])
def test_a_body_cut_or_padded_is_refused(changed: bytes) -> None:
    body = stripe_event()
    for other in (body[:-1], body + changed if changed else body[1:]):
        with pytest.raises(BadSignature):
            StripeEvents(SECRET).verify(other, signed(body), NOW)


@pytest.mark.parametrize("off", [-300, -299, 0, 299, 300])
@pytest.mark.parametrize("fraction", [0.0, 0.999])
def test_stamps_within_the_tolerance_are_taken(off: int, fraction: float) -> None:
    body = stripe_event()
    assert StripeEvents(SECRET).verify(body, signed(body, NOW + off), NOW + fraction).kind is EventKind.PAID


@pytest.mark.parametrize("off", [-100_000, -301, 301, 100_000])
def test_stamps_beyond_the_tolerance_are_refused_both_ways(off: int) -> None:
    body = stripe_event()
    with pytest.raises(BadSignature, match="time stamp"):
        StripeEvents(SECRET).verify(body, signed(body, NOW + off), NOW)


def test_the_tolerance_is_a_setting() -> None:
    body = stripe_event()
    assert StripeEvents(SECRET, tolerance_seconds=5).verify(body, signed(body, NOW - 5), NOW).session_id == "cs_test_1"
    with pytest.raises(BadSignature):
        StripeEvents(SECRET, tolerance_seconds=5).verify(body, signed(body, NOW - 6), NOW)


def test_a_changed_stamp_is_refused() -> None:
    body = stripe_event()
    with pytest.raises(BadSignature):
        StripeEvents(SECRET).verify(body, signed(body).replace(f"t={NOW}", f"t={NOW + 1}"), NOW)


def test_one_right_signature_among_several_is_enough() -> None:
    body = stripe_event()
    stamp, right = signed(body).split(",")
    rolled = f"{stamp},v1={'0' * 64},{right},v0=old"
    assert StripeEvents(SECRET).verify(body, rolled, NOW).kind is EventKind.PAID


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        " ",
        ",",
        "t=",
        "t",
        "t=x,v1=00",
        f"t={NOW}",
        f"t={NOW},v1=",
        f"t={NOW},v0=00",
        f"t={'9' * 5000},v1=00",
        f"t={NOW},v1=ünïcode",
        "v1=00",
    ],
)
def test_a_header_that_signs_nothing_is_refused(header: str | None) -> None:
    with pytest.raises(BadSignature):
        StripeEvents(SECRET).verify(stripe_event(), header, NOW)


@pytest.mark.parametrize("secret", ["", " ", "\t\n"])
def test_without_a_secret_nothing_is_trusted(secret: str) -> None:
    body = stripe_event()
    with pytest.raises(BadSignature):
        StripeEvents(secret).verify(body, signed(body, secret=secret), NOW)


def test_another_secret_is_refused() -> None:
    body = stripe_event()
    with pytest.raises(BadSignature):
        StripeEvents(SECRET).verify(body, signed(body, secret="whsec_other"), NOW)


def test_stripes_hash_is_sha256() -> None:
    body = stripe_event()
    sha512 = hmac.new(SECRET.encode(), f"{NOW}.".encode() + body, hashlib.sha512).hexdigest()
    with pytest.raises(BadSignature):
        StripeEvents(SECRET).verify(body, f"t={NOW},v1={sha512}", NOW)


@given(st.binary(max_size=200), st.text(max_size=80))
def test_noise_is_refused_and_never_breaks(body: bytes, header: str) -> None:
    with pytest.raises(BadSignature):
        StripeEvents(SECRET).verify(body, header, NOW)


# What an authentic body is read as


@pytest.mark.parametrize(
    ("event_type", "payment_status", "kind"),
    [
        ("checkout.session.completed", "paid", EventKind.PAID),
        ("checkout.session.completed", "no_payment_required", EventKind.PAID),
        ("checkout.session.completed", "unpaid", EventKind.UNPAID),
        ("checkout.session.expired", "unpaid", EventKind.EXPIRED),
        ("checkout.session.async_payment_succeeded", "paid", EventKind.PAID),
        ("checkout.session.async_payment_failed", "unpaid", EventKind.EXPIRED),
        ("checkout.session.something_new", "unpaid", EventKind.FOREIGN),
    ],
)
def test_session_events_are_reduced_to_what_matters(event_type: str, payment_status: str, kind: EventKind) -> None:
    event = read(stripe_event(event_type, payment_status=payment_status))
    assert (event.kind, event.type, event.dedup_key) == (kind, event_type, "evt_1")
    assert (event.session_id, event.amount_minor, event.currency) == ("cs_test_1", 1250, "GBP")
    assert (event.marked_order_id, event.marked_tenant, event.created_at_s) == ("ord-1", "demo", NOW)
    assert event.payment_ref == (None if kind is EventKind.EXPIRED else "pi_1")


@pytest.mark.parametrize(
    ("intent", "reference"), [("pi_2", "pi_2"), ({"id": "pi_3", "amount": 5}, "pi_3"), (None, "cs_test_1")]
)
def test_a_payment_is_named_by_its_intent_or_else_its_session(intent: object, reference: str) -> None:
    assert read(stripe_event(payment_intent=intent)).payment_ref == reference


@pytest.mark.parametrize(
    "metadata", [None, {}, {"other": "x"}, *({"lastportion_order": m, "lastportion_tenant": m} for m in NO_IDS)]
)
def test_without_our_mark_there_is_none(metadata: object) -> None:
    event = read(stripe_event(metadata=metadata))
    assert (event.marked_order_id, event.marked_tenant) == (None, None)
    assert event.session_id == "cs_test_1"


@pytest.mark.parametrize(
    ("amount", "currency", "minor"), [(80, "jpy", 80), (8000, "jpy", 8000), (10000, "ugx", 100), (10050, "ugx", None)]
)
def test_amounts_come_in_our_minor_units(amount: int, currency: str, minor: int | None) -> None:
    assert read(stripe_event(amount_total=amount, currency=currency)).amount_minor == minor


@pytest.mark.parametrize("event_type", ["invoice.paid", "charge.captured", "v2.core.account.updated"])
def test_what_is_not_about_a_session_is_foreign(event_type: str) -> None:
    event = read(json.dumps({"id": "evt_9", "type": event_type, "created": "2025-06-15T00:00:00Z"}).encode())
    assert (event.kind, event.dedup_key, event.session_id) == (EventKind.FOREIGN, "evt_9", None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"12",
        b"{}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"id":"evt_1"}',
        b'{"id":1,"type":"t"}',
        b'{"id":"evt_1","type":null}',
        b'{"id":"","type":"t"}',
        b'{"id":"evt_\\u0000","type":"t"}',
        b'{"id":"evt_' + b"1" * 300 + b'","type":"t"}',
        b'{"id":"evt_1","type":"checkout.session.completed"}',
        b'{"id":"evt_1","type":"checkout.session.completed","data":[]}',
        b'{"id":"evt_1","type":"checkout.session.completed","data":{"object":"cs_1"}}',
    ],
)
def test_an_authentic_body_that_is_no_event_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        read(body)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": None},
        {"id": 7},
        {"amount_total": "1250"},
        {"amount_total": 12.5},
        {"amount_total": True},
        {"amount_total": -1},
        {"amount_total": 2**64},
        {"currency": 5},
        {"payment_status": None},
        {"payment_status": ["paid"]},
        {"payment_intent": 5},
        {"payment_intent": {}},
        {"payment_intent": []},
        {"metadata": "text"},
        {"metadata": [1]},
        {"metadata": {"lastportion_order": 5}},
        {"id": "cs_" + "x" * 300},
        {"payment_intent": "pi_" + "x" * 300},
        {"payment_intent": {"id": "pi_" + "x" * 300}},
        {"currency": "g\0p"},
    ],
)
def test_a_session_with_a_wrong_type_is_malformed(wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedBody):
        read(stripe_event(**wrong))


session_fields = st.sampled_from(
    ["id", "amount_total", "currency", "metadata", "payment_intent", "payment_status", "status"]
)


@given(st.dictionaries(session_fields, json_values, max_size=7))
def test_whatever_stands_in_a_session_it_is_read_or_malformed(fields: dict[str, Any]) -> None:
    try:
        event = read(stripe_event(**fields))
    except MalformedBody:
        return
    assert event.session_id
    assert event.amount_minor is None or event.amount_minor >= 0
