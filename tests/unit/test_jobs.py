"""The job runner: failures are told and outlived, a stop waits for what runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from engine import jobs
from engine.errors import NotReady, ProviderTimeout, StorageUnavailable
from engine.jobs import Job, JobRunner


class Diary:
    """Keeps what it is told; ``away`` makes it as unreachable as Postgres can be."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str | None]] = []
        self.details: list[Mapping[str, Any] | None] = []
        self.news = asyncio.Event()
        self.away = False

    async def succeeded(self, job: str, period_seconds: int, details: Mapping[str, Any] | None) -> None:
        assert period_seconds >= 5
        if self.away:
            raise StorageUnavailable
        self.told.append((job, None))
        self.details.append(details)
        self.news.set()

    async def failed(self, job: str, period_seconds: int, error: str) -> None:
        assert period_seconds >= 5
        if self.away:
            raise StorageUnavailable
        self.told.append((job, error))
        self.news.set()


async def run_until(runner: JobRunner, done: asyncio.Event) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(runner.run(stop))
    await done.wait()
    stop.set()
    await running


async def test_each_failure_and_the_recovery_are_told_and_other_jobs_go_on() -> None:
    diary, recovered, turns = Diary(), asyncio.Event(), [0]

    async def flaky() -> None:
        turns[0] += 1
        if turns[0] == 1:
            raise NotReady
        if turns[0] == 2:
            raise KeyError("broken")
        recovered.set()

    async def steady() -> dict[str, int]:
        return {"done": 7}

    runner = JobRunner([Job("flaky", 0.001, flaky), Job("steady", 60, steady)], diary)
    await run_until(runner, recovered)
    assert [error for job, error in diary.told if job == "flaky"] == ["not_ready", "'broken'", None]
    assert ("steady", None) in diary.told
    assert {"done": 7} in diary.details


async def test_a_rare_job_that_failed_does_not_wait_for_its_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LONGEST_RETRY_SECONDS", 0.001)
    diary, recovered, turns = Diary(), asyncio.Event(), [0]

    async def rare() -> None:
        turns[0] += 1
        if turns[0] == 1:
            raise ProviderTimeout("Not asked what was paid: stripe.")
        recovered.set()

    await asyncio.wait_for(run_until(JobRunner([Job("rare", 3600, rare)], diary), recovered), 20)
    assert diary.told == [("rare", "Not asked what was paid: stripe."), ("rare", None)]


async def test_a_quick_job_that_goes_well_is_not_told_every_time() -> None:
    diary, enough, turns = Diary(), asyncio.Event(), [0]

    async def quick() -> int:
        turns[0] += 1
        if turns[0] == 50:
            enough.set()
        return 1

    await run_until(JobRunner([Job("quick", 0.0, quick)], diary), enough)
    assert diary.told == [("quick", None)]


async def test_a_diary_that_is_away_stops_no_job() -> None:
    diary, enough, turns = Diary(), asyncio.Event(), [0]
    diary.away = True

    async def failing() -> None:
        turns[0] += 1
        if turns[0] == 3:
            enough.set()
        raise NotReady

    await run_until(JobRunner([Job("failing", 0.001, failing)], diary), enough)
    assert diary.told == []


async def test_a_stop_waits_for_the_run_under_way() -> None:
    diary, begun, ended = Diary(), asyncio.Event(), asyncio.Event()
    stop = asyncio.Event()

    async def slow() -> None:
        begun.set()
        await stop.wait()
        await asyncio.sleep(0)
        ended.set()

    running = asyncio.create_task(JobRunner([Job("slow", 60, slow)], diary).run(stop))
    await begun.wait()
    stop.set()
    await running
    assert ended.is_set()
