"""Tables of what was reserved. Written by the persister, and by a checkout before it asks for money."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Index, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSON
from sqlalchemy.orm import Mapped, mapped_column

from engine.domain import ReservationStatus
from persistence.base import Base
from persistence.tables.columns import (
    Counter,
    Empty,
    Key,
    Milliseconds,
    No,
    String,
    Zero,
    not_negative,
    one_of,
)


class ReservationRow(Base):
    """A reservation at its newest persisted version; columns as in ``engine.domain.Reservation``."""

    __tablename__ = "reservations"
    __table_args__ = (
        one_of("status", ReservationStatus),
        not_negative("over_cap"),
        CheckConstraint("version > 0", name="version"),
        CheckConstraint("status <> 'completed' or completed_at_ms is not null", name="completed_at"),
        Index(None, "tenant", "code", "period", postgresql_where=text("code <> ''")),
        Index(None, "tenant", "customer", postgresql_where=text("customer is not null")),
        Index(None, "status", "expires_at_ms"),
    )

    tenant: Mapped[Key]
    id: Mapped[Key]
    status: Mapped[String]
    version: Mapped[int]
    created_at_ms: Mapped[Milliseconds]
    expires_at_ms: Mapped[Milliseconds]
    completed_at_ms: Mapped[Milliseconds | None]
    ended_at_ms: Mapped[Milliseconds | None]
    late: Mapped[No]
    over_cap: Mapped[Zero]
    restocked: Mapped[No]
    ttl_ms: Mapped[Counter]
    fingerprint: Mapped[String]
    payment_ref: Mapped[Empty]
    refused_payments: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    customer: Mapped[String | None]
    # "metadata" is taken by the declarative base, so only the column bears that name. JSON, not JSONB, keeps the
    # text as it was given, so that a rebuilt record equals the one that a script wrote.
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata", JSON)
    order_id: Mapped[Empty]
    code: Mapped[Empty]
    period: Mapped[Empty]


class ReservationClaim(Base):
    """One claim of a reservation, frozen when it was granted. ``counted``: against the customer's limit."""

    __tablename__ = "reservation_claims"
    __table_args__ = (
        ForeignKeyConstraint(
            ["tenant", "reservation_id"], ["reservations.tenant", "reservations.id"], ondelete="CASCADE"
        ),
        CheckConstraint("quantity > 0", name="quantity"),
        Index(None, "tenant", "pool"),
    )

    tenant: Mapped[Key]
    reservation_id: Mapped[Key]
    position: Mapped[int] = mapped_column(primary_key=True)
    pool: Mapped[String]
    quantity: Mapped[Counter]
    counted: Mapped[No]


REDEMPTIONS_VIEW = """
create view redemptions as
select tenant, code, period, customer, id as reservation_id, order_id,
       timestamptz 'epoch' + completed_at_ms * interval '1 millisecond' as completed_at
from reservations
where status = 'completed' and code <> ''
"""
"""A completed reservation with a code is a redemption; ``completed_at`` is read off the engine's clock."""
