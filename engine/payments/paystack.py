"""Paystack's signed events."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any

import orjson

from engine.errors import BadSignature, MalformedBody
from engine.payments.fields import mark_of, text_of
from engine.payments.port import EventKind, ProviderEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

_SETTLES = "charge.success"
"""The one event that settles; Paystack sends none for a failed or abandoned transaction."""


class PaystackEvents:
    """Verifies and reads Paystack's webhooks, which are signed with the account's secret key."""

    def __init__(self, secret_key: str) -> None:
        self._secret_key = secret_key

    def verify(self, body: bytes, header: str | None) -> ProviderEvent:
        """The event in a webhook's raw body.

        ``header`` is ``x-paystack-signature``, the body's HMAC-SHA512 in hex; there is no time stamp to check.
        Raises ``BadSignature`` unless it signs exactly these bytes, and ``MalformedBody`` when the authentic body
        is no event that Paystack would send.
        """
        if not header or not header.isascii() or not self._secret_key.strip():
            raise BadSignature
        expected = hmac.new(self._secret_key.encode(), body, hashlib.sha512).hexdigest()
        if not hmac.compare_digest(expected, header):
            raise BadSignature
        return _event(body)


def _event(body: bytes) -> ProviderEvent:
    try:
        event = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedBody("The event is not JSON.") from error
    if not isinstance(event, dict):
        raise MalformedBody("The event is not a JSON object.")
    event_type = text_of(event, "event")
    data = event.get("data")
    if event_type != _SETTLES:
        digest = hashlib.sha256(body).hexdigest()
        return ProviderEvent(
            EventKind.FOREIGN, event_type, f"{event_type}|{digest}", None, None, None, None, None, body=event
        )
    if not isinstance(data, dict):
        raise MalformedBody("The event carries no transaction.")
    reference, currency, status = (
        text_of(data, "reference"),
        text_of(data, "currency").upper(),
        text_of(data, "status"),
    )
    amount_minor = _amount(data)
    marks = _metadata(data)
    return ProviderEvent(
        kind=EventKind.PAID if status == "success" else EventKind.FOREIGN,
        type=event_type,
        # No event id exists. With all five fields a right event after a mismatched one is not taken for a repeat.
        dedup_key=f"{event_type}|{reference}|{amount_minor}|{currency}|{status}",
        session_id=reference,
        payment_ref=reference,
        amount_minor=amount_minor,
        currency=currency,
        created_at_s=None,
        marked_order_id=mark_of(marks, "lastportion_order"),
        marked_tenant=mark_of(marks, "lastportion_tenant"),
        body=event,
    )


def _metadata(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Metadata as a map, whatever shape Paystack gave it: object, JSON text, "", 0, null or nothing."""
    metadata = data.get("metadata")
    if isinstance(metadata, str):
        try:
            metadata = orjson.loads(metadata)
        except orjson.JSONDecodeError:
            # A help, not a need: the reference alone says which order is meant.
            return {}
    return metadata if isinstance(metadata, dict) else {}


def _amount(data: Mapping[str, Any]) -> int:
    """The amount in subunits, which Paystack sometimes writes as text."""
    value = data.get("amount")
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise MalformedBody("'amount' is not a whole number.")
    return value
