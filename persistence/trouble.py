"""Trouble that a background task waits out: told once, and again when it is over or has become another."""

from __future__ import annotations

import structlog
from redis.exceptions import RedisError
from sqlalchemy.exc import DBAPIError

from engine.errors import Unavailable

PASSING = (Unavailable, RedisError, OSError, DBAPIError)
"""Errors of the servers: out of reach, not ready, or (before a migration) without the tables."""

log = structlog.stdlib.get_logger(__name__)


class Trouble:
    """What one task is in trouble with, if anything."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._reason: str | None = None

    def met(self, error: BaseException) -> None:
        """Log this trouble, unless it is the one that was met last."""
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        reason = (str(cause) or type(cause).__name__).splitlines()[0]
        if reason != self._reason:
            log.warning("waits", task=self._task, reason=reason)
        self._reason = reason

    def over(self) -> None:
        """Things go well."""
        if self._reason is not None:
            log.info("goes_on", task=self._task)
        self._reason = None
