"""Whether this deployment can reserve and persist, and what is missing when it can't."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine

from engine.admission import AdmissionState
from engine.errors import StorageUnavailable
from persistence.database import transaction
from persistence.persister import PERSISTER_JOB
from persistence.repositories.job_reports import JobReport, load_job_reports

REDIS: Final = "redis"
POSTGRES: Final = "postgres"


@dataclass(frozen=True, slots=True)
class Readiness:
    """``missing`` is what stops reserving or persisting, each with a sentence; ``jobs`` is empty without Postgres."""

    missing: dict[str, str] = field(default_factory=dict)
    jobs: Sequence[JobReport] = ()

    @property
    def ready(self) -> bool:
        return not self.missing

    def content(self) -> dict[str, Any]:
        """As ``/readyz`` answers."""
        overdue = [report.job for report in self.jobs if report.overdue]
        return {"ready": self.ready, "missing": self.missing, "overdue": overdue}


async def readiness_of(database: AsyncEngine, state: AdmissionState) -> Readiness:
    """Look at Redis's admission, at Postgres, and at how the jobs go. Raises nothing: what fails is named."""
    missing: dict[str, str] = {}
    if state.admitted is None or not state.reachable:
        missing[REDIS] = "is not reachable, or not admitted yet"
    try:
        async with transaction(database) as connection:
            jobs = await load_job_reports(connection)
    except StorageUnavailable:
        missing[POSTGRES] = "is not reachable"
        return Readiness(missing)
    if not any(report.job == PERSISTER_JOB and not report.overdue for report in jobs):
        missing[PERSISTER_JOB] = "has not persisted of late: see that `lastportion persist` runs, and what it logs"
    return Readiness(missing, jobs)
