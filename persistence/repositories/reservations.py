"""Reservations in Postgres: written in bulk at their newest version, read back whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import orjson
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from engine.domain import Claim, Reservation, ReservationStatus
from persistence.database import transaction

_FIELDS = """tenant text, id text, status text, version integer, created_at_ms bigint, expires_at_ms bigint,
    completed_at_ms bigint, ended_at_ms bigint, late boolean, over_cap bigint, restocked boolean, ttl_ms bigint,
    fingerprint text, payment_ref text, refused_payments text[], customer text, metadata json, order_id text,
    code text, period text"""
_NAMES = ", ".join(field.split()[0] for field in _FIELDS.split(","))

# Rows travel as one JSON text: one parameter whatever their number, and quicker than an array per column. What no
# transition changes (customer, metadata, order, code, period, claims) is written once, with the first version.
_UPSERT = text(f"""
with given as (
    select * from json_to_recordset(cast(:rows as json)) as given(
        {_FIELDS}, pools text[], quantities bigint[], counted boolean[])
), written as (
    insert into reservations ({_NAMES})
    select {_NAMES} from given order by tenant, id
    on conflict (tenant, id) do update set
        status = excluded.status, version = excluded.version, expires_at_ms = excluded.expires_at_ms,
        completed_at_ms = excluded.completed_at_ms, ended_at_ms = excluded.ended_at_ms, late = excluded.late,
        over_cap = excluded.over_cap, restocked = excluded.restocked, ttl_ms = excluded.ttl_ms,
        payment_ref = excluded.payment_ref, refused_payments = excluded.refused_payments
    where reservations.version < excluded.version and reservations.created_at_ms = excluded.created_at_ms
    returning tenant, id
), claimed as (
    insert into reservation_claims (tenant, reservation_id, position, pool, quantity, counted)
    select given.tenant, given.id, claim.position, claim.pool, claim.quantity, claim.counted
    from written
    join given using (tenant, id)
    cross join unnest(given.pools, given.quantities, given.counted)
        with ordinality as claim(pool, quantity, counted, position)
    on conflict (tenant, reservation_id, position) do update set counted = excluded.counted
    where reservation_claims.counted <> excluded.counted
)
select count(*) from written
""")  # noqa: S608  (the names stand above)

_REPEATED = text("""
select given.tenant, given.id
from json_to_recordset(cast(:rows as json)) as given(tenant text, id text, created_at_ms bigint)
join reservations as stored using (tenant, id)
where stored.created_at_ms <> given.created_at_ms
""")

SELECT_RESERVATIONS = f"""
select {_NAMES}, pools, quantities, counted
from reservations
cross join lateral (
    select array_agg(pool order by position) as pools, array_agg(quantity order by position) as quantities,
        array_agg(counted order by position) as counted
    from reservation_claims as claim
    where claim.tenant = reservations.tenant and claim.reservation_id = reservations.id
) as claims
"""  # noqa: S608  (the names stand above)
"""A query over ``reservations`` whose rows :func:`reservation_of` understands; a ``where`` may follow."""

_FIND = text(SELECT_RESERVATIONS + "where tenant = :tenant and id = :id")
_HAS_POOLS = text("select exists (select from pools where tenant = :tenant)")


async def upsert_reservations(connection: AsyncConnection, reservations: Collection[Reservation]) -> int:
    """Write each reservation, unless Postgres has this version or a newer one; answers how many were written.

    Each (tenant, id) may stand here once. One that Postgres holds with another ``created_at`` is left alone: see
    :func:`find_repeated`.
    """
    if not reservations:
        return 0
    rows = orjson.dumps([_row(reservation) for reservation in reservations]).decode()
    return int(await connection.scalar(_UPSERT, {"rows": rows}) or 0)


async def find_repeated(connection: AsyncConnection, reservations: Iterable[Reservation]) -> set[tuple[str, str]]:
    """Those (tenant, id) that Postgres holds as another reservation: an id granted twice."""
    rows = [{"tenant": r.tenant, "id": r.id, "created_at_ms": r.created_at_ms} for r in reservations]
    found = await connection.execute(_REPEATED, {"rows": orjson.dumps(rows).decode()})
    return {(row.tenant, row.id) for row in found}


async def find_reservation(connection: AsyncConnection, tenant: str, identifier: str) -> Reservation | None:
    """The reservation at its newest persisted version, or None."""
    row = (await connection.execute(_FIND, {"tenant": tenant, "id": identifier})).one_or_none()
    return None if row is None else reservation_of(row)


def reservation_of(row: Row[Any]) -> Reservation:
    """A reservation from a row of :data:`SELECT_RESERVATIONS`."""
    return Reservation(
        tenant=row.tenant,
        id=row.id,
        status=ReservationStatus(row.status),
        version=row.version,
        created_at_ms=row.created_at_ms,
        expires_at_ms=row.expires_at_ms,
        claims=tuple(Claim(pool, quantity) for pool, quantity in zip(row.pools, row.quantities, strict=True)),
        counted=tuple(row.counted),
        ttl_ms=row.ttl_ms,
        fingerprint=row.fingerprint,
        completed_at_ms=row.completed_at_ms,
        ended_at_ms=row.ended_at_ms,
        late=row.late,
        over_cap=row.over_cap,
        restocked=row.restocked,
        payment_ref=row.payment_ref,
        refused_payments=tuple(row.refused_payments),
        customer=row.customer,
        metadata=row.metadata,
        order_id=row.order_id,
        code=row.code,
        period=row.period,
    )


class ReservationRepository:
    """What the engine asks of Postgres when Redis does not know: ``engine.reservations.RecordLookup``."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def find_reservation(self, tenant: str, identifier: str) -> Reservation | None:
        """The reservation as Postgres holds it, or None. Raises ``StorageUnavailable``."""
        async with transaction(self._engine) as connection:
            return await find_reservation(connection, tenant, identifier)

    async def has_pools(self, tenant: str) -> bool:
        """Whether the tenant has any pool. Raises ``StorageUnavailable``."""
        async with transaction(self._engine) as connection:
            return bool(await connection.scalar(_HAS_POOLS, {"tenant": tenant}))


def _row(r: Reservation) -> dict[str, object]:
    return {
        "tenant": r.tenant,
        "id": r.id,
        "status": r.status,
        "version": r.version,
        "created_at_ms": r.created_at_ms,
        "expires_at_ms": r.expires_at_ms,
        "completed_at_ms": r.completed_at_ms,
        "ended_at_ms": r.ended_at_ms,
        "late": r.late,
        "over_cap": r.over_cap,
        "restocked": r.restocked,
        "ttl_ms": r.ttl_ms,
        "fingerprint": r.fingerprint,
        "payment_ref": r.payment_ref,
        "refused_payments": r.refused_payments,
        "customer": r.customer,
        "metadata": r.metadata,
        "order_id": r.order_id,
        "code": r.code,
        "period": r.period,
        "pools": [claim.pool for claim in r.claims],
        "quantities": [claim.quantity for claim in r.claims],
        "counted": r.counted,
    }
