"""How each job goes: when it last succeeded, how it last failed. Read by ``/readyz`` and the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from persistence.tables import JobRun


async def note_success(
    connection: AsyncConnection, job: str, period_seconds: int, details: Mapping[str, Any] | None = None
) -> None:
    """The job did its work; the next success is expected within ``period_seconds``."""
    seen = {
        "period_seconds": period_seconds,
        "last_started_at": func.now(),
        "last_success_at": func.now(),
        "failures": 0,
        "details": dict(details or {}),
    }
    await connection.execute(
        insert(JobRun).values(job=job, **seen).on_conflict_do_update(index_elements=["job"], set_=seen)
    )


async def note_failure(connection: AsyncConnection, job: str, period_seconds: int, error: str) -> None:
    """The job failed with this; its last success stays as it was, so that it becomes overdue."""
    seen = {
        "period_seconds": period_seconds,
        "last_started_at": func.now(),
        "last_error": error,
        "last_error_at": func.now(),
    }
    statement = insert(JobRun).values(job=job, failures=1, **seen)
    await connection.execute(
        statement.on_conflict_do_update(index_elements=["job"], set_={**seen, "failures": JobRun.failures + 1})
    )
