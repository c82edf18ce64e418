"""What one build's keys look like in Redis: each partition's mark, outbox tail and committed offset."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import chain

from redis.asyncio import Redis

from engine.keys import Keys
from engine.settings import Settings
from persistence.outbox import EntryId

SCAN_COUNT = 1000


@dataclass(frozen=True, slots=True)
class Survey:
    """Per partition, in order: None where a key is missing."""

    marks: tuple[int | None, ...]
    tails: tuple[EntryId | None, ...]
    committed: tuple[EntryId | None, ...]

    def largest_epoch(self) -> int:
        """The newest epoch of which there is a trace, 0 for none."""
        traces = chain((mark or 0 for mark in self.marks), (tail.epoch if tail else 0 for tail in self.tails))
        return max(traces, default=0)


def keys_of(settings: Settings, build: int) -> list[Keys]:
    """The keys of every partition of a build, in order of partition."""
    return [Keys(settings.prefix, partition, build) for partition in range(settings.partitions)]


async def survey(redis: Redis, settings: Settings, build: int) -> Survey:
    """Look at a build in one round trip."""
    pipeline = redis.pipeline(transaction=False)
    for keys in keys_of(settings, build):
        pipeline.get(keys.mark)
        pipeline.xrevrange(keys.outbox, count=1)
        pipeline.get(keys.committed)
    replies = await pipeline.execute()
    return Survey(
        tuple(int(mark) if mark else None for mark in replies[0::3]),
        tuple(EntryId.parse(tail[0][0]) if tail else None for tail in replies[1::3]),
        tuple(EntryId.parse(committed) if committed else None for committed in replies[2::3]),
    )


async def builds_in_redis(redis: Redis, settings: Settings) -> set[int]:
    """Every build of which any key is left. Walks the whole key space, in small steps."""
    return {keys.build async for keys, _ in _scan(redis, settings)}


async def remove_older_builds(redis: Redis, settings: Settings, build: int) -> int:
    """Delete the keys of builds below this one; answers how many keys went.

    The outboxes go last: as long as a tenant's hash is there, its outbox must be, since that is what refuses a
    script of an older epoch that is still loaded somewhere.
    """
    removed = 0
    for are_fences in (False, True):
        doomed: list[str] = []
        async for keys, key in _scan(redis, settings):
            if keys.build < build and (key == keys.outbox) is are_fences:
                doomed.append(key)
            if len(doomed) >= SCAN_COUNT:
                removed += int(await redis.unlink(*doomed))
                doomed.clear()
        if doomed:
            removed += int(await redis.unlink(*doomed))
    return removed


async def _scan(redis: Redis, settings: Settings) -> AsyncIterator[tuple[Keys, str]]:
    form = re.compile(rf"{re.escape(settings.prefix)}:\{{(\d+)\}}:(\d+):")
    async for key in redis.scan_iter(match=f"{settings.prefix}:{{*}}:*", count=SCAN_COUNT):
        if found := form.match(key):
            yield Keys(settings.prefix, int(found[1]), int(found[2])), key
