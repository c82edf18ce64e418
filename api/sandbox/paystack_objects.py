"""Paystack's objects as JSON, with the fields of its API reference that a caller may look at."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from persistence.tables.sandbox import SandboxRefund, SandboxSession, StandInRefundStatus, StandInState

INTEGRATION = 100_000
"""The number of the one shop that the stand-in knows."""

DOMAIN = "test"

_STATUS = {
    # What Paystack calls a transaction that nobody has begun to pay, as well as one that was left.
    StandInState.OPEN: "abandoned",
    StandInState.ABANDONED: "abandoned",
    StandInState.PENDING: "pending",
    StandInState.FAILED: "failed",
    StandInState.PAID: "success",
}

_ANSWERS = {
    "abandoned": "The transaction was not completed",
    "pending": "The payment is being processed",
    "failed": "Declined",
    "success": "Successful",
    "reversed": "Reversed",
}

_REFUND_STATUS = {
    StandInRefundStatus.PENDING: "pending",
    StandInRefundStatus.SUCCEEDED: "processed",
    StandInRefundStatus.FAILED: "failed",
}


def transaction_status(session: SandboxSession, refunded: int = 0) -> str:
    """Paystack's ``status`` of a transaction of which so much has gone back; all of it reads ``reversed``."""
    if session.state == StandInState.PAID and refunded >= session.amount_total:
        return "reversed"
    return _STATUS[StandInState(session.state)]


def transaction_object(session: SandboxSession, refunded: int = 0) -> dict[str, Any]:
    """A transaction, as verifying, listing and ``charge.success`` tell of it; ``metadata`` is as it was given."""
    status = transaction_status(session, refunded)
    return {
        "id": session.number,
        "domain": DOMAIN,
        "status": status,
        "reference": session.id,
        "receipt_number": None,
        "amount": session.amount_total,
        "message": None,
        "gateway_response": _ANSWERS[status],
        "paid_at": stamp(session.paid_at_s),
        "created_at": stamp(session.created_s),
        "channel": "card",
        "currency": session.currency.upper(),
        "ip_address": "127.0.0.1",
        "metadata": session.params.get("metadata", ""),
        "log": None,
        "fees": 0 if session.paid_at_s is not None else None,
        "fees_split": None,
        "authorization": {"channel": "card", "reusable": False} if session.paid_at_s is not None else {},
        "customer": _customer(session),
        "plan": None,
        "split": {},
        "order_id": None,
        "requested_amount": session.amount_total,
    }


def refund_object(refund: SandboxRefund, session: SandboxSession) -> dict[str, Any]:
    """A refund in a list or when it is fetched."""
    done = refund.status == StandInRefundStatus.SUCCEEDED
    return {
        "id": refund.number,
        "integration": INTEGRATION,
        "domain": DOMAIN,
        "transaction": session.number,
        "transaction_reference": session.id,
        "transaction_amount": session.amount_total,
        "dispute": None,
        "settlement": None,
        "amount": refund.amount,
        "deducted_amount": refund.amount if done else 0,
        "fully_deducted": done,
        "currency": session.currency.upper(),
        "channel": "card",
        "status": _REFUND_STATUS[StandInRefundStatus(refund.status)],
        "refunded_by": "merchant@shop.example",
        "refunded_at": stamp(refund.due_at_ms // 1000) if done else None,
        "expected_at": stamp(refund.due_at_ms // 1000),
        "customer_note": refund.params.get("customer_note"),
        "merchant_note": refund.params.get("merchant_note"),
        "customer": _customer(session),
        "created_at": stamp(refund.created_s),
        "createdAt": stamp(refund.created_s),
        "updatedAt": stamp(refund.created_s),
    }


def queued_refund(refund: SandboxRefund, session: SandboxSession) -> dict[str, Any]:
    """A refund in the answer of asking for it: queued, whatever becomes of it a moment later."""
    return refund_object(refund, session) | {
        "transaction": transaction_object(session),
        "status": "pending",
        "deducted_amount": 0,
        "fully_deducted": False,
        "refunded_at": None,
    }


def refund_news(refund: SandboxRefund, session: SandboxSession, status: str) -> dict[str, Any]:
    """What a refund's event carries: no id, the amount as text, and a reference only once it has begun."""
    return {
        "status": status,
        "transaction_reference": session.id,
        "refund_reference": None if status == "pending" else refund.ref,
        "amount": str(refund.amount),
        "currency": session.currency.upper(),
        "processor": "instant-transfer",
        "customer": _customer(session),
        "integration": INTEGRATION,
        "domain": DOMAIN,
    }


def stamp(seconds: int | None) -> str | None:
    """A second as Paystack writes it."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _customer(session: SandboxSession) -> dict[str, Any]:
    return {
        "id": session.number,
        "first_name": None,
        "last_name": None,
        "email": session.params["email"],
        "customer_code": f"CUS_{session.number}",
        "phone": None,
        "metadata": None,
        "risk_action": "default",
    }
