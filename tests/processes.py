"""Looking at processes from outside: whose children they are, whether they are gone, and waiting for something."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable

POLL_SECONDS = 0.02


def children_of(pid: int) -> list[int]:
    """Process ids of the direct children, those that ended but were not collected left out."""
    return [child for child, parent, state in _processes() if parent == pid and not state.startswith("Z")]


def descendants_of(pid: int) -> list[int]:
    """Children, their children, and so on."""
    direct = children_of(pid)
    return [*direct, *(deeper for child in direct for deeper in descendants_of(child))]


def gone(pid: int) -> bool:
    """Whether no process of this id runs; one that ended but was not collected is gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return any(each == pid and state.startswith("Z") for each, _, state in _processes())


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Return as soon as the condition holds; fails the test when it does not in time."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {seconds:g} s in vain for {what}"
        time.sleep(POLL_SECONDS)


def _processes() -> list[tuple[int, int, str]]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)  # noqa: S607
    rows = (line.split() for line in listed.stdout.splitlines())
    return [(int(pid), int(parent), state) for pid, parent, state in rows]
