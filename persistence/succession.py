"""Beginning a new epoch: take over what the old data still holds, keep it or rebuild it, fence it, mark it admitted.

The order is what makes it safe, whatever line it is interrupted at:

1. The surviving tail of the outbox is stored, as the persister would.
2. The epoch's row is committed. Nothing is ever admitted under a number that was begun before.
3. Each old outbox is fenced, at the very entry that was taken over last. From here no script of an older epoch
   writes, since its first write is refused.
4. Commits that rely on the old epoch are waited for, and what only a stored settlement knows is written down. Where
   the data is whole, and nothing is missing in it that reached Postgres by another way than the outbox, it stays. Else
   a new build is written from Postgres, after the offsets were moved, so that no persister can commit what it read
   before.
5. Offsets and admission are one transaction.

An interrupted one is followed by another epoch, which starts over.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.admission import Admitted
from engine.errors import NotReady
from engine.scripts import begin_epoch
from engine.settings import Settings
from persistence.applying import apply_batch, batch_of
from persistence.completeness import find_missing
from persistence.identity import Identity
from persistence.outbox import EntryId, last_ids, read_entries, unbroken
from persistence.rebuild import rebuild
from persistence.repositories.epochs import History, begin, mark_admitted, wait_for_commits
from persistence.repositories.offsets import Move, OffsetMoved, load_offsets, move_offsets, set_offsets
from persistence.settled_records import store_settled_records
from persistence.survey import builds_in_redis, keys_of, survey

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Succession:
    """One attempt at a new epoch. ``connection`` holds admission's lock and does all of its work in Postgres."""

    settings: Settings
    redis: Redis
    connection: AsyncConnection
    history: History

    async def begin(self, identity: Identity, reason: str, *, is_whole: bool) -> tuple[Admitted, bool]:
        """Begin an epoch and see it admitted; answers it, and whether the data was rebuilt.

        ``is_whole`` says that nothing speaks against keeping the data so far. Raises ``NotReady`` when the ground
        moved meanwhile: then it has to be tried again.
        """
        reached = await self._take_over_all() if self.history.current else {}
        keeps = is_whole and await self._all_reached(reached)
        found = set() if keeps else await builds_in_redis(self.redis, self.settings)
        if self.history.current:
            found.add(self.history.current.build)
        above = [(await survey(self.redis, self.settings, build)).largest_epoch() for build in found]
        largest_build = max([self.history.largest_build, *found])
        build = self.history.current.build if keeps and self.history.current else largest_build + 1
        async with self.connection.begin():
            epoch = await begin(self.connection, identity, build, reason, max(above, default=0))
        admitted = Admitted(epoch, build)
        log.warning("epoch_begins", epoch=epoch, build=build, reason=reason, keeps_data=keeps)
        if keeps:
            ends = {partition: await self._fence(partition, at, admitted) for partition, at in reached.items()}
            async with self.connection.begin():
                await wait_for_commits(self.connection, self.settings.prefix)
            await store_settled_records(self.connection)
            missing = await find_missing(self.connection, self.redis, self.settings, build)
            if missing is not None:
                # The fences stand; this epoch is given up for one that rebuilds.
                return await self.begin(identity, missing, is_whole=False)
            await self._admit(epoch, ends)
        else:
            await self._fence_builds(found, admitted, reached)
            await self._rebuild(admitted)
        return admitted, not keeps

    async def _rebuild(self, admitted: Admitted) -> None:
        begun = EntryId(admitted.epoch, 0)
        partitions = range(self.settings.partitions)
        async with self.connection.begin():
            await set_offsets(self.connection, partitions, begun)
        async with self.connection.begin():
            await wait_for_commits(self.connection, self.settings.prefix)
        await store_settled_records(self.connection)
        await rebuild(self.connection, self.redis, self.settings, admitted.build)
        for keys in keys_of(self.settings, admitted.build):
            if not await begin_epoch(self.redis, keys.outbox, keys.mark, "", admitted):
                raise NotReady("Somebody wrote into keys that are not admitted yet.")
        await self._admit(admitted.epoch, dict.fromkeys(partitions, begun))

    async def _admit(self, epoch: int, ends: dict[int, EntryId]) -> None:
        async with self.connection.begin():
            try:
                await move_offsets(
                    self.connection, [Move(partition, end, EntryId(epoch, 0)) for partition, end in ends.items()]
                )
            except OffsetMoved as error:
                raise NotReady("An offset moved while an epoch began.") from error
            await mark_admitted(self.connection, epoch)

    async def _take_over_all(self) -> dict[int, EntryId]:
        async with self.connection.begin():
            offsets = await load_offsets(self.connection)
        return {partition: await self._take_over(partition, offset) for partition, offset in offsets.items()}

    async def _take_over(self, partition: int, position: EntryId) -> EntryId:
        """Store what follows in the old outbox without a gap; answers how far that is."""
        outboxes = {partition: self._old_outbox(partition)}
        while True:
            read = await read_entries(self.redis, outboxes, {partition: position}, self.settings.persist_batch)
            run, _ = unbroken(position, read.get(partition, ()), across_epochs=True)
            if not run:
                return position
            try:
                async with self.connection.begin():
                    await apply_batch(self.connection, batch_of({partition: position}, run))
                position = run[-1].id
            except OffsetMoved:
                # A persister is at it as well, on the same entries.
                async with self.connection.begin():
                    position = (await load_offsets(self.connection))[partition]

    def _old_outbox(self, partition: int) -> str:
        if self.history.current is None:
            raise ValueError("before the first admission there is no outbox")
        return keys_of(self.settings, self.history.current.build)[partition].outbox

    async def _all_reached(self, reached: dict[int, EntryId]) -> bool:
        tails = await last_ids(self.redis, [self._old_outbox(partition) for partition in reached])
        return len(reached) == self.settings.partitions and all(
            tail == position for tail, position in zip(tails, reached.values(), strict=True)
        )

    async def _fence(self, partition: int, position: EntryId, admitted: Admitted) -> EntryId:
        """Fence a partition whose data stays, at the entry that was stored last; answers that entry."""
        keys = keys_of(self.settings, admitted.build)[partition]
        while not await begin_epoch(self.redis, keys.outbox, keys.mark, str(position), admitted):
            stored = await self._take_over(partition, position)
            if stored == position:
                raise NotReady("An outbox changed otherwise than by growing while an epoch began.")
            position = stored
        return position

    async def _fence_builds(self, builds: set[int], admitted: Admitted, reached: dict[int, EntryId]) -> None:
        """Fence data that is given up, so that nothing is granted in it any more; its last tail is stored first."""
        current = self.history.current.build if self.history.current else None
        for build in sorted(builds - {admitted.build}):
            for keys in keys_of(self.settings, build):
                while True:
                    if build == current and keys.partition in reached:
                        reached[keys.partition] = await self._take_over(keys.partition, reached[keys.partition])
                    (tail,) = await last_ids(self.redis, [keys.outbox])
                    if await begin_epoch(self.redis, keys.outbox, keys.mark, str(tail or ""), admitted):
                        break
