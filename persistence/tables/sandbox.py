"""Tables of the stand-in payment providers; empty in production."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from engine.domain import Provider
from persistence.base import Base
from persistence.tables.columns import Counter, Key, Milliseconds, String, Zero, not_negative, one_of


class StandInState(StrEnum):
    """Where a stand-in session or transaction is. The providers' status words are derived from it.

    Stripe: ``open`` → ``paid``, ``pending`` or ``expired``; ``pending`` (a delayed method) → ``paid`` or ``failed``.
    Paystack ends nothing but by payment: ``open``, ``abandoned`` (the buyer walked away) and ``failed`` can be paid.
    """

    OPEN = "open"
    PAID = "paid"
    PENDING = "pending"
    FAILED = "failed"
    EXPIRED = "expired"
    ABANDONED = "abandoned"


class StandInRefundStatus(StrEnum):
    """How far a stand-in refund is; either of the last two may follow ``pending``, and ``failed`` both."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class StandInDisputeStatus(StrEnum):
    """How a stand-in dispute stands, in Stripe's words."""

    NEEDS_RESPONSE = "needs_response"
    WON = "won"
    LOST = "lost"


STAND_INS = (Provider.STRIPE, Provider.PAYSTACK)
"""The providers that there is a stand-in for."""


class FaultTarget(StrEnum):
    """Whose calls a fault strikes."""

    STRIPE = "stripe"
    PAYSTACK = "paystack"
    WEBHOOKS = "webhooks"


class FaultKind(StrEnum):
    """What goes wrong; ``docs/decisions/0021-the-sandbox.md`` says what each does to calls and to webhooks."""

    ERROR = "error"
    TIMEOUT_AFTER_SUCCESS = "timeout_after_success"
    DUPLICATE = "duplicate"
    DELAY = "delay"
    REORDER = "reorder"
    DROP = "drop"
    FORGET_KEYS = "forget_keys"


class SandboxClock(Base):
    """One row: how far the test clock is ahead of the machine's, in ms."""

    __tablename__ = "sandbox_clock"
    __table_args__ = (CheckConstraint("id = 1", name="single"), not_negative("offset_ms"))

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    offset_ms: Mapped[Zero]


class SandboxSession(Base):
    """A checkout session of the stand-in Stripe, or a transaction of the stand-in Paystack, whose ``id`` is its
    reference. Amounts are in the provider's unit, times in seconds of the test clock.
    """

    __tablename__ = "sandbox_sessions"
    __table_args__ = (
        one_of("state", StandInState),
        one_of("provider", STAND_INS),
        not_negative("amount_total", "declines"),
        Index("ix_sandbox_sessions_due", "expires_at_s", postgresql_where=text("state = 'open'")),
    )

    id: Mapped[Key]
    number: Mapped[Counter] = mapped_column(Identity(), unique=True)
    """The order in which they were made, and Paystack's own id of a transaction."""
    provider: Mapped[String] = mapped_column(server_default=text("'stripe'"))
    state: Mapped[String]
    amount_total: Mapped[Counter]
    currency: Mapped[String]
    created_s: Mapped[Counter]
    expires_at_s: Mapped[Counter | None]
    """Null at Paystack, which knows no end."""
    paid_at_s: Mapped[Counter | None]
    payment_intent: Mapped[String | None] = mapped_column(unique=True)
    charge: Mapped[String | None] = mapped_column(unique=True)
    declines: Mapped[Zero]
    params: Mapped[dict[str, Any]] = mapped_column(JSONB)
    """What the session was created with, as nested values."""


