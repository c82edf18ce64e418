"""What Paystack tells us: signed events, verified and read with suspicion.

How events without an id are told apart is argued in ``docs/decisions/0060-what-a-paystack-error-means.md``.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any

import orjson

from engine.errors import BadSignature, MalformedBody
from engine.payments.fields import mapping_of, text_of
from engine.payments.paystack_objects import (
    REFUND_STATUS,
    SUCCESS,
    currency_of,
    dispute_from,
    marks_of,
    money_of,
    refund_in_event,
    word_of,
)
from engine.payments.port import EventKind, ProviderEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

_SETTLES = "charge.success"
"""The one event that settles; Paystack sends none for a failed or abandoned transaction."""

_ABOUT_REFUNDS = tuple(f"refund.{status}" for status in REFUND_STATUS)
_DISPUTE_CLOSED = "charge.dispute.resolve"
_ABOUT_DISPUTES = ("charge.dispute.create", "charge.dispute.remind", _DISPUTE_CLOSED)


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
    event_type = text_of(event, "event", 100)
    if event_type == _SETTLES:
        about = _about_a_charge(event_type, mapping_of(event, "data"))
    elif event_type in _ABOUT_REFUNDS:
        about = _about_a_refund(event_type, mapping_of(event, "data"))
    elif event_type in _ABOUT_DISPUTES:
        about = _about_a_dispute(event_type, mapping_of(event, "data"))
    else:
        about = {}
    nothing = {
        "kind": EventKind.FOREIGN,
        "dedup_key": f"{event_type}|{hashlib.sha256(body).hexdigest()}",
        "session_id": None,
        "payment_ref": None,
        "amount_minor": None,
        "currency": None,
    }
    return ProviderEvent(**(nothing | about), type=event_type, created_at_s=None, body=event)


def _about_a_charge(event_type: str, data: Mapping[str, Any]) -> dict[str, Any]:
    reference, currency, status = text_of(data, "reference"), currency_of(data), word_of(data, "status")
    amount_minor = money_of(data)
    return {
        "kind": EventKind.PAID if status == SUCCESS else EventKind.FOREIGN,
        # No event id exists. With all five fields a right event after a mismatched one is not taken for a repeat.
        "dedup_key": _key(event_type, reference, amount_minor, currency, status),
        "session_id": reference,
        "payment_ref": reference,
        "amount_minor": amount_minor,
        "currency": currency,
        **marks_of(data),
    }


def _about_a_refund(event_type: str, data: Mapping[str, Any]) -> dict[str, Any]:
    refund = refund_in_event(data)
    which = refund.alias or refund.ref or ""
    return {
        "kind": EventKind.REFUND,
        "dedup_key": _key(
            event_type, refund.payment_ref, refund.amount_minor, refund.currency, word_of(data, "status"), which
        ),
        "payment_ref": refund.payment_ref,
        "amount_minor": refund.amount_minor,
        "currency": refund.currency,
        "refund": refund,
    }


def _about_a_dispute(event_type: str, data: Mapping[str, Any]) -> dict[str, Any]:
    dispute = dispute_from(data, closed=event_type == _DISPUTE_CLOSED)
    if dispute is None:
        return {}
    return {
        "kind": EventKind.DISPUTE,
        "dedup_key": _key(
            event_type, dispute.payment_ref, dispute.amount_minor, dispute.currency, dispute.status, dispute.ref
        ),
        "payment_ref": dispute.payment_ref,
        "amount_minor": dispute.amount_minor,
        "currency": dispute.currency,
        "dispute": dispute,
    }


def _key(*parts: object) -> str:
    return "|".join(str(part) for part in parts)
