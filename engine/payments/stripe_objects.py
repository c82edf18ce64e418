"""Stripe's objects (sessions, refunds, charges, disputes) as the port's types.

Every function raises ``MalformedBody`` when a field is missing or of a wrong type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.errors import MalformedBody
from engine.money import from_stripe
from engine.payments.fields import (
    LONGEST_URL,
    MARK_ATTEMPT,
    MARK_ORDER,
    MARK_REFUND,
    MARK_ROUND,
    MARK_TENANT,
    integer_of,
    mark_of,
    number_mark_of,
    optional_integer,
    optional_text,
    text_of,
)
from engine.payments.port import Dispute, ProviderRefund, ProviderRefundStatus, RefundTotal, Session, SessionState

if TYPE_CHECKING:
    from collections.abc import Mapping

PAID = ("paid", "no_payment_required")
"""Payment statuses of a session that owes nothing any more."""

_REFUND_STATUS = {
    "pending": ProviderRefundStatus.PENDING,
    "requires_action": ProviderRefundStatus.PENDING,
    "succeeded": ProviderRefundStatus.SUCCEEDED,
    "failed": ProviderRefundStatus.FAILED,
    "canceled": ProviderRefundStatus.FAILED,
}
_ENDS_A_DISPUTE = ("won", "lost", "warning_closed", "prevented")


def session_from(found: Mapping[str, Any]) -> Session:
    """A checkout session."""
    status, payment_status = text_of(found, "status"), text_of(found, "payment_status")
    match status:
        case "open":
            state = SessionState.OPEN
        case "expired":
            state = SessionState.EXPIRED
        case "complete":
            state = SessionState.PAID if payment_status in PAID else SessionState.UNPAID
        case _:
            raise MalformedBody(f"The session's status is {status[:32]!r}.")
    amount_minor, currency = session_money(found)
    if amount_minor is None or currency is None:
        raise MalformedBody("The session has no amount.")
    marks = metadata_of(found)
    return Session(
        id=text_of(found, "id"),
        state=state,
        url=optional_text(found, "url", LONGEST_URL),
        expires_at_s=optional_integer(found, "expires_at"),
        amount_minor=amount_minor,
        currency=currency,
        payment_ref=session_payment_ref(found) if status == "complete" else None,
        marked_order_id=mark_of(marks, MARK_ORDER),
        marked_tenant=mark_of(marks, MARK_TENANT),
        marked_attempt=number_mark_of(marks, MARK_ATTEMPT),
    )


def session_money(session: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Amount in our minor units (None: not a whole number of them, which equals no order's) and currency."""
    amount, currency = optional_integer(session, "amount_total"), optional_text(session, "currency")
    if amount is None or currency is None:
        return None, currency.upper() if currency else None
    return from_stripe(amount, currency), currency.upper()


def session_payment_ref(session: Mapping[str, Any]) -> str:
    """The PaymentIntent's id; a session that needed no payment stands for itself."""
    return intent_of(session) or text_of(session, "id")


def intent_of(found: Mapping[str, Any]) -> str | None:
    """The id of an object's PaymentIntent, plain or expanded; None where it has none."""
    intent = found.get("payment_intent")
    return text_of(intent, "id") if isinstance(intent, dict) else optional_text(found, "payment_intent")


def refund_from(found: Mapping[str, Any], payment_ref: str) -> ProviderRefund:
    """A refund of the payment, with our mark where its metadata has one."""
    status = text_of(found, "status")
    if status not in _REFUND_STATUS:
        raise MalformedBody(f"The refund's status is {status[:32]!r}.")
    amount_minor, currency = _money(found, "amount")
    marks = metadata_of(found)
    return ProviderRefund(
        ref=text_of(found, "id"),
        payment_ref=payment_ref,
        amount_minor=amount_minor,
        currency=currency,
        status=_REFUND_STATUS[status],
        reason=optional_text(found, "failure_reason"),
        marked_refund_id=mark_of(marks, MARK_REFUND),
        marked_round=number_mark_of(marks, MARK_ROUND),
    )


def refund_total_from(charge: Mapping[str, Any], payment_ref: str) -> RefundTotal:
    """How much of a charge has gone back in all."""
    total_minor, currency = _money(charge, "amount_refunded")
    return RefundTotal(payment_ref, total_minor, currency)


def dispute_from(found: Mapping[str, Any], payment_ref: str, *, closed: bool) -> Dispute:
    """A dispute; ``closed`` says that the event is about its end, which its status says as well."""
    amount_minor, currency = _money(found, "amount")
    status = text_of(found, "status")
    return Dispute(
        ref=text_of(found, "id"),
        payment_ref=payment_ref,
        amount_minor=amount_minor,
        currency=currency,
        status=status,
        reason=optional_text(found, "reason"),
        is_closed=closed or status in _ENDS_A_DISPUTE,
    )


def metadata_of(found: Mapping[str, Any]) -> Mapping[str, str]:
    """An object's metadata; empty where it has none."""
    metadata = found.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise MalformedBody("The metadata is not a map of texts.")
    return metadata


def _money(found: Mapping[str, Any], key: str) -> tuple[int, str]:
    currency = text_of(found, "currency")
    amount_minor = from_stripe(integer_of(found, key), currency)
    if amount_minor is None:
        # Stripe takes UGX and ISK in whole hundreds only, in refunds as in charges.
        raise MalformedBody(f"{key!r} is no whole number of {currency[:3].upper()}.")
    return amount_minor, currency.upper()
