"""The persister: carries what Redis did to Postgres, behind the buyers' backs.

It reads each partition's outbox from the offset that Postgres holds, and commits rows and offset together. Killed at
any line, it goes on from the offset: nothing is lost, and nothing is stored twice, because the offset moves only
from where it was read. That several run at once costs double work and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import monotonic

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from engine.admission import AdmissionState, Admitted
from engine.errors import NotReady, Unavailable
from engine.keys import Keys
from engine.settings import Settings
from persistence import metrics
from persistence.applying import Batch, batch_of, repeats_among, store_batch
from persistence.database import transaction
from persistence.locks import check_alive, own_connection, try_lock
from persistence.outbox import Entry, EntryId, last_ids, read_entries, unbroken
from persistence.repositories.job_runs import note_failure, note_success
from persistence.repositories.offsets import OffsetMoved, load_offsets
from persistence.trimming import Trimmer
from persistence.trouble import PASSING, Trouble
from persistence.waiting import heed_cancellation, wait_for_any

log = structlog.stdlib.get_logger(__name__)

PERSISTER_JOB = "persister"
PERSISTER_PERIOD_SECONDS = 5
"""How often at least it says that it is well."""

REPORT_EVERY_SECONDS = 1.0
LOCK_EVERY_SECONDS = 1.0
BLOCK_MS = 500
"""How long one read waits for entries; also the longest that a stop takes when nothing flows."""

GATHER_SECONDS = 0.025
"""How long what comes next is let gather after a small batch: a transaction for every few entries would cost the cores
that buyers are served by, and nobody waits for the books that closely."""

SHORTEST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Place:
    """The epoch that is read, and how far Postgres has each partition's outbox; moves on with each commit."""

    admitted: Admitted
    offsets: dict[int, EntryId]


