"""Giving back the units of an id that was granted twice: Redis forgets an id a week after its end, Postgres does not.

Such a repeat is not in the books. The persister sets its entries aside; here what it holds in Redis is released.
"""

from __future__ import annotations

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from engine.domain import Outcome
from engine.errors import IllegalTransition, Unknown
from engine.reservations import ReservationEngine
from persistence.applying import decode_entry
from persistence.database import transaction
from persistence.repositories.set_aside import load_unresolved_repeats, mark_resolved

log = structlog.stdlib.get_logger(__name__)

MOST_IN_ONE_RUN = 100


class Repeats:
    """Releases repeated ids from the list in ``set_aside_entries``, so that a crash in between forgets none."""

    def __init__(self, database: AsyncEngine, reservations: ReservationEngine) -> None:
        self._database = database
        self._reservations = reservations

    async def release(self) -> int:
        """Release what is left to be released; answers how many. Raises ``Unavailable``."""
        released = 0
        while True:
            async with transaction(self._database) as connection:
                waiting = await load_unresolved_repeats(connection, MOST_IN_ONE_RUN)
            if not waiting:
                return released
            for row_id, entry in waiting:
                repeat = decode_entry(entry).reservation
                await self._give_back(repeat.tenant, repeat.id, repeat.created_at_ms)
                async with transaction(self._database) as connection:
                    await mark_resolved(connection, row_id)
                released += 1

    async def _give_back(self, tenant: str, identifier: str, created_at_ms: int) -> None:
        try:
            now = await self._reservations.read(tenant, identifier)
            # After a rebuild the id is the first reservation again, which keeps what it has.
            if now.created_at_ms != created_at_ms:
                return
            settled = await self._reservations.release(tenant, identifier)
            if settled.outcome is Outcome.ALREADY_COMPLETED:
                settled = await self._reservations.cancel(tenant, identifier, restock=True)
        except (Unknown, IllegalTransition):
            return
        log.warning("repeated_id_released", tenant=tenant, reservation=identifier, outcome=settled.outcome)
