"""Where jobs say how they went: the table that ``/readyz`` and the metrics read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from persistence.database import transaction
from persistence.repositories.job_runs import note_failure, note_success
from persistence.tables import JobRun


class PostgresJobDiary:
    """Implements :class:`engine.jobs.JobDiary`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def succeeded(self, job: str, period_seconds: int, details: Mapping[str, Any] | None) -> None:
        """Note a success, with the details that the job wants kept."""
        async with transaction(self._engine) as connection:
            await note_success(connection, job, period_seconds, details)

    async def failed(self, job: str, period_seconds: int, error: str) -> None:
        """Note a failure; what the job kept with its last success stays."""
        async with transaction(self._engine) as connection:
            await note_failure(connection, job, period_seconds, error)

    async def details_of(self, job: str) -> Mapping[str, Any]:
        """What a job kept with its last success."""
        async with transaction(self._engine) as connection:
            return await connection.scalar(select(JobRun.details).where(JobRun.job == job)) or {}
