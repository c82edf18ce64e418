"""Retention: records that ended long ago leave Redis, from what Postgres has committed. Postgres keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncEngine

from engine.reservations import ReservationEngine
from engine.settings import Settings
from persistence.database import transaction
from persistence.job_diary import PostgresJobDiary

REMOVE_RECORDS_JOB: Final = "remove_records"
RECORDS_IN_ONE_CALL: Final = 500
MOST_CALLS_IN_ONE_RUN: Final = 200
LATE_MS: Final = 24 * 3600 * 1000
"""A reservation may be settled late, and its retention counts from then: those that were settled within this time
after their end are still met. One that was restored even later stays until the next rebuild."""

_ENDED = text("""
select tenant, id, version, expires_at_ms from reservations
where status in ('reserved', 'completed', 'released', 'cancelled')
    and expires_at_ms > :from_ms and expires_at_ms <= :to_ms
    and (expires_at_ms, tenant, id) > (:after_ms, :after_tenant, :after_id)
order by expires_at_ms, tenant, id
limit :limit
""")


class RecordRemover:
    """Takes ended records out of Redis, going through Postgres by the end of their lives."""

    def __init__(self, settings: Settings, engine: AsyncEngine, reservations: ReservationEngine) -> None:
        self._retention_ms = settings.retention_seconds * 1000
        self._engine = engine
        self._reservations = reservations
        self._diary = PostgresJobDiary(engine)

    async def run(self) -> Mapping[str, Any]:
        """Go on from where the last run came to, a bounded number of records; the script has the last word on each.

        Raises ``Unavailable``.
        """
        from_ms = int((await self._diary.details_of(REMOVE_RECORDS_JOB)).get("upto_ms", 0))
        to_ms = await self._reservations.now_ms() - self._retention_ms - LATE_MS
        after: tuple[int, str, str] = (from_ms, "", "")
        removed = 0
        for _ in range(MOST_CALLS_IN_ONE_RUN):
            rows = await self._load(from_ms, to_ms, after)
            for tenant, records in groupby(sorted(rows, key=lambda row: row.tenant), key=lambda row: row.tenant):
                pairs = [(row.id, row.version) for row in records]
                removed += await self._reservations.remove_reservations(tenant, pairs)
            if len(rows) < RECORDS_IN_ONE_CALL:
                return {"upto_ms": max(from_ms, to_ms), "removed": removed}
            after = (rows[-1].expires_at_ms, rows[-1].tenant, rows[-1].id)
        # The last instant may have been met only in part.
        return {"upto_ms": max(from_ms, after[0] - 1), "removed": removed}

    async def _load(self, from_ms: int, to_ms: int, after: tuple[int, str, str]) -> list[Row[Any]]:
        values = {
            "from_ms": from_ms,
            "to_ms": to_ms,
            "after_ms": after[0],
            "after_tenant": after[1],
            "after_id": after[2],
            "limit": RECORDS_IN_ONE_CALL,
        }
        async with transaction(self._engine) as connection:
            return list((await connection.execute(_ENDED, values)).all())
