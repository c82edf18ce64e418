"""What every role stands on: both servers, admission, and the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from engine.admission import AdmissionState
from engine.redis_client import create_redis
from engine.reservations import ReservationEngine
from engine.settings import Settings
from persistence.admission import Admission
from persistence.database import create_engine_from
from persistence.repositories.reservations import ReservationRepository
from persistence.waiting import end_task, wait_for_any

FIRST_LOOK_SECONDS: Final = 5.0
"""How long a start waits for admission; a server that is away longer is waited for in the background."""
LOOK_AGAIN_SECONDS: Final = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Foundation:
    """Built without I/O by :func:`lay_foundation`; usable inside ``running``."""

    settings: Settings
    database: AsyncEngine
    redis: Redis
    state: AdmissionState
    admission: Admission
    engine: ReservationEngine

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep Redis admitted while the block runs, and close the connections after it.

        Raises ``UnsafeRedis`` where Redis may lose reservations; a server that is away is waited for all the while.
        """
        try:
            await self.admission.check_safe()
            watching = asyncio.create_task(self._watch(), name="admission")
            try:
                await wait_for_any(FIRST_LOOK_SECONDS, self.state.ready)
                yield
            finally:
                await end_task(watching)
        finally:
            await self.redis.aclose()
            await self.database.dispose()

    async def _watch(self) -> None:
        while True:
            try:
                await self.admission.watch()
            except Exception:
                # Whatever it was: a process that no longer looks would go on with what may be gone.
                log.exception("admission_broke")
                self.state.revoke()
                await asyncio.sleep(LOOK_AGAIN_SECONDS)


def lay_foundation(settings: Settings) -> Foundation:
    """The servers, admission and engine of one process, not yet connected."""
    database = create_engine_from(settings)
    redis = create_redis(settings)
    state = AdmissionState()
    return Foundation(
        settings=settings,
        database=database,
        redis=redis,
        state=state,
        admission=Admission(settings, database, redis, state),
        engine=ReservationEngine(redis, settings, state, ReservationRepository(database)),
    )
