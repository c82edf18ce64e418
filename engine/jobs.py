"""Jobs: what is done again and again in the background, each in its own time, each saying how it last went."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from engine.errors import LastportionError, ProviderError, ProviderTimeout, Unavailable

log = structlog.get_logger(__name__)

REPORT_EVERY_SECONDS: Final = 5.0
"""A quick job that goes well says so this often; a failure and the first success after it are told at once."""

LONGEST_RETRY_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do every so many seconds. What ``run`` answers is kept as the job's details, unless None."""

    name: str
    every_seconds: float
    run: Callable[[], Awaitable[Mapping[str, Any] | int | None]]
    first_after_seconds: float = 0.0
    """How long after its start a worker waits with it: what it calls may be starting as well."""

    @property
    def period_seconds(self) -> int:
        """Within how long a success is expected to be reported."""
        return math.ceil(max(self.every_seconds, REPORT_EVERY_SECONDS))

    @property
    def retry_seconds(self) -> float:
        """How soon after a failure it runs again: trouble is mostly over long before a rare job's next turn."""
        return min(self.every_seconds, LONGEST_RETRY_SECONDS)


class JobDiary(Protocol):
    """Where jobs say how they went. Raises ``StorageUnavailable``."""

    async def succeeded(self, job: str, period_seconds: int, details: Mapping[str, Any] | None) -> None: ...

    async def failed(self, job: str, period_seconds: int, error: str) -> None: ...


class JobRunner:
    """Runs jobs side by side until it is stopped."""

    def __init__(self, jobs: Sequence[Job], diary: JobDiary) -> None:
        self._jobs = jobs
        self._diary = diary

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set; the runs under way are finished first."""
        async with asyncio.TaskGroup() as group:
            for job in self._jobs:
                group.create_task(self._repeat(job, stop), name=job.name)

    async def _repeat(self, job: Job, stop: asyncio.Event) -> None:
        reported_at, is_failing = -math.inf, False
        await _wait(stop, job.first_after_seconds)
        while not stop.is_set():
            error, details = await self._run_once(job, is_failing=is_failing)
            is_news = error is not None or is_failing or details is not None
            if is_news or time.monotonic() - reported_at >= REPORT_EVERY_SECONDS:
                await self._report(job, error, details)
                reported_at = time.monotonic()
            is_failing = error is not None
            await _wait(stop, job.every_seconds if error is None else job.retry_seconds)

    async def _run_once(self, job: Job, *, is_failing: bool) -> tuple[str | None, Mapping[str, Any] | None]:
        """What went wrong, if anything, and the details to keep. Trouble that lasts is logged once."""
        try:
            answer = await job.run()
        except Unavailable as error:
            if not is_failing:
                log.warning("job_waits", job=job.name, reason=error.code)
            return error.code, None
        except (ProviderError, ProviderTimeout) as error:
            if not is_failing:
                log.warning("job_waits", job=job.name, reason=error.message)
            return error.message, None
        except Exception as error:
            log.exception("job_failed", job=job.name)
            return str(error) or type(error).__name__, None
        if is_failing:
            log.info("job_recovered", job=job.name)
        return None, answer if isinstance(answer, Mapping) else None

    async def _report(self, job: Job, error: str | None, details: Mapping[str, Any] | None) -> None:
        try:
            if error is None:
                await self._diary.succeeded(job.name, job.period_seconds, details)
            else:
                await self._diary.failed(job.name, job.period_seconds, error)
        except LastportionError as unreachable:
            # Postgres is away: the job's last success grows old, which is the report.
            log.debug("job_unreported", job=job.name, reason=unreachable.code)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    """Until so many seconds have passed, or it is time to stop."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
