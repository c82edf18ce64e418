"""Many buyers in several processes at once, under whichever scheme of counting they are given.

Buyers come together, and what each decides from what it saw follows only when all have come: that is the moment
between a look and an act, or between the start of a checkout and its payment, which a race test must not miss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import Any, Protocol

from redis.asyncio import Redis

from engine.redis_client import create_redis
from engine.settings import Settings

PROCESSES = 4
SECONDS = 60


class Scheme(Protocol):
    """A way to give out portions. ``come`` looks or takes; ``pay`` acts on that; True when the buyer got one."""

    async def come(self, redis: Redis, settings: Settings, buyer: str) -> Any:
        """What the buyer is told when arriving."""
        ...

    async def pay(self, redis: Redis, settings: Settings, buyer: str, told: Any) -> bool:
        """Whether the buyer ends up with a portion."""
        ...


@dataclass(frozen=True)
class Crowd:
    """So many buyers in one process, by one scheme.

    A crowd that ``dies_after_coming`` does nothing more, as a process that was killed then.
    """

    scheme: Scheme
    buyers: int
    dies_after_coming: bool = False


@dataclass(frozen=True)
class Task:
    """What one process is told to do."""

    url: str
    partitions: int
    crowd: Crowd
    place: int
    in_turn: bool


_barrier: Barrier


def _join(barrier: Barrier) -> None:
    global _barrier  # noqa: PLW0603 - a barrier can't be sent to a process, only be inherited by it
    _barrier = barrier


def meet() -> None:
    """Wait until all four processes are here."""
    _barrier.wait(SECONDS)


@contextmanager
def four_processes() -> Iterator[Executor]:
    """Processes that wait for crowds; started once, since that takes longer than any race."""
    context = get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    with ProcessPoolExecutor(PROCESSES, mp_context=context, initializer=_join, initargs=(barrier,)) as executor:
        yield executor


def contend(executor: Executor, settings: Settings, crowds: list[Crowd], *, in_turn: bool = False) -> int:
    """How many buyers got a portion. ``in_turn``: a crowd comes only when all of the one before have come."""
    assert len(crowds) == PROCESSES
    tasks = [Task(settings.redis_url, settings.partitions, crowd, place, in_turn) for place, crowd in enumerate(crowds)]
    return sum(executor.map(_crowd, tasks, timeout=SECONDS))


def _crowd(task: Task) -> int:
    return asyncio.run(_buy(task))


async def _buy(task: Task) -> int:
    settings = Settings(
        redis_url=task.url, partitions=task.partitions, sandbox=True, redis_timeout_seconds=20, redis_connections=16
    )
    redis, scheme = create_redis(settings), task.crowd.scheme
    names = [f"buyer-{task.place}-{buyer}" for buyer in range(task.crowd.buyers)]
    told: list[Any] = []
    for place in range(PROCESSES if task.in_turn else 1):
        await asyncio.to_thread(meet)
        if place == task.place or not task.in_turn:
            told = await asyncio.gather(*(scheme.come(redis, settings, name) for name in names))
    await asyncio.to_thread(meet)
    got = [False]
    if not task.crowd.dies_after_coming:
        pairs = zip(names, told, strict=True)
        got = await asyncio.gather(*(scheme.pay(redis, settings, name, each) for name, each in pairs))
    await redis.aclose()
    return sum(got)
