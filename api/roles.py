"""The roles without HTTP: each runs until its event is set, then puts everything away."""

from __future__ import annotations

import asyncio

from api.foundation import lay_foundation
from api.jobs import jobs_of
from api.services import build_services
from engine.jobs import JobRunner
from engine.redis_client import create_redis
from engine.settings import Settings
from persistence.job_diary import PostgresJobDiary
from persistence.persister import Persister
from persistence.repeats import Repeats


async def run_persister(settings: Settings, stop: asyncio.Event) -> None:
    """Carry what Redis decided to Postgres. Raises ``UnsafeRedis`` where Redis may lose data."""
    foundation = lay_foundation(settings)
    repeats = Repeats(foundation.database, foundation.engine)
    async with foundation.running(), create_redis(settings, blocking=True) as reader:
        persister = Persister(settings, foundation.database, reader, foundation.state, repeats.release)
        await persister.run(stop)


async def run_worker(settings: Settings, stop: asyncio.Event) -> None:
    """Run the jobs. Raises ``UnsafeRedis`` where Redis may lose data."""
    services = build_services(settings)
    async with services.running():
        await JobRunner(jobs_of(services), PostgresJobDiary(services.database)).run(stop)