class Persister:
    """Reads all outboxes and stores them: ``run`` for a process, ``drain`` for one who waits for the end.

    ``redis`` is a client of its own, made with ``blocking=True``. ``release_repeats`` gives back the units of ids
    that were granted twice; it may raise ``Unavailable`` and is then called again.
    """

    def __init__(
        self,
        settings: Settings,
        database: AsyncEngine,
        redis: Redis,
        state: AdmissionState,
        release_repeats: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._redis = redis
        self._state = state
        self._release_repeats = release_repeats
        self._repeats_waiting = True
        self._place: Place | None = None
        self._stopped: dict[int, EntryId] = {}
        self._trimmer = Trimmer(redis, settings.trim_behind_seconds)
        self._reported_at = 0.0
        self._trouble = Trouble(PERSISTER_JOB)

    async def run(self, stop: asyncio.Event) -> None:
        """Persist until stopped. Trouble with either server is logged once, waited out and tried again."""
        pause = SHORTEST_PAUSE_SECONDS
        while not stop.is_set():
            try:
                async with own_connection(self._database) as lock:
                    await self._run_alone(lock, stop)
            except PASSING as error:
                self._trouble.met(error)
                heed_cancellation()
                await wait_for_any(pause, stop)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            else:
                pause = SHORTEST_PAUSE_SECONDS

    async def drain(self) -> int:
        """Persist until every outbox is at its end; answers how many entries were stored.

        Waits for admission, and goes on where another persister was first. Raises as :meth:`step` does.
        """
        stored = 0
        while True:
            await self._state.ready.wait()
            count = await self.step(block_ms=None)
            stored += count
            if not count and self._place is not None:
                return stored

    async def step(self, block_ms: int | None = BLOCK_MS) -> int:
        """Read once and store what was read; answers how many entries were stored.

        After any failure the offsets are read again, since it may not be known what was committed. Raises
        ``NotReady`` and ``StorageUnavailable``.
        """
        try:
            place = await self._find_place()
            if place is None:
                return 0
            stored = 0
            for batch in self._batches(place, await self._read(place, block_ms)):
                stored += await self._store(place, batch)
        except OffsetMoved:
            # Somebody else persists, or an epoch began: what was read is dropped.
            log.info("outbox_offset_moved")
            self._place = None
            return 0
        except (RedisError, OSError) as error:
            self._place = None
            raise NotReady(f"The outbox can't be read: {error or type(error).__name__}") from error
        except BaseException:
            self._place = None
            raise
        await self._release()
        return stored

    async def _run_alone(self, lock: AsyncConnection, stop: asyncio.Event) -> None:
        while not await try_lock(lock, f"{self._settings.prefix}:persist"):
            await wait_for_any(LOCK_EVERY_SECONDS, stop)
            if stop.is_set():
                return
        self._place = None
        while not stop.is_set():
            if self._state.admitted is None:
                await wait_for_any(LOCK_EVERY_SECONDS, stop, self._state.ready)
                continue
            stored = await self.step()
            if 0 < stored < self._settings.persist_batch:
                await wait_for_any(GATHER_SECONDS, stop)
            if self._place is None:
                await wait_for_any(SHORTEST_PAUSE_SECONDS, stop)
            elif monotonic() - self._reported_at >= REPORT_EVERY_SECONDS:
                await self._report(self._place)
                # A lock that was cut with its connection must be noticed, or two would work for long.
                await check_alive(lock)
            self._trouble.over()
            heed_cancellation()

    async def _find_place(self) -> Place | None:
        """Where to read on, or None while Redis is not admitted under the epoch that Postgres has."""
        admitted = self._state.admitted
        if admitted is None:
            self._place = None
        elif self._place is None or self._place.admitted != admitted:
            self._place = await self._load_place(admitted)
        return self._place

    async def _load_place(self, admitted: Admitted) -> Place | None:
        async with transaction(self._database) as connection:
            offsets = await load_offsets(connection)
        if {offset.epoch for offset in offsets.values()} != {admitted.epoch}:
            return None
        self._trimmer.forget()
        place = Place(admitted, offsets)
        await self._tell_committed(place, offsets)
        return place

    def _keys(self, place: Place, partition: int) -> Keys:
        return Keys(self._settings.prefix, partition, place.admitted.build)

    async def _read(self, place: Place, block_ms: int | None) -> dict[int, list[Entry]]:
        outboxes = {
            partition: self._keys(place, partition).outbox
            for partition, offset in place.offsets.items()
            if self._stopped.get(partition) != offset
        }
        if not outboxes:
            return {}
        # The client has no time-out of its own: a server that vanished without a word would hold the read for ever.
        async with asyncio.timeout((block_ms or 0) / 1000 + self._settings.redis_timeout_seconds):
            return await read_entries(
                self._redis, outboxes, place.offsets, self._settings.persist_batch, block_ms=block_ms
            )

    def _batches(self, place: Place, read: Mapping[int, list[Entry]]) -> list[Batch]:
        """What was read, cut to batches of one transaction each; a partition with a gap ends at the gap."""
        flow: list[Entry] = []
        for partition in sorted(read):
            run, has_gap = unbroken(place.offsets[partition], read[partition])
            flow += run
            if has_gap and not run:
                self._stop_partition(partition, place.offsets[partition], read[partition][0])
        starts = dict(place.offsets)
        batches = []
        for begin in range(0, len(flow), self._settings.persist_batch):
            batch = batch_of(starts, flow[begin : begin + self._settings.persist_batch])
            starts.update({move.partition: move.end for move in batch.moves})
            batches.append(batch)
        return batches

    def _stop_partition(self, partition: int, offset: EntryId, found: Entry) -> None:
        self._stopped[partition] = offset
        log.error("outbox_gap", partition=partition, persisted_to=str(offset), next_entry=str(found.id))

    async def _store(self, place: Place, batch: Batch) -> int:
        aside = await store_batch(self._database, batch)
        ends = {move.partition: move.end for move in batch.moves}
        place.offsets.update(ends)
        metrics.ENTRIES_STORED.inc(len(batch.entries))
        metrics.ENTRIES_SET_ASIDE.inc(len(aside))
        self._repeats_waiting |= repeats_among(aside)
        await self._tell_committed(place, ends)
        return len(batch.entries)

    async def _tell_committed(self, place: Place, offsets: Mapping[int, EntryId]) -> None:
        """Write the offsets to Redis, where the size of the backlog is judged by them."""
        self._trimmer.committed({self._keys(place, partition).outbox: at for partition, at in offsets.items()})
        pipeline = self._redis.pipeline(transaction=False)
        for partition, offset in offsets.items():
            pipeline.set(self._keys(place, partition).committed, str(offset))
        await pipeline.execute()

    async def _release(self) -> None:
        if not self._repeats_waiting or self._release_repeats is None:
            return
        try:
            await self._release_repeats()
            self._repeats_waiting = False
        except Unavailable as error:
            log.warning("repeats_not_released_yet", reason=error.code)

    async def _report(self, place: Place) -> None:
        """Trim, measure the lag, and say in ``job_runs`` how it goes."""
        self._trimmer.committed({self._keys(place, at).outbox: offset for at, offset in place.offsets.items()})
        await self._trimmer.trim()
        # Another persister may have set repeats aside and died before it released them.
        self._repeats_waiting = True
        self._stopped = {at: offset for at, offset in self._stopped.items() if place.offsets[at] == offset}
        tails = await last_ids(self._redis, [self._keys(place, partition).outbox for partition in place.offsets])
        lag = sum(
            tail.seq - offset.seq
            for offset, tail in zip(place.offsets.values(), tails, strict=True)
            if tail is not None and tail.epoch == offset.epoch
        )
        metrics.LAG_ENTRIES.set(lag)
        metrics.PARTITIONS_STOPPED.set(len(self._stopped))
        async with transaction(self._database) as connection:
            if self._stopped:
                gaps = ", ".join(f"partition {at} after {offset}" for at, offset in self._stopped.items())
                error = f"the outbox has a gap: {gaps}"
                await note_failure(connection, PERSISTER_JOB, PERSISTER_PERIOD_SECONDS, error)
            else:
                await note_success(connection, PERSISTER_JOB, PERSISTER_PERIOD_SECONDS, {"lag_entries": lag})
        self._reported_at = monotonic()
