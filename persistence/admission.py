"""Admission: the one place that decides whether Redis's data may be used, and under which epoch.

Every process runs one. It looks at once when something seems wrong and every second anyway; where Redis is the
server that Postgres knows and its data reaches what Postgres has, it merely loads the scripts, else it begins a new
epoch. A lock in Postgres lets one process at a time decide; the others find the epoch current.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from engine.admission import AdmissionState, Admitted
from engine.errors import NotReady, StorageUnavailable
from engine.keys import BUILD_FIELD, Keys, partition_of
from engine.scripts import load
from engine.settings import Settings
from persistence import metrics
from persistence.catching_up import apply_waiting
from persistence.database import transaction
from persistence.identity import Identity, UnsafeRedis, check_safety, read_identity
from persistence.locks import own_connection, take_lock
from persistence.outbox import EntryId
from persistence.repositories.epochs import Epoch, History, load_history
from persistence.repositories.offsets import load_offsets
from persistence.succession import Succession
from persistence.survey import Survey, keys_of, remove_older_builds, survey
from persistence.tables import Pool
from persistence.trouble import PASSING, Trouble
from persistence.waiting import heed_cancellation, wait_for_any

log = structlog.stdlib.get_logger(__name__)

LOOK_EVERY_SECONDS = 1.0
SHORTEST_PAUSE_SECONDS = 0.1
"""Between two looks, however many callers report a loss."""

PAUSE_AFTER_TROUBLE_SECONDS = 0.4
TENANTS_IN_ONE_LOOK = 1000


class PartitionsChanged(RuntimeError):
    """The number of partitions is not the one that this deployment was installed with."""


class Admission:
    """Keeps ``state`` true to what Redis is. ``ensure`` admits once, ``watch`` goes on doing so."""

    def __init__(self, settings: Settings, database: AsyncEngine, redis: Redis, state: AdmissionState) -> None:
        self._settings = settings
        self._database = database
        self._redis = redis
        self._state = state
        self._identity: Identity | None = None
        self._tails: tuple[EntryId | None, ...] = ()
        self._trouble = Trouble("admission")

    async def ensure(self) -> None:
        """See to it that Redis is admitted, by loading the scripts or by beginning an epoch.

        Raises ``NotReady`` or ``StorageUnavailable`` when that has to be tried again, ``UnsafeRedis`` and
        :class:`PartitionsChanged` when an operator has to change something first.
        """
        try:
            async with own_connection(self._database) as connection:
                await take_lock(connection, f"{self._settings.prefix}:admission")
                was_rebuilt = await self._admit(connection)
            if was_rebuilt and self._state.admitted:
                removed = await remove_older_builds(self._redis, self._settings, self._state.admitted.build)
                log.info("older_builds_removed", keys=removed)
        except RedisError as error:
            raise NotReady(f"Redis can't be reached: {error}") from error

    async def check_safe(self) -> None:
        """Raises ``UnsafeRedis``, so that a process refuses to start; a Redis that is away is judged when it comes."""
        try:
            await check_safety(self._redis, self._settings)
        except RedisError as error:
            self._trouble.met(error)

    async def watch(self) -> None:
        """Look every second, and at once when ``state.lost`` is set, until cancelled.

        Trouble is logged once and tried again. A server that can't be reached stays admitted: should another one
        answer next, the scripts are not loaded there.
        """
        while True:
            try:
                if not await self._look():
                    self._state.revoke()
                    metrics.EPOCH.set(0)
                    await self.ensure()
                self._trouble.over()
            except (*PASSING, UnsafeRedis, PartitionsChanged) as error:
                self._trouble.met(error)
                await asyncio.sleep(PAUSE_AFTER_TROUBLE_SECONDS)
            heed_cancellation()
            await asyncio.sleep(SHORTEST_PAUSE_SECONDS)
            await wait_for_any(LOOK_EVERY_SECONDS, self._state.lost)

    async def _look(self) -> bool:
        try:
            is_current = await self.is_current()
        except (RedisError, OSError):
            self._state.reachable = False
            raise
        except NotReady:
            self._state.revoke()
            raise
        self._state.reachable = True
        return is_current

    async def is_current(self) -> bool:
        """Whether what this process was admitted to is still there, by one look at Redis.

        Where a caller reported a loss, each tenant's own mark is looked at as well, if Postgres can name the tenants.
        Raises ``RedisError``, and ``NotReady`` when Redis became a replica.
        """
        admitted = self._state.admitted
        if admitted is None:
            return False
        was_reported = self._state.lost.is_set()
        self._state.lost.clear()
        seen = await survey(self._redis, self._settings, admitted.build)
        self._note_backlog(seen)
        if (
            await read_identity(self._redis, self._settings) != self._identity
            or any(mark != admitted.epoch for mark in seen.marks)
            or not all(_reaches(tail, before) for tail, before in zip(seen.tails, self._tails, strict=True))
        ):
            return False
        self._tails = seen.tails
        return not was_reported or await self._are_tenants_there(admitted.build)

    async def _are_tenants_there(self, build: int) -> bool:
        try:
            async with transaction(self._database) as connection:
                tenants = await _tenants_in_redis(connection)
        except StorageUnavailable:
            # Reserving must go on without Postgres; whoever finds a tenant missing reports it again.
            return True
        return await self._are_marked(tenants, build)

    async def _admit(self, connection: AsyncConnection) -> bool:
        """Load or begin anew, under the lock; answers whether data was rebuilt."""
        identity = await read_identity(self._redis, self._settings)
        await check_safety(self._redis, self._settings)
        async with connection.begin():
            history = await load_history(connection)
            offsets = await load_offsets(connection)
        if offsets and len(offsets) != self._settings.partitions:
            raise PartitionsChanged(
                f"LASTPORTION_PARTITIONS is {self._settings.partitions}, but this deployment was installed with "
                f"{len(offsets)}: tenants would be looked for where they are not."
            )
        reason, is_whole = await self._judge(connection, history, offsets, identity)
        was_rebuilt = False
        if reason is not None:
            succession = Succession(self._settings, self._redis, connection, history)
            admitted, was_rebuilt = await succession.begin(identity, reason, is_whole=is_whole)
            metrics.ADMISSIONS.labels(reason).inc()
            await self._write_committed(admitted)
        elif history.current is not None:
            admitted = Admitted(history.current.epoch, history.current.build)
        await load(self._redis, admitted, sandbox=self._settings.sandbox)
        if reason is not None:
            await apply_waiting(self._settings, self._database, self._redis, admitted)
        self._identity = identity
        self._tails = (await survey(self._redis, self._settings, admitted.build)).tails
        self._state.admit(admitted)
        metrics.EPOCH.set(admitted.epoch)
        log.info("admitted", epoch=admitted.epoch, build=admitted.build, server=identity.server)
        return was_rebuilt

    async def _judge(
        self, connection: AsyncConnection, history: History, offsets: Mapping[int, EntryId], identity: Identity
    ) -> tuple[str | None, bool]:
        """Why a new epoch is needed, None when the current one is; and whether the data may be kept in it."""
        current = history.current
        if current is None:
            return "first", False
        seen = await survey(self._redis, self._settings, current.build)
        lost = await self._find_loss(connection, history, current, offsets, seen)
        if lost is not None:
            return lost, False
        if identity != current.identity:
            return "identity_changed", True
        epochs = {*seen.marks, *(offset.epoch for offset in offsets.values())}
        return ("admission_interrupted" if epochs != {current.epoch} else None), True

    async def _find_loss(
        self,
        connection: AsyncConnection,
        history: History,
        current: Epoch,
        offsets: Mapping[int, EntryId],
        seen: Survey,
    ) -> str | None:
        valid = history.intact_epochs()
        if any(mark not in valid for mark in seen.marks):
            return "mark_missing"
        if any(offset.epoch not in valid or not _reaches(seen.tails[at], offset) for at, offset in offsets.items()):
            return "tail_behind"
        async with connection.begin():
            tenants = await _tenants_in_redis(connection)
        return None if await self._are_marked(tenants, current.build) else "tenant_missing"

    async def _are_marked(self, tenants: Sequence[str], build: int) -> bool:
        """Whether these tenants have their build mark: one hash may be lost by itself."""
        for begin in range(0, len(tenants), TENANTS_IN_ONE_LOOK):
            pipeline = self._redis.pipeline(transaction=False)
            for tenant in tenants[begin : begin + TENANTS_IN_ONE_LOOK]:
                partition = partition_of(tenant, self._settings.partitions)
                pipeline.hget(Keys(self._settings.prefix, partition, build).tenant(tenant), BUILD_FIELD)
            if any(mark != str(build) for mark in await pipeline.execute()):
                return False
        return True

    async def _write_committed(self, admitted: Admitted) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for keys in keys_of(self._settings, admitted.build):
            pipeline.set(keys.committed, str(EntryId(admitted.epoch, 0)))
        await pipeline.execute()

    def _note_backlog(self, seen: Survey) -> None:
        self._state.full_partitions = frozenset(
            partition
            for partition, (tail, committed) in enumerate(zip(seen.tails, seen.committed, strict=True))
            if tail is not None and _waiting(tail, committed) >= self._settings.outbox_limit
        )


async def _tenants_in_redis(connection: AsyncConnection) -> Sequence[str]:
    return list(await connection.scalars(select(Pool.tenant).where(Pool.pushed_rev > 0).distinct()))


def _reaches(tail: EntryId | None, place: EntryId | None) -> bool:
    return place is None or (tail is not None and tail >= place)


def _waiting(tail: EntryId, committed: EntryId | None) -> int:
    if committed is None or committed.epoch != tail.epoch:
        return tail.seq
    return tail.seq - committed.seq
