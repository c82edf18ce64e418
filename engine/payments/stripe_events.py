"""What Stripe tells us: signed events and session objects, read with suspicion."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import orjson
import stripe

from engine.errors import BadSignature, MalformedBody
from engine.money import from_stripe
from engine.payments.fields import LONGEST_NAME, mark_of, text_of
from engine.payments.port import EventKind, ProviderEvent, Session, SessionState

if TYPE_CHECKING:
    from collections.abc import Mapping

MARK_ORDER = "lastportion_order"
MARK_TENANT = "lastportion_tenant"
MARK_ATTEMPT = "lastportion_attempt"
"""Keys of the metadata that say whose order, and which attempt of it, a session is for."""

_LONGEST_URL = 5000
_PAID = ("paid", "no_payment_required")


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
    created_at_s = _optional_integer(event, "created") if event.get("object") == "event" else None
    if not event_type.startswith("checkout.session."):
        return ProviderEvent(EventKind.FOREIGN, event_type, event_id, None, None, None, None, created_at_s, body=event)
    data = event.get("data")
    found = data.get("object") if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise MalformedBody("The event carries no session.")
    marks = _metadata(found)
    amount_minor, currency = _money(found)
    kind = _kind(event_type, found)
    return ProviderEvent(
        kind=kind,
        type=event_type,
        dedup_key=event_id,
        session_id=text_of(found, "id"),
        payment_ref=_payment_ref(found) if kind is not EventKind.EXPIRED else None,
        amount_minor=amount_minor,
        currency=currency,
        created_at_s=created_at_s,
        marked_order_id=mark_of(marks, MARK_ORDER),
        marked_tenant=mark_of(marks, MARK_TENANT),
        marked_attempt=_attempt(marks.get(MARK_ATTEMPT)),
        body=event,
    )


def _attempt(mark: str | None) -> int | None:
    """The attempt's number; a mark that somebody else wrote names none."""
    return int(mark) if mark is not None and mark.isascii() and mark.isdigit() and len(mark) < 10 else None


def _kind(event_type: str, session: Mapping[str, Any]) -> EventKind:
    match event_type:
        case "checkout.session.completed" | "checkout.session.async_payment_succeeded":
            return EventKind.PAID if text_of(session, "payment_status") in _PAID else EventKind.UNPAID
        case "checkout.session.expired" | "checkout.session.async_payment_failed":
            # A failed delayed payment leaves a session that can't be paid any more, as expiry does.
            return EventKind.EXPIRED
        case _:
            return EventKind.FOREIGN


def session_from(found: Mapping[str, Any]) -> Session:
    """A session object as the port's type.

    Raises ``MalformedBody`` when a field is missing or of a wrong type.
    """
    status, payment_status = text_of(found, "status"), text_of(found, "payment_status")
    match status:
        case "open":
            state = SessionState.OPEN
        case "expired":
            state = SessionState.EXPIRED
        case "complete":
            state = SessionState.PAID if payment_status in _PAID else SessionState.UNPAID
        case _:
            raise MalformedBody(f"The session's status is {status[:32]!r}.")
    amount_minor, currency = _money(found)
    if amount_minor is None or currency is None:
        raise MalformedBody("The session has no amount.")
    return Session(
        id=text_of(found, "id"),
        state=state,
        url=_optional_text(found, "url", _LONGEST_URL),
        expires_at_s=_optional_integer(found, "expires_at"),
        amount_minor=amount_minor,
        currency=currency,
        payment_ref=_payment_ref(found) if status == "complete" else None,
    )


def _money(session: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Amount in our minor units (None: not a whole number of them, which equals no order's) and currency."""
    amount, currency = _optional_integer(session, "amount_total"), _optional_text(session, "currency")
    if amount is None or currency is None:
        return None, currency.upper() if currency else None
    return from_stripe(amount, currency), currency.upper()


def _payment_ref(session: Mapping[str, Any]) -> str:
    """The PaymentIntent's id, plain or expanded; a session that needed no payment stands for itself."""
    intent = session.get("payment_intent")
    if isinstance(intent, dict):
        return text_of(intent, "id")
    return _optional_text(session, "payment_intent") or text_of(session, "id")


def _metadata(session: Mapping[str, Any]) -> Mapping[str, str]:
    metadata = session.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise MalformedBody("The session's metadata is not a map of texts.")
    return metadata


def _optional_text(found: Mapping[str, Any], key: str, longest: int = LONGEST_NAME) -> str | None:
    return None if found.get(key) is None else text_of(found, key, longest)


def _optional_integer(found: Mapping[str, Any], key: str) -> int | None:
    value = found.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise MalformedBody(f"{key!r} is not a whole number.")
    return value
