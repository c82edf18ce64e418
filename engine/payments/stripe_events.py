"""What Stripe tells us: signed events, verified and read with suspicion."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import orjson
import stripe

from engine.errors import BadSignature, MalformedBody
from engine.payments.fields import (
    MARK_ATTEMPT,
    MARK_ORDER,
    MARK_TENANT,
    mark_of,
    number_mark_of,
    optional_integer,
    text_of,
)
from engine.payments.port import EventKind, ProviderEvent
from engine.payments.stripe_objects import (
    PAID,
    dispute_from,
    intent_of,
    metadata_of,
    refund_from,
    refund_total_from,
    session_money,
    session_payment_ref,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_ABOUT_REFUNDS = ("refund.created", "refund.updated", "refund.failed", "charge.refund.updated")
"""The last one is the older name of ``refund.updated`` and is still sent to endpoints that ask for it."""
_REFUND_TOTAL = "charge.refunded"
_DISPUTE_CLOSED = "charge.dispute.closed"
_ABOUT_DISPUTES = (
    "charge.dispute.created",
    "charge.dispute.updated",
    "charge.dispute.funds_withdrawn",
    "charge.dispute.funds_reinstated",
    _DISPUTE_CLOSED,
)


class StripeEvents:
    """Verifies and reads Stripe's webhooks; a stamp may be ``tolerance_seconds`` off, either way."""

    def __init__(self, secret: str, *, tolerance_seconds: int = 300) -> None:
        self._secret = secret
        self._tolerance_s = tolerance_seconds

    def verify(self, body: bytes, header: str | None, now_s: float) -> ProviderEvent:
        """The event in a webhook's raw body, at ``now_s`` seconds of the receiver's clock.

        Raises ``BadSignature`` unless the header signs exactly these bytes at about this time, and
        ``MalformedBody`` when the authentic body is no event that Stripe would send.
        """
        # The library compares as text, and compare_digest raises TypeError on text beyond ASCII.
        if not header or not header.isascii() or not self._secret.strip():
            raise BadSignature
        try:
            stripe.WebhookSignature.verify_header(body, header, self._secret)
        except (stripe.SignatureVerificationError, UnicodeDecodeError) as error:
            raise BadSignature from error
        # The library lets stamps from the future pass, and one far ahead would stay good until then.
        # Stamps are whole seconds, hence the floor: 300 s old is not 301 s old because of a fraction.
        if abs(math.floor(now_s) - _stamp(header)) > self._tolerance_s:
            raise BadSignature("The signature's time stamp is too far from now.")
        return _event(body)


def _stamp(header: str) -> int:
    """The stamp that the library signed with: the first ``t`` of a header that it accepted."""
    return int(next(item.split("=", 2)[1] for item in header.split(",") if item.startswith("t=")))


def _event(body: bytes) -> ProviderEvent:
    try:
        event = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedBody("The event is not JSON.") from error
    if not isinstance(event, dict):
        raise MalformedBody("The event is not a JSON object.")
    event_id, event_type = text_of(event, "id"), text_of(event, "type")
    created_at_s = optional_integer(event, "created") if event.get("object") == "event" else None
    about: dict[str, Any] = {}
    if event_type.startswith("checkout.session."):
        about = _about_a_session(event_type, _object(event))
    elif event_type in _ABOUT_REFUNDS or event_type == _REFUND_TOTAL or event_type in _ABOUT_DISPUTES:
        about = _about_money_back(event_type, _object(event))
    nothing = {"session_id": None, "payment_ref": None, "amount_minor": None, "currency": None}
    return ProviderEvent(
        **({"kind": EventKind.FOREIGN} | nothing | about),
        type=event_type,
        dedup_key=event_id,
        created_at_s=created_at_s,
        body=event,
    )


def _object(event: Mapping[str, Any]) -> Mapping[str, Any]:
    data = event.get("data")
    found = data.get("object") if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise MalformedBody("The event carries no object.")
    return found


def _about_a_session(event_type: str, session: Mapping[str, Any]) -> dict[str, Any]:
    amount_minor, currency = session_money(session)
    kind = _kind(event_type, session)
    return {
        "kind": kind,
        "session_id": text_of(session, "id"),
        "payment_ref": session_payment_ref(session) if kind is not EventKind.EXPIRED else None,
        "amount_minor": amount_minor,
        "currency": currency,
        **_marks(session),
    }


def _kind(event_type: str, session: Mapping[str, Any]) -> EventKind:
    match event_type:
        case "checkout.session.completed" | "checkout.session.async_payment_succeeded":
            return EventKind.PAID if text_of(session, "payment_status") in PAID else EventKind.UNPAID
        case "checkout.session.expired" | "checkout.session.async_payment_failed":
            # A failed delayed payment leaves a session that can't be paid any more, as expiry does.
            return EventKind.EXPIRED
        case _:
            return EventKind.FOREIGN


def _about_money_back(event_type: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """A refund, a charge's refunded total or a dispute; FOREIGN without a PaymentIntent, as no session made it."""
    payment_ref = intent_of(found)
    if payment_ref is None:
        return {}
    about: dict[str, Any] = {"kind": EventKind.REFUND, "payment_ref": payment_ref, **_marks(found)}
    if event_type == _REFUND_TOTAL:
        total = refund_total_from(found, payment_ref)
        return about | {"refund_total": total, "amount_minor": total.total_minor, "currency": total.currency}
    if event_type in _ABOUT_DISPUTES:
        dispute = dispute_from(found, payment_ref, closed=event_type == _DISPUTE_CLOSED)
        about |= {"kind": EventKind.DISPUTE, "dispute": dispute}
        return about | {"amount_minor": dispute.amount_minor, "currency": dispute.currency}
    refund = refund_from(found, payment_ref)
    return about | {"refund": refund, "amount_minor": refund.amount_minor, "currency": refund.currency}


def _marks(found: Mapping[str, Any]) -> dict[str, Any]:
    marks = metadata_of(found)
    return {
        "marked_order_id": mark_of(marks, MARK_ORDER),
        "marked_tenant": mark_of(marks, MARK_TENANT),
        "marked_attempt": number_mark_of(marks, MARK_ATTEMPT),
    }
