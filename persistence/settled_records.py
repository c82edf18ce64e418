"""Reservations that nothing but a stored settlement knows any more, brought into the books before an epoch begins.

A settlement is committed with the record of its reservation, which may itself be on its way to Postgres only. When
Redis loses it, that record is all that is left of what was sold: its units must be held in the new epoch until the
settlement is applied, or they would be sold again.
"""

from __future__ import annotations

import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.domain import Reservation
from engine.records import decode_reservation
from persistence.repositories.reservations import upsert_reservations

log = structlog.stdlib.get_logger(__name__)

STORED_AT_ONCE = 1000

_ONLY_SETTLED = text("""
select s.id, s.tenant, s.reservation_id, s.record
from settlements as s
where s.state = 'stored' and s.record <> '' and not exists (
    select from reservations as r where r.tenant = s.tenant and r.id = s.reservation_id)
order by s.received_at, s.id
""")


async def store_settled_records(connection: AsyncConnection) -> int:
    """Write reservations that Postgres lacks, as the settlements that wait for them recorded them; answers how many.

    To be called when no script can write any more and no commit that relies on an earlier epoch is under way.
    """
    async with connection.begin():
        newest: dict[tuple[str, str], Reservation] = {}
        for row in await connection.execute(_ONLY_SETTLED):
            try:
                reservation = decode_reservation(row.tenant, row.reservation_id, row.record)
            except (ValueError, LookupError):
                log.error("settlement_record_unreadable", settlement=row.id, exc_info=True)
                continue
            before = newest.setdefault((row.tenant, row.reservation_id), reservation)
            if before.version < reservation.version:
                newest[row.tenant, row.reservation_id] = reservation
        found = list(newest.values())
        for begin in range(0, len(found), STORED_AT_ONCE):
            await upsert_reservations(connection, found[begin : begin + STORED_AT_ONCE])
    if found:
        log.warning("reservations_known_by_settlements_only", reservations=len(found))
    return len(found)
