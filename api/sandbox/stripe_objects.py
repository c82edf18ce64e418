"""Stripe's objects as JSON, with the fields of its API reference that a caller may look at."""

from __future__ import annotations

import secrets
from typing import Any

import stripe

from persistence.tables.sandbox import (
    SandboxDispute,
    SandboxRefund,
    SandboxSession,
    StandInRefundStatus,
    StandInState,
)

COMPLETE = (StandInState.PAID, StandInState.PENDING, StandInState.FAILED)


def new_id(kind: str) -> str:
    """A fresh identifier such as ``evt_…``; long enough that nobody guesses another's."""
    return f"{kind}_{secrets.token_hex(20)}"


def status_of(session: SandboxSession) -> str:
    """Stripe's ``status``: open, complete or expired."""
    return "complete" if session.state in COMPLETE else session.state


def payment_status_of(session: SandboxSession) -> str:
    """Stripe's ``payment_status``: paid, unpaid or no_payment_required."""
    if session.amount_total == 0:
        return "no_payment_required"
    return "paid" if session.state == StandInState.PAID else "unpaid"


def session_object(session: SandboxSession, base_url: str) -> dict[str, Any]:
    """A ``checkout.session``; its ``url`` is there while it is open, as at Stripe."""
    params = session.params
    email = params.get("customer_email")
    return {
        "id": session.id,
        "object": "checkout.session",
        "amount_subtotal": session.amount_total,
        "amount_total": session.amount_total,
        "cancel_url": params.get("cancel_url"),
        "client_reference_id": params.get("client_reference_id"),
        "created": session.created_s,
        "currency": session.currency,
        "customer": None,
        "customer_details": {"email": email} if email else None,
        "customer_email": email,
        "expires_at": session.expires_at_s,
        "livemode": False,
        "metadata": params.get("metadata") or {},
        "mode": "payment",
        "payment_intent": session.payment_intent,
        "payment_method_types": ["card"],
        "payment_status": payment_status_of(session),
        "status": status_of(session),
        "success_url": params["success_url"],
        "total_details": {"amount_discount": 0, "amount_shipping": 0, "amount_tax": 0},
        "ui_mode": "hosted",
        "url": pay_url(session, base_url) if session.state == StandInState.OPEN else None,
    }


def payment_intent_object(session: SandboxSession) -> dict[str, Any]:
    """The ``payment_intent`` that a completed session made."""
    data = session.params.get("payment_intent_data") or {}
    states = {StandInState.PAID: "succeeded", StandInState.PENDING: "processing"}
    status = states.get(StandInState(session.state), "requires_payment_method")
    return {
        "id": session.payment_intent,
        "object": "payment_intent",
        "amount": session.amount_total,
        "amount_received": session.amount_total if status == "succeeded" else 0,
        "currency": session.currency,
        "latest_charge": session.charge if status != "requires_payment_method" else None,
        "livemode": False,
        "metadata": data.get("metadata") or {},
        "status": status,
    }


def charge_object(session: SandboxSession, refunded: int) -> dict[str, Any]:
    """The ``charge`` of a paid session, of which ``refunded`` has gone back in all."""
    data = session.params.get("payment_intent_data") or {}
    return {
        "id": session.charge,
        "object": "charge",
        "amount": session.amount_total,
        "amount_captured": session.amount_total,
        "amount_refunded": refunded,
        "captured": True,
        "created": session.paid_at_s,
        "currency": session.currency,
        "livemode": False,
        # Stripe copies the PaymentIntent's metadata when it makes the charge.
        "metadata": data.get("metadata") or {},
        "paid": True,
        "payment_intent": session.payment_intent,
        "refunded": refunded >= session.amount_total,
        "status": "succeeded",
    }


def refund_object(refund: SandboxRefund, session: SandboxSession) -> dict[str, Any]:
    """A ``refund`` as it is now."""
    failed = refund.status == StandInRefundStatus.FAILED
    return {
        "id": refund.ref,
        "object": "refund",
        "amount": refund.amount,
        "charge": session.charge,
        "created": refund.created_s,
        "currency": session.currency,
        "metadata": refund.params.get("metadata") or {},
        "payment_intent": session.payment_intent,
        "reason": refund.params.get("reason"),
        "receipt_number": None,
        "status": refund.status,
        **({"failure_reason": "expired_or_canceled_card"} if failed else {}),
    }


def dispute_object(dispute: SandboxDispute, session: SandboxSession) -> dict[str, Any]:
    """A ``dispute`` of the whole of a charge."""
    return {
        "id": dispute.id,
        "object": "dispute",
        "amount": session.amount_total,
        "charge": session.charge,
        "created": dispute.created_s,
        "currency": session.currency,
        "is_charge_refundable": False,
        "livemode": False,
        "metadata": {},
        "payment_intent": session.payment_intent,
        "reason": "fraudulent",
        "status": dispute.status,
    }


def event_object(
    event_id: str, event_type: str, created_s: int, about: dict[str, Any], idempotency_key: str | None
) -> dict[str, Any]:
    """An ``event`` about an object as it is now."""
    return {
        "id": event_id,
        "object": "event",
        "api_version": stripe.api_version,
        "created": created_s,
        "data": {"object": about},
        "livemode": False,
        "pending_webhooks": 1,
        "request": {"id": None, "idempotency_key": idempotency_key},
        "type": event_type,
    }


def pay_url(session: SandboxSession, base_url: str) -> str:
    """Where a person pays."""
    return f"{base_url}/sandbox/pay/{session.id}"
