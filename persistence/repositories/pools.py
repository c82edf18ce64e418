"""Pool definitions in Postgres: what is committed, and how much of it Redis is known to have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import exists, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.domain import LatePayment, PoolDefinition, PoolStatus
from persistence.tables import Pool, RedisEpoch, Tenant, definition_rev


async def ensure_tenant(connection: AsyncConnection, tenant: str) -> None:
    """Write the tenant's row with its first definition."""
    await connection.execute(insert(Tenant).values(id=tenant).on_conflict_do_nothing())


async def upsert_pool(connection: AsyncConnection, definition: PoolDefinition) -> PoolDefinition:
    """Commit a definition under the next rev; the tenant's row must be there."""
    decided: dict[str, Any] = {
        "cap": definition.cap,
        "opens_at_ms": definition.opens_at_ms,
        "closes_at_ms": definition.closes_at_ms,
        "status": definition.status.value,
        "per_customer": definition.per_customer,
        "late_payment": definition.late_payment.value,
        "updated_at": func.now(),
    }
    # The rev of an update is drawn once the row is locked: drawn before, two writers could commit in one order
    # and number in the other, and Redis would keep what Postgres has overwritten.
    statement = (
        insert(Pool)
        .values(tenant=definition.tenant, id=definition.pool, rev=definition_rev.next_value(), **decided)
        .on_conflict_do_update(index_elements=["tenant", "id"], set_={**decided, "rev": definition_rev.next_value()})
        .returning(*_COLUMNS)
    )
    return _definition((await connection.execute(statement)).one())


async def load_pools(connection: AsyncConnection, tenant: str, pools: Sequence[str]) -> list[PoolDefinition]:
    """The definitions of these pools, as far as they exist."""
    rows = await connection.execute(select(*_COLUMNS).where(Pool.tenant == tenant, Pool.id.in_(pools)))
    return [_definition(row) for row in rows]


async def load_pools_beginning(connection: AsyncConnection, tenant: str, beginning: str) -> list[PoolDefinition]:
    """The definitions of all pools whose id begins so."""
    rows = await connection.execute(
        select(*_COLUMNS).where(Pool.tenant == tenant, func.starts_with(Pool.id, beginning)).order_by(Pool.id)
    )
    return [_definition(row) for row in rows]


async def load_unpushed_of(connection: AsyncConnection, tenant: str, pools: Sequence[str]) -> list[PoolDefinition]:
    """Those of these definitions that Redis may not have.

    One that Redis had and has no more must not be pushed as if it were new: its counts would begin at nothing.
    """
    rows = await connection.execute(
        select(*_COLUMNS).where(Pool.tenant == tenant, Pool.id.in_(pools), Pool.pushed_rev < Pool.rev)
    )
    return [_definition(row) for row in rows]


async def load_unpushed(connection: AsyncConnection, limit: int) -> list[PoolDefinition]:
    """Definitions that Redis may not have, oldest first."""
    rows = await connection.execute(select(*_COLUMNS).where(Pool.pushed_rev < Pool.rev).order_by(Pool.rev).limit(limit))
    return [_definition(row) for row in rows]


async def was_ever_pushed(connection: AsyncConnection, tenant: str) -> bool:
    """Whether any pool of the tenant is known to have reached Redis."""
    reached = exists().where(Pool.tenant == tenant, Pool.pushed_rev > 0)
    return bool(await connection.scalar(select(reached)))


async def mark_pushed(connection: AsyncConnection, definition: PoolDefinition, epoch: int) -> None:
    """Note that Redis has this definition, unless an epoch has begun since.

    A push that went into data which a rebuild is replacing must happen again: the rebuild reads Postgres after its
    epoch's row is written, so whatever was committed before a mark that succeeds here is in what it reads.
    """
    await connection.execute(
        update(Pool)
        .where(
            Pool.tenant == definition.tenant,
            Pool.id == definition.pool,
            Pool.pushed_rev < definition.rev,
            ~exists().where(RedisEpoch.epoch > epoch),
        )
        .values(pushed_rev=definition.rev)
    )


async def count_units(connection: AsyncConnection, tenant: str, pool: str) -> int:
    """Units of completed reservations of a pool, as persisted."""
    counted = await connection.scalar(
        text(
            "select coalesce(sum(c.quantity), 0)::bigint from reservation_claims c"
            " join reservations r on r.tenant = c.tenant and r.id = c.reservation_id"
            " where c.tenant = :tenant and c.pool = :pool"
            " and (r.status = 'completed' or (r.status = 'cancelled' and not r.restocked))"
        ),
        {"tenant": tenant, "pool": pool},
    )
    return int(counted or 0)


_COLUMNS = (
    Pool.tenant,
    Pool.id,
    Pool.cap,
    Pool.rev,
    Pool.opens_at_ms,
    Pool.closes_at_ms,
    Pool.status,
    Pool.per_customer,
    Pool.late_payment,
)


def _definition(row: Any) -> PoolDefinition:
    return PoolDefinition(
        tenant=row.tenant,
        pool=row.id,
        cap=row.cap,
        rev=row.rev,
        opens_at_ms=row.opens_at_ms,
        closes_at_ms=row.closes_at_ms,
        status=PoolStatus(row.status),
        per_customer=row.per_customer,
        late_payment=LatePayment(row.late_payment),
    )
