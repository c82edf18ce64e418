"""Tables of what buyers pay for: orders with lines and history, attempts at a provider, payments."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from engine.domain import AttemptStatus, OrderStatus, PaymentStatus, Provider
from persistence.base import Base
from persistence.tables.columns import (
    Counter,
    Empty,
    Instant,
    Key,
    Milliseconds,
    No,
    Now,
    String,
    Zero,
    not_negative,
    one_of,
)


class Order(Base):
    """Priced lines, on a reservation or on none. ``amount_minor`` is what is due, discount taken off."""

    __tablename__ = "orders"
    __table_args__ = (
        one_of("status", OrderStatus),
        one_of("provider", Provider),
        not_negative("amount_minor", "discount_minor", "refunded_minor"),
        UniqueConstraint("tenant", "idempotency_key"),
        Index(None, "tenant", "reservation_id", postgresql_where=text("reservation_id is not null")),
        Index(None, "tenant", "customer"),
        Index(None, "tenant", "created_at", "id"),
    )

    id: Mapped[Key]
    tenant: Mapped[String]
    reservation_id: Mapped[String | None]
    customer: Mapped[String]
    email: Mapped[String]
    code: Mapped[Empty]
    period: Mapped[Empty]
    currency: Mapped[String]
    amount_minor: Mapped[Counter]
    discount_minor: Mapped[Zero]
    refunded_minor: Mapped[Zero]
    status: Mapped[String]
    late: Mapped[No]
    withdrawn: Mapped[No]
    """Its seller cancelled it while it was unpaid: a payment that comes all the same goes back."""
    provider: Mapped[String]
    idempotency_key: Mapped[String | None]
    request_fingerprint: Mapped[String]
    success_url: Mapped[String]
    cancel_url: Mapped[String]
    created_at: Mapped[Now]
    expires_at_ms: Mapped[Milliseconds | None]
    """End of the reservation as last extended; null where nothing is reserved."""


class OrderLine(Base):
    """One priced line; ``amount_minor`` is for the whole line, before the order's discount."""

    __tablename__ = "order_lines"
    __table_args__ = (
        not_negative("unit_amount_minor", "amount_minor"),
        CheckConstraint("quantity > 0", name="quantity"),
    )

    order_id: Mapped[Key] = mapped_column(ForeignKey("orders.id", ondelete="CASCADE"))
    position: Mapped[int] = mapped_column(primary_key=True)
    product: Mapped[String]
    name: Mapped[String]
    quantity: Mapped[Counter]
    unit_amount_minor: Mapped[Counter]
    amount_minor: Mapped[Counter]


class OrderHistory(Base):
    """What happened to an order, append-only. One event of one settlement stands here once."""

    __tablename__ = "order_history"
    __table_args__ = (
        UniqueConstraint("order_id", "event", "settlement_id"),
        Index(None, "order_id", "id"),
    )

    id: Mapped[Counter] = mapped_column(Identity(), primary_key=True)
    order_id: Mapped[String] = mapped_column(ForeignKey("orders.id", ondelete="CASCADE"))
    at: Mapped[Now]
    event: Mapped[String]
    details: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    settlement_id: Mapped[String | None]


class Attempt(Base):
    """One session or transaction at a provider, stored before the provider hears of it.

    ``parameters`` is the whole frozen attempt, so that a repeat sends the same bytes.
    """

    __tablename__ = "attempts"
    __table_args__ = (
        one_of("provider", Provider),
        one_of("status", AttemptStatus),
        CheckConstraint("number > 0", name="number"),
        UniqueConstraint("idempotency_key"),
        UniqueConstraint("provider", "session_id"),
        Index(None, "status", "created_at"),
        Index(None, "asked_by", postgresql_where=text("asked_by is not null")),
        Index(None, "look_up_at_s", postgresql_where=text("status in ('frozen', 'open', 'unpaid', 'closing')")),
    )

    order_id: Mapped[Key] = mapped_column(ForeignKey("orders.id", ondelete="CASCADE"))
    number: Mapped[int] = mapped_column(primary_key=True)
    provider: Mapped[String]
    idempotency_key: Mapped[String]
    parameters: Mapped[dict[str, Any]] = mapped_column(JSONB)
    status: Mapped[String]
    session_id: Mapped[String | None]
    url: Mapped[String | None]
    session_expires_at_s: Mapped[Counter | None]
    look_up_at_s: Mapped[Counter | None]
    """When the provider is asked, if nothing was heard by then; null: a day after it was made."""
    asked_by: Mapped[String | None]
    """The idempotency key of the checkout that asked for this attempt, where it is not the order's own."""
    request_fingerprint: Mapped[String | None]
    """What that key must bring again."""
    created_at: Mapped[Now]
    opened_at: Mapped[Instant | None]


class Payment(Base):
    """Money that arrived: one row per object at the provider, whatever became of it.

    ``refunded_minor`` is what went back of it, as the provider's refunds add up.
    """

    __tablename__ = "payments"
    __table_args__ = (
        one_of("status", PaymentStatus),
        one_of("provider", Provider),
        not_negative("amount_minor", "refunded_minor"),
        CheckConstraint("refunded_minor <= amount_minor", name="refunded_minor"),
        UniqueConstraint("provider", "ref"),
        Index(None, "order_id"),
        Index(None, "created_at", postgresql_where=text("status = 'refund_owed'")),
    )

    id: Mapped[Key] = mapped_column(server_default=text("replace((gen_random_uuid())::text, '-'::text, ''::text)"))
    tenant: Mapped[String]
    order_id: Mapped[String | None] = mapped_column(ForeignKey("orders.id"))
    provider: Mapped[String]
    ref: Mapped[String]
    amount_minor: Mapped[Counter]
    currency: Mapped[String]
    status: Mapped[String]
    refunded_minor: Mapped[Zero]
    settlement_id: Mapped[String | None]
    created_at: Mapped[Now]
