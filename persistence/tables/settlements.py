"""The table of settlements: stored before they are applied, marked applied only with the outbox entry."""

from __future__ import annotations

from sqlalchemy import Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped

from engine.domain import Provider, SettlementKind, SettlementState
from persistence.base import Base
from persistence.tables.columns import Counter, Instant, Key, No, Now, String, Zero, not_negative, one_of


class Settlement(Base):
    """A stored instruction that ends a reservation: a verified event, or an API call to complete or cancel.

    ``dedup_key`` is the provider's event id, or what tells two events apart where there is none. ``record`` is
    the reservation as it stood when this was stored, so that nothing depends on Redis still having it.
    """

    __tablename__ = "settlements"
    __table_args__ = (
        one_of("provider", Provider),
        one_of("kind", SettlementKind),
        one_of("state", SettlementState),
        not_negative("amount_minor"),
        UniqueConstraint("provider", "dedup_key"),
        Index(None, "state", "received_at", postgresql_where=text("state in ('stored', 'unmatched')")),
        Index(None, "provider", "session_id"),
        Index(None, "tenant", "reservation_id"),
        Index(None, "order_id"),
    )

    id: Mapped[Key]
    provider: Mapped[String]
    dedup_key: Mapped[String]
    kind: Mapped[String]
    tenant: Mapped[String | None]
    reservation_id: Mapped[String | None]
    order_id: Mapped[String | None]
    session_id: Mapped[String | None]
    payment_ref: Mapped[String | None]
    amount_minor: Mapped[Counter | None]
    currency: Mapped[String | None]
    event_type: Mapped[String | None]
    record: Mapped[String | None]
    restock: Mapped[No]
    state: Mapped[String]
    outcome: Mapped[String | None]
    tries: Mapped[Zero]
    last_error: Mapped[String | None]
    received_at: Mapped[Now]
    applied_at: Mapped[Instant | None]
