"""Tables that tie Postgres to Redis, and those that tell an operator how the work goes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, Identity, Sequence, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from persistence.base import Base
from persistence.tables.columns import Counter, Instant, Key, Now, String, Zero, not_negative

redis_epoch = Sequence("redis_epoch", metadata=Base.metadata)
"""Deployment-wide source of epochs: none is ever used twice, whatever is rolled back."""


class RedisEpoch(Base):
    """One unbroken life of the Redis data. ``admitted_at`` null: interrupted, or still running."""

    __tablename__ = "redis_epochs"
    __table_args__ = (CheckConstraint("epoch > 0 and build > 0", name="positive"),)

    epoch: Mapped[Counter] = mapped_column(primary_key=True, autoincrement=False)
    server: Mapped[String]
    run_id: Mapped[String]
    replication_id: Mapped[String]
    build: Mapped[int]
    reason: Mapped[String]
    begun_at: Mapped[Now]
    admitted_at: Mapped[Instant | None]


class OutboxOffset(Base):
    """How far Postgres has a partition's outbox. Moved only from the value that was read: the fence."""

    __tablename__ = "outbox_offsets"
    __table_args__ = (not_negative("partition", "epoch", "seq"),)

    partition: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[Counter]
    seq: Mapped[Counter]


class SetAsideEntry(Base):
    """An outbox entry that could not be stored, with the reason, for an operator to look at."""

    __tablename__ = "set_aside_entries"
    __table_args__ = (UniqueConstraint("partition", "epoch", "seq"),)

    id: Mapped[Counter] = mapped_column(Identity(), primary_key=True)
    partition: Mapped[int]
    epoch: Mapped[Counter]
    seq: Mapped[Counter]
    fields: Mapped[dict[str, Any]] = mapped_column(JSONB)
    reason: Mapped[String]
    at: Mapped[Now]
    resolved_at: Mapped[Instant | None]
    """When its cause was dealt with: a repeated id released in Redis, or an operator's decision."""


class JobRun(Base):
    """When a job last succeeded, and how it last failed."""

    __tablename__ = "job_runs"

    job: Mapped[Key]
    period_seconds: Mapped[int | None]
    """How often it should succeed; one that has not for two periods is overdue."""
    last_started_at: Mapped[Instant | None]
    last_success_at: Mapped[Instant | None]
    last_error: Mapped[String | None]
    last_error_at: Mapped[Instant | None]
    failures: Mapped[Zero]
    """Failures since the last success."""
    details: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
