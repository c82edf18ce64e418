"""Keeps child processes running: what dies is started again, after a pause that grows while it keeps dying."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from api.servers import ChildProcess, ServerFailed

SHORTEST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
STEADY_AFTER_SECONDS = 10.0

log = structlog.stdlib.get_logger(__name__)


@dataclass(slots=True)
class Kept:
    """A child and how it has been doing; ``deaths`` in a row, each soon after a start."""

    child: ChildProcess
    started_at: float
    deaths: int = 0
    due_at: float | None = None


class Supervisor:
    """Children in the order of their start; they are stopped in the opposite one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.kept: list[Kept] = []
        self._clock = clock

    def start(self, child: ChildProcess) -> None:
        """Start a child and keep it running from now on; raises ServerFailed when it does not come up."""
        # Kept first: should we be interrupted while it starts, stop() has to know of it.
        self.kept.append(Kept(child, self._clock()))
        child.start()

    def look(self) -> None:
        """Start again what has died and whose pause is over."""
        for kept in self.kept:
            now = self._clock()
            if kept.child.alive:
                if now - kept.started_at > STEADY_AFTER_SECONDS:
                    kept.deaths = 0
            elif kept.due_at is None:
                pause = min(LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS * 2**kept.deaths)
                kept.deaths += 1
                kept.due_at = now + pause
                log.warning("died", child=kept.child.name, exit_code=kept.child.exit_code, again_in_seconds=pause)
            elif now >= kept.due_at:
                self._start_again(kept)

    def stop(self) -> None:
        """Stop everything, last started first."""
        for kept in reversed(self.kept):
            kept.child.stop()
        self.kept.clear()

    def _start_again(self, kept: Kept) -> None:
        kept.started_at = self._clock()
        kept.due_at = None
        try:
            kept.child.start()
        except ServerFailed as error:
            log.error("not_started", child=kept.child.name, reason=str(error))
        else:
            log.info("started_again", child=kept.child.name, pid=kept.child.pid)
