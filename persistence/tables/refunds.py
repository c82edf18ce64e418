"""Tables of money that goes back: our ledger, and what the providers say of refunds and disputes.

What a provider says is kept by its own ids and by the payment's reference, so that news may come before the payment
that they are about, in any order and any number of times.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from engine.domain import Provider, RefundCause, RefundStatus
from engine.payments.port import ProviderRefundStatus
from persistence.base import Base
from persistence.tables.columns import Counter, Empty, Instant, Key, No, Now, String, Zero, not_negative, one_of


class Refund(Base):
    """One refund that we owe or made: claimed, then asked for, then recorded.

    ``called_at`` is set, in this ``round``, before the provider is asked for the first time: from then on it is asked
    whether it acted before it is asked to act again.
    """

    __tablename__ = "refunds"
    __table_args__ = (
        one_of("status", RefundStatus),
        one_of("cause", RefundCause),
        CheckConstraint("amount_minor > 0", name="amount_minor"),
        CheckConstraint("(cause = 'requested') = (request_id is not null)", name="request_id"),
        CheckConstraint("(claim is not null) = (status = 'requesting')", name="claim"),
        UniqueConstraint("order_id", "request_id"),
        Index(None, "payment_id"),
        Index(None, "order_id"),
        Index(None, "next_try_at", postgresql_where=text("status <> 'refunded'")),
    )

    id: Mapped[Key] = mapped_column(server_default=text("replace((gen_random_uuid())::text, '-'::text, ''::text)"))
    tenant: Mapped[String]
    order_id: Mapped[String | None] = mapped_column(ForeignKey("orders.id"))
    payment_id: Mapped[String] = mapped_column(ForeignKey("payments.id"))
    cause: Mapped[String]
    request_id: Mapped[String | None]
    """The id that whoever asked for it gave it; one of an order brings one refund."""
    reason: Mapped[Empty]
    amount_minor: Mapped[Counter]
    currency: Mapped[String]
    status: Mapped[String]
    round: Mapped[int] = mapped_column(server_default=text("1"))
    claim: Mapped[String | None]
    claimed_at: Mapped[Instant | None]
    called_at: Mapped[Instant | None]
    next_try_at: Mapped[Now]
    tries: Mapped[Zero]
    last_error: Mapped[String | None]
    created_at: Mapped[Now]
    refunded_at: Mapped[Instant | None]


class ProviderRefund(Base):
    """A refund at the provider, one row each, whoever asked for it; ``refund_id`` is ours, if it is."""

    __tablename__ = "provider_refunds"
    __table_args__ = (
        one_of("provider", Provider),
        one_of("status", ProviderRefundStatus),
        not_negative("amount_minor"),
        Index(None, "provider", "payment_ref"),
        Index(None, "refund_id"),
        Index(None, "first_seen_at", postgresql_where=text("not counted")),
    )

    provider: Mapped[Key]
    ref: Mapped[Key]
    alias: Mapped[String | None]
    """Another name that the provider's events use for it."""
    payment_ref: Mapped[String]
    refund_id: Mapped[String | None] = mapped_column(ForeignKey("refunds.id"))
    round: Mapped[int | None]
    amount_minor: Mapped[Counter]
    currency: Mapped[String]
    status: Mapped[String]
    reason: Mapped[String | None]
    counted: Mapped[No]
    """Whether its payment and order know of it as it is now."""
    first_seen_at: Mapped[Now]


class RefundTotal(Base):
    """The most that the provider said had gone back of a payment in all."""

    __tablename__ = "refund_totals"
    __table_args__ = (
        one_of("provider", Provider),
        not_negative("total_minor"),
        Index(None, "first_seen_at", postgresql_where=text("not counted")),
    )

    provider: Mapped[Key]
    payment_ref: Mapped[Key]
    total_minor: Mapped[Counter]
    currency: Mapped[String]
    counted: Mapped[No]
    first_seen_at: Mapped[Now]


class Dispute(Base):
    """A payment that a buyer's bank asks back. Nothing follows from it by itself; a person has to answer."""

    __tablename__ = "disputes"
    __table_args__ = (
        one_of("provider", Provider),
        not_negative("amount_minor"),
        Index(None, "provider", "payment_ref"),
        Index(None, "first_seen_at", postgresql_where=text("not counted")),
    )

    provider: Mapped[Key]
    ref: Mapped[Key]
    payment_ref: Mapped[String]
    amount_minor: Mapped[Counter]
    currency: Mapped[String]
    status: Mapped[String]
    reason: Mapped[String | None]
    is_closed: Mapped[No]
    counted: Mapped[No]
    first_seen_at: Mapped[Now]
