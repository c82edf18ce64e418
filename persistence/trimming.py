"""Trimming the outbox: only behind what Postgres has, and only what it has had for long enough."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from time import monotonic

from redis.asyncio import Redis

from persistence.outbox import EntryId

POINT_EVERY_SECONDS = 1.0


class Trimmer:
    """Remembers when which offset was committed, and trims to the newest that is old enough.

    What was committed before this process began is remembered from its begin, so it stays long enough as well.
    """

    def __init__(self, redis: Redis, behind_seconds: float) -> None:
        self._redis = redis
        self._behind_seconds = behind_seconds
        self._points: dict[str, deque[tuple[float, EntryId]]] = {}

    def committed(self, offsets: Mapping[str, EntryId]) -> None:
        """Postgres has these outboxes up to here."""
        now = monotonic()
        for outbox, offset in offsets.items():
            points = self._points.setdefault(outbox, deque())
            if not points or now - points[-1][0] >= POINT_EVERY_SECONDS:
                points.append((now, offset))

    def forget(self) -> None:
        """Postgres may have stepped back: begin to count anew."""
        self._points.clear()

    async def trim(self) -> None:
        """Drop what is old enough. The entry at the offset stays, so no outbox is ever empty."""
        old = monotonic() - self._behind_seconds
        for outbox, points in self._points.items():
            keep = None
            while points and points[0][0] <= old:
                keep = points.popleft()[1]
            # Whole nodes go, which is cheap and bounded; so after a busy time it takes several calls.
            while keep is not None and await self._redis.xtrim(outbox, minid=str(keep), approximate=True):
                pass
