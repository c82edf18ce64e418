"""Tables of what is sold and to whom it belongs: tenants, keys, pools, codes, products."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Sequence, Text, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from engine.domain import LARGEST_CAP, LARGEST_PER_CUSTOMER, LatePayment, PoolStatus, Scope
from persistence.base import Base
from persistence.tables.columns import (
    Counter,
    Instant,
    Key,
    Milliseconds,
    Now,
    String,
    Zero,
    not_negative,
    one_of,
    quoted,
)

definition_rev = Sequence("definition_rev", metadata=Base.metadata)
"""Every committed change of a pool, code or product takes its ``rev`` from here, so that revs only rise."""


class Tenant(Base):
    """Owner of pools; written with its first definition."""

    __tablename__ = "tenants"

    id: Mapped[Key]
    created_at: Mapped[Now]


class ApiKey(Base):
    """A key, by its SHA-256 alone; ``tenant`` null is a platform's key for all tenants."""

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint(f"scopes <@ array[{quoted(Scope)}]::text[] and cardinality(scopes) > 0", name="scopes"),
        UniqueConstraint("key_hash"),
    )

    id: Mapped[Key]
    tenant: Mapped[String | None]
    name: Mapped[String]
    key_hash: Mapped[String]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    created_at: Mapped[Now]
    revoked_at: Mapped[Instant | None]


class Pool(Base):
    """What the owner decides of a pool; counts are in Redis, and derivable from the reservations here.

    ``pushed_rev`` is the newest definition that Redis is known to have; below ``rev``, a job pushes again.
    """

    __tablename__ = "pools"
    __table_args__ = (
        one_of("status", PoolStatus),
        one_of("late_payment", LatePayment),
        CheckConstraint(f"cap between 0 and {LARGEST_CAP}", name="cap"),
        CheckConstraint(f"per_customer between 1 and {LARGEST_PER_CUSTOMER}", name="per_customer"),
        CheckConstraint("rev > 0 and pushed_rev >= 0", name="rev"),
        Index(None, "tenant", "id", postgresql_where=text("pushed_rev < rev")),
    )

    tenant: Mapped[Key] = mapped_column(ForeignKey("tenants.id"))
    id: Mapped[Key]
    cap: Mapped[Counter | None]
    rev: Mapped[Counter]
    pushed_rev: Mapped[Zero]
    opens_at_ms: Mapped[Milliseconds | None]
    closes_at_ms: Mapped[Milliseconds | None]
    status: Mapped[String]
    per_customer: Mapped[int | None]
    late_payment: Mapped[String]
    updated_at: Mapped[Now]


class Code(Base):
    """A promotion code; ``code`` is trimmed and upper-case. Its cap is counted per period, each a pool."""

    __tablename__ = "codes"
    __table_args__ = (
        one_of("late_payment", LatePayment),
        CheckConstraint(f"cap between 0 and {LARGEST_CAP}", name="cap"),
        CheckConstraint(f"per_customer between 1 and {LARGEST_PER_CUSTOMER}", name="per_customer"),
        CheckConstraint("code = upper(code)", name="upper_case"),
    )

    tenant: Mapped[Key] = mapped_column(ForeignKey("tenants.id"))
    code: Mapped[Key]
    cap: Mapped[Counter | None]
    period: Mapped[dict[str, Any]] = mapped_column(JSONB)
    """``{kind, starts, timezone}``"""
    discount: Mapped[dict[str, Any]] = mapped_column(JSONB)
    """``{percent_off}`` or ``{amount_off_minor, currency}``"""
    per_customer: Mapped[int | None]
    opens_at_ms: Mapped[Milliseconds | None]
    closes_at_ms: Mapped[Milliseconds | None]
    products: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    late_payment: Mapped[String]
    rev: Mapped[Counter]


class Product(Base):
    """Something sold without cap or window."""

    __tablename__ = "products"
    __table_args__ = (not_negative("amount_minor"),)

    tenant: Mapped[Key] = mapped_column(ForeignKey("tenants.id"))
    id: Mapped[Key]
    name: Mapped[String]
    amount_minor: Mapped[Counter]
    currency: Mapped[String]
    recurring: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    """``{interval}``; null for a one-off product."""
    rev: Mapped[Counter]
