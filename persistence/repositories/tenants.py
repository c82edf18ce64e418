"""Tenants, as far as Redis knows them."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from persistence.database import transaction
from persistence.tables import Pool


async def load_tenants_in_redis(engine: AsyncEngine) -> list[str]:
    """Tenants of which a pool was ever pushed, by name. Raises ``StorageUnavailable``."""
    query = select(Pool.tenant).where(Pool.pushed_rev > 0).distinct().order_by(Pool.tenant)
    async with transaction(engine) as connection:
        return list(await connection.scalars(query))
