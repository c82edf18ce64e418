"""Pool definitions on their way: committed in Postgres, then pushed to Redis under a rev that only rises."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from engine.admission import AdmissionState
from engine.domain import PoolDefinition, PoolState
from engine.errors import NotReady
from engine.reservations import ReservationEngine
from persistence.database import transaction
from persistence.repositories import pools as repository

log = structlog.get_logger(__name__)

MOST_PUSHED_IN_ONE_RUN = 500


async def _no_offset() -> int:
    return 0


class PoolDefinitions:
    """Puts definitions, and pushes again what a crash or an absent Redis left behind.

    ``clock_offset_ms`` tells how far the sandbox's test clock is ahead, for a tenant's first pool.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        reservations: ReservationEngine,
        state: AdmissionState,
        clock_offset_ms: Callable[[], Awaitable[int]] = _no_offset,
    ) -> None:
        self._engine = engine
        self._reservations = reservations
        self._state = state
        self._clock_offset_ms = clock_offset_ms

    async def put(self, tenant: str, definition: PoolDefinition) -> PoolState:
        """Commit a pool's definition and push it; the definition's own tenant and rev are not looked at.

        Raises ``StorageUnavailable`` when nothing was committed, ``NotReady`` when it was and the push must wait.
        """
        async with transaction(self._engine) as connection:
            await repository.ensure_tenant(connection, tenant)
            committed = await repository.upsert_pool(connection, replace(definition, tenant=tenant))
        return await self._push(committed)

    async def push(self, tenant: str, pools: Sequence[str]) -> None:
        """Push what is committed for these pools and not known to be in Redis. Raises ``Unavailable``."""
        if not pools:
            return
        async with transaction(self._engine) as connection:
            committed = await repository.load_unpushed_of(connection, tenant, pools)
        for definition in committed:
            await self._push(definition)

    async def push_pending(self) -> int:
        """Push every definition that Redis may lack, a bounded number in one run; answers how many.

        Raises ``Unavailable``; the next run goes on from there.
        """
        async with transaction(self._engine) as connection:
            waiting = await repository.load_unpushed(connection, MOST_PUSHED_IN_ONE_RUN)
        for definition in waiting:
            await self._push(definition)
            log.info("pool_pushed_again", tenant=definition.tenant, pool=definition.pool, rev=definition.rev)
        return len(waiting)

    async def _push(self, definition: PoolDefinition) -> PoolState:
        # The epoch is read before the push: if another begins meanwhile, the mark below does not hold.
        admitted = self._state.admitted
        if admitted is None:
            raise NotReady
        async with transaction(self._engine) as connection:
            is_first = not await repository.was_ever_pushed(connection, definition.tenant)
        offset_ms = await self._clock_offset_ms() if is_first else 0
        state = await self._reservations.define_pool(definition, first_of_tenant=is_first, clock_offset_ms=offset_ms)
        async with transaction(self._engine) as connection:
            await repository.mark_pushed(connection, definition, admitted.epoch)
        return state
