"""How the jobs go, as read by ``/readyz`` and the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from persistence.tables import JobRun

PERIODS_UNTIL_OVERDUE: Final = 2


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job: when it last succeeded, how often it failed since, and whether it should have succeeded by now."""

    job: str
    last_success_at: datetime | None
    failures: int
    overdue: bool


async def load_job_reports(connection: AsyncConnection) -> list[JobReport]:
    """All jobs that ever ran, by name; judged by Postgres's clock, which also wrote the times."""
    query = select(JobRun.job, JobRun.period_seconds, JobRun.last_success_at, JobRun.failures, func.now())
    rows = await connection.execute(query.order_by(JobRun.job))
    return [
        JobReport(job, success, failures, _is_overdue(period, success, failures, now))
        for job, period, success, failures, now in rows
    ]


def _is_overdue(period_seconds: int | None, success: datetime | None, failures: int, now: datetime) -> bool:
    if success is None:
        return failures > 0
    return period_seconds is not None and now - success > timedelta(seconds=PERIODS_UNTIL_OVERDUE * period_seconds)
