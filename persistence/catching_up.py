"""Applying what was settled while Redis was away, before anything is granted in a new epoch.

A payment that was stored meanwhile has a claim on units whose reservation may have ended by now: whoever reserved first
after the outage would be sold them as well.
"""

from __future__ import annotations

from typing import Final

import structlog
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from engine.admission import AdmissionState, Admitted
from engine.errors import Unavailable
from engine.reservations import ReservationEngine
from engine.settings import Settings
from engine.settlement import SettlementService
from persistence.repositories.reservations import ReservationRepository
from persistence.repositories.settlements import PostgresSettlements

log = structlog.stdlib.get_logger(__name__)

MOST_RUNS: Final = 20
"""Bounds how long everybody waits; what is left then is the job's."""


async def apply_waiting(settings: Settings, database: AsyncEngine, redis: Redis, admitted: Admitted) -> int:
    """Apply what is stored, under an epoch whose scripts are loaded and which no process was told of yet.

    Answers how many were applied. What can't be applied now is left to the job.
    """
    state = AdmissionState()
    state.admit(admitted)
    reservations = ReservationEngine(redis, settings, state, ReservationRepository(database))
    settlements = SettlementService(
        PostgresSettlements(database, settings.prefix, settings.mismatched_payment),
        reservations,
        settings.delayed_hold_seconds,
    )
    applied = 0
    try:
        for _ in range(MOST_RUNS):
            count = await settlements.apply_pending()
            applied += count
            if not count:
                break
    except Unavailable as error:
        log.warning("settlements_left_to_the_job", reason=error.code)
    return applied
