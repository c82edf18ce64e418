"""Looking at processes from outside: whose children they are, whether they are gone, and waiting for something."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

POLL_SECONDS = 0.02


def children_of(pid: int) -> list[int]:
    """Process ids of the direct children that still run; none when there is no such process."""
    return _children(pid, deeply=False)


def descendants_of(pid: int) -> list[int]:
    """Children, their children, and so on."""
    return _children(pid, deeply=True)


def gone(pid: int) -> bool:
    """Whether no process of this id runs; one that ended but was not collected is gone."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def command_of(pid: int) -> str:
    """The command line; empty when there is no such process."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Return as soon as the condition holds; fails the test when it does not in time."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {seconds:g} s in vain for {what}"
        time.sleep(POLL_SECONDS)


def _children(pid: int, *, deeply: bool) -> list[int]:
    try:
        found = psutil.Process(pid).children(recursive=deeply)
    except psutil.NoSuchProcess:
        return []
    return [child.pid for child in found if not gone(child.pid)]
