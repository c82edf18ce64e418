"""Bodies as they come: what is not JSON is malformed, what does not fit is invalid, field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.body import parsed
from api.schemas.base import Body, Customer, Identifier, InstantMs, PoolId
from api.schemas.pools import PoolBody
from api.schemas.reservations import BatchBody, CancelBody, CompleteBody, ExtendBody, ReservationBody
from engine.domain import Claim, LatePayment, PoolStatus
from engine.errors import Invalid, MalformedBody

CLAIM = {"pool": "course", "quantity": 1}


def _reservation(**changes: Any) -> bytes:
    body = {"claims": [CLAIM]} | changes
    return json.dumps({name: value for name, value in body.items() if value is not ...}).encode()


MALFORMED = {
    "empty": b"",
    "blank": b"  ",
    "truncated": b'{"claims": [{"pool": "a"',
    "trailing": b'{"claims": []} x',
    "two values": b"{}{}",
    "single quotes": b"{'claims': []}",
    "trailing comma": b'{"claims": [],}',
    "comment": b'{"claims": []} // now',
    "bad UTF-8": b'{"id": "\xff"}',
    "UTF-16": '{"claims": []}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"claims": []}',
    "raw NUL": b'{"id": "\x00"}',
    "raw newline": b'{"customer": "a\nb"}',
    "NaN": b'{"ttl_seconds": NaN}',
    "Infinity": b'{"ttl_seconds": -Infinity}',
    "field twice": b'{"ttl_seconds": 1, "ttl_seconds": 2}',
    "field twice deep down": b'{"claims": [{"pool": "a", "quantity": 1, "quantity": 2}]}',
    "field twice, once escaped": b'{"ttl_seconds": 1, "ttl\\u005fseconds": 2}',
    "half a surrogate pair": b'{"customer": "\\ud83d"}',
    "deep arrays": b'{"metadata": ' + b"[" * 100_000,
    "deep closed arrays": b'{"metadata": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_what_is_not_json_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        parsed(ReservationBody, body)


INVALID: dict[str, tuple[bytes, str]] = {
    "not an object": (b"[]", "body"),
    "null": (b"null", "body"),
    "no claims": (b"{}", "claims"),
    "empty claims": (_reservation(claims=[]), "claims"),
    "33 claims": (_reservation(claims=[CLAIM] * 33), "claims"),
    "claims no list": (_reservation(claims=CLAIM), "claims"),
    "claim no object": (_reservation(claims=["course"]), "claims.0"),
    "unknown field": (_reservation(price=1), "price"),
    "unknown field in a claim": (_reservation(claims=[CLAIM | {"rev": 1}]), "claims.0.rev"),
    "no pool": (_reservation(claims=[{"quantity": 1}]), "claims.0.pool"),
    "no quantity": (_reservation(claims=[{"pool": "a"}]), "claims.0.quantity"),
    "ttl 0": (_reservation(ttl_seconds=0), "ttl_seconds"),
    "ttl negative": (_reservation(ttl_seconds=-1), "ttl_seconds"),
    "ttl over 7 days": (_reservation(ttl_seconds=604_801), "ttl_seconds"),
    "ttl fractional": (_reservation(ttl_seconds=1.5), "ttl_seconds"),
    "ttl a string": (_reservation(ttl_seconds="60"), "ttl_seconds"),
    "ttl a boolean": (_reservation(ttl_seconds=True), "ttl_seconds"),
    "metadata of numbers": (_reservation(metadata={"a": 1}), "metadata.a"),
    "metadata nested": (_reservation(metadata={"a": {"b": "c"}}), "metadata.a"),
    "metadata a list": (_reservation(metadata=[]), "metadata"),
    "metadata too large": (_reservation(metadata={"a": "x" * 1024}), "metadata"),
    "metadata too large in UTF-8": (_reservation(metadata={"a": "é" * 512}), "metadata"),
    "metadata with NUL": (_reservation(metadata={"a": "\0"}), "metadata"),
    "metadata without a name": (_reservation(metadata={"": "a"}), "metadata..[key]"),
}
for name, quantity in {
    "zero": 0,
    "negative": -1,
    "fraction": 1.5,
    "whole as a fraction": 1.0,
    "boolean": True,
    "string": "1",
    "null": None,
    "list": [1],
    "over a million": 1_000_001,
    "huge": 10**30,
}.items():
    INVALID[f"quantity {name}"] = (_reservation(claims=[{"pool": "a", "quantity": quantity}]), "claims.0.quantity")
INVALID["quantity in exponents"] = (b'{"claims": [{"pool": "a", "quantity": 1e2}]}', "claims.0.quantity")
for name, text in {
    "empty": "",
    "129 long": "a" * 129,
    "NUL": "a\0b",
    "braces": "{3}",
    "colon": "a:b",
    "bar": "a|b",
    "space": "a b",
    "newline at the end": "a\n",
    "comma": "a,b",
    "non-ASCII letter": "é",
    "full-width digit": "\uff11",
    "star": "*",
}.items():
    INVALID[f"id {name}"] = (_reservation(id=text), "id")
    INVALID[f"pool {name}"] = (_reservation(claims=[{"pool": text, "quantity": 1}]), "claims.0.pool")
INVALID["id with a slash"] = (_reservation(id="a/b"), "id")
INVALID["id a number"] = (_reservation(id=7), "id")
for name, text in {
    "empty": "",
    "blank": "   ",
    "257 long": "x" * 257,
    "NUL": "a\0",
    "escape": "\x1b[31m",
    "newline": "a\nb",
    "delete": "\x7f",
    "control of ISO 6429": "a\x85b",
    "line separator": "a\u2028b",
    "unassigned": "a\U000e0fff",
}.items():
    INVALID[f"customer {name}"] = (_reservation(customer=text), "customer")
INVALID["customer a number"] = (_reservation(customer=12), "customer")


@pytest.mark.parametrize(("body", "field"), INVALID.values(), ids=INVALID)
def test_what_does_not_fit_is_invalid_and_named(body: bytes, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        parsed(ReservationBody, body)
    assert list(caught.value.details["fields"]) == [field]


def test_a_number_of_any_length_is_refused_without_being_computed() -> None:
    with pytest.raises((Invalid, MalformedBody)):
        parsed(ReservationBody, b'{"claims": [{"pool": "a", "quantity": 1' + b"0" * 100_000 + b"}]}")


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        parsed(ReservationBody, _reservation(id="a b", customer="", ttl_seconds=0))
    assert set(caught.value.details["fields"]) == {"id", "customer", "ttl_seconds"}


@pytest.mark.parametrize("text", ["a", "A1._@+-", "a" * 128, "-", "0"])
def test_ids_of_the_alphabet_are_taken(text: str) -> None:
    assert parsed(ReservationBody, _reservation(id=text)).id == text


@pytest.mark.parametrize(
    "text", ["Ada", " Ada ", "José", "李小龍", "علی‌رضا", "👩‍👩‍👧", "a|b,c%d", '"quoted"', "x" * 256, "é" * 256]
)
def test_any_printable_customer_is_taken_as_it_is(text: str) -> None:
    assert parsed(ReservationBody, _reservation(customer=text)).customer == text


def test_a_request_carries_what_was_asked() -> None:
    body = parsed(
        ReservationBody, _reservation(claims=[CLAIM, {"pool": "codes/S/2026-27", "quantity": 1_000_000}], customer="c")
    )
    request = body.request("t", "i", default_ttl_seconds=60)
    assert request.claims == (Claim("course", 1), Claim("codes/S/2026-27", 1_000_000))
    assert (request.tenant, request.id, request.customer, request.ttl_ms) == ("t", "i", "c", 60_000)
    assert parsed(ReservationBody, _reservation(ttl_seconds=1)).request("t", "i", 60).ttl_ms == 1_000


def test_metadata_of_a_kilobyte_is_taken() -> None:
    assert parsed(ReservationBody, _reservation(metadata={"a": "x" * 1023})).metadata == {"a": "x" * 1023}


def test_a_pool_takes_its_defaults() -> None:
    body = parsed(PoolBody, b'{"cap": null}')
    definition = body.definition("t", "p")
    assert (definition.cap, definition.status, definition.late_payment) == (None, PoolStatus.ACTIVE, LatePayment.HONOUR)
    assert (definition.opens_at_ms, definition.closes_at_ms, definition.per_customer) == (None, None, None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cap": ...}, "cap"),
        ({"cap": -1}, "cap"),
        ({"cap": 10**12 + 1}, "cap"),
        ({"cap": "5"}, "cap"),
        ({"cap": 5.0}, "cap"),
        ({"cap": False}, "cap"),
        ({"status": "open"}, "status"),
        ({"status": "Active"}, "status"),
        ({"per_customer": 0}, "per_customer"),
        ({"per_customer": 1001}, "per_customer"),
        ({"late_payment": "keep"}, "late_payment"),
        ({"opens_at": "2026-11-30T22:00:00"}, "opens_at"),
        ({"opens_at": 1_796_076_000}, "opens_at"),
        ({"opens_at": "tomorrow"}, "opens_at"),
        ({"opens_at": "2026-11-30T22:00:00Z", "closes_at": "2026-11-30T22:00:00Z"}, "body"),
        ({"rev": 3}, "rev"),
    ],
)
def test_a_pool_that_can_not_be_is_refused(changes: dict[str, Any], field: str) -> None:
    body = {"cap": 1} | changes
    with pytest.raises(Invalid) as caught:
        parsed(PoolBody, json.dumps({name: value for name, value in body.items() if value is not ...}).encode())
    assert list(caught.value.details["fields"]) == [field]


def test_a_pool_takes_the_largest_and_smallest_cap() -> None:
    assert parsed(PoolBody, b'{"cap": 0}').cap == 0
    assert parsed(PoolBody, b'{"cap": 1000000000000}').cap == 10**12


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (CancelBody, b"{}"),
        (CancelBody, b'{"restock": 1}'),
        (CancelBody, b'{"restock": "true"}'),
        (CompleteBody, b'{"payment_ref": ""}'),
        (CompleteBody, b'{"payment_ref": 1}'),
        (ExtendBody, b"{}"),
        (BatchBody, b'{"reservations": {}}'),
        (BatchBody, b'{"reservations": [' + b"1," * 500 + b"1]}"),
    ],
)
def test_the_other_bodies_are_as_strict(model: type[Body], body: bytes) -> None:
    with pytest.raises(Invalid):
        parsed(model, body)


def test_the_kinds_of_text_are_exported_for_other_bodies() -> None:
    class Other(Body):
        id: Identifier
        pool: PoolId
        customer: Customer
        at: InstantMs

    other = parsed(Other, b'{"id": "a", "pool": "a/b", "customer": "c", "at": "1970-01-01T00:00:01Z"}')
    assert (other.id, other.pool, other.customer, other.at) == ("a", "a/b", "c", 1000)