class SandboxRefund(Base):
    """A refund of a stand-in, in the provider's unit."""

    __tablename__ = "sandbox_refunds"
    __table_args__ = (
        one_of("status", StandInRefundStatus),
        CheckConstraint("amount > 0", name="amount"),
        Index("ix_sandbox_refunds_session_id", "session_id"),
        Index("ix_sandbox_refunds_due", "due_at_ms", postgresql_where=text("status = 'pending'")),
    )

    number: Mapped[Counter] = mapped_column(Identity(), primary_key=True)
    """The order in which they were made, and Paystack's own id of a refund."""
    ref: Mapped[String] = mapped_column(unique=True)
    """Stripe's id of it, or the ``refund_reference`` of Paystack's events."""
    session_id: Mapped[String] = mapped_column(ForeignKey("sandbox_sessions.id"))
    amount: Mapped[Counter]
    status: Mapped[String]
    created_s: Mapped[Counter]
    due_at_ms: Mapped[Milliseconds]
    """When it is processed, by the test clock."""
    params: Mapped[dict[str, Any]] = mapped_column(JSONB)
    """What it was asked for with: metadata and reason, or notes."""


class SandboxDispute(Base):
    """A payment that the buyer's bank asks back, at the stand-in Stripe and in its unit."""

    __tablename__ = "sandbox_disputes"
    __table_args__ = (
        one_of("status", StandInDisputeStatus),
        Index("ix_sandbox_disputes_session_id", "session_id"),
    )

    id: Mapped[Key]
    session_id: Mapped[String] = mapped_column(ForeignKey("sandbox_sessions.id"))
    status: Mapped[String]
    created_s: Mapped[Counter]


class SandboxIdempotencyKey(Base):
    """The saved answer of a call, replayed to whoever repeats its key with the same parameters."""

    __tablename__ = "sandbox_idempotency_keys"

    key: Mapped[Key]
    fingerprint: Mapped[String]
    status: Mapped[int]
    body: Mapped[dict[str, Any]] = mapped_column(JSONB)
    created_s: Mapped[Counter]


class SandboxEvent(Base):
    """A webhook to deliver, with the bytes that are signed. Times are in ms of the test clock."""

    __tablename__ = "sandbox_events"
    __table_args__ = (
        one_of("provider", STAND_INS),
        not_negative("attempts"),
        Index("ix_sandbox_events_due", "next_attempt_at_ms", postgresql_where=text("next_attempt_at_ms is not null")),
    )

    seq: Mapped[Counter] = mapped_column(Identity(), primary_key=True)
    event_id: Mapped[String] = mapped_column(unique=True)
    """Stripe's id of it; Paystack's events have none, and this one is not sent."""
    provider: Mapped[String] = mapped_column(server_default=text("'stripe'"))
    type: Mapped[String]
    session_id: Mapped[String]
    payload: Mapped[String]
    fault: Mapped[String | None]
    attempts: Mapped[Zero]
    created_at_ms: Mapped[Milliseconds]
    next_attempt_at_ms: Mapped[Milliseconds | None]
    """Null once it was delivered, dropped or given up."""
    delivered_at_ms: Mapped[Milliseconds | None]


class SandboxFault(Base):
    """A fault asked for, until it has struck ``remaining`` more times."""

    __tablename__ = "sandbox_faults"
    __table_args__ = (one_of("target", FaultTarget), one_of("kind", FaultKind), not_negative("remaining"))

    id: Mapped[Counter] = mapped_column(Identity(), primary_key=True)
    target: Mapped[String]
    kind: Mapped[String]
    remaining: Mapped[int]


class SandboxCall(Base):
    """What a stand-in was asked and what it answered; the newest thousand are kept. No API key is among it."""

    __tablename__ = "sandbox_calls"

    id: Mapped[Counter] = mapped_column(Identity(), primary_key=True)
    at_ms: Mapped[Milliseconds]
    target: Mapped[String]
    method: Mapped[String]
    path: Mapped[String]
    idempotency_key: Mapped[String | None]
    params: Mapped[dict[str, Any]] = mapped_column(JSONB)
    status: Mapped[int | None]
    """The HTTP status of the answer; null when the caller never got one."""
    fault: Mapped[String | None]
