"""Session locks of Postgres: held by a connection of their own, so that they end with the process that holds them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from engine.errors import StorageUnavailable
from persistence.database import is_unavailable

_LOCK = text("select pg_advisory_lock(hashtextextended(:name, 0))")
_TRY_LOCK = text("select pg_try_advisory_lock(hashtextextended(:name, 0))")
_UNLIMITED = text("set statement_timeout = 0")
_STILL_THERE = text("select 1")


@asynccontextmanager
async def own_connection(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection that is closed afterwards and not given back, since locks and settings cling to it.

    Its statements have no time-out. Raises ``StorageUnavailable``.
    """
    try:
        async with engine.connect() as connection:
            try:
                await connection.execute(_UNLIMITED)
                await connection.commit()
                yield connection
            finally:
                await connection.invalidate()
    except (DBAPIError, PoolTimeout) as error:
        if is_unavailable(error):
            raise StorageUnavailable from error
        raise


async def take_lock(connection: AsyncConnection, name: str) -> None:
    """Wait for the lock ``name``; held until the connection ends."""
    await connection.execute(_LOCK, {"name": name})
    await connection.commit()


async def try_lock(connection: AsyncConnection, name: str) -> bool:
    """Take the lock ``name`` if nobody has it."""
    taken = await connection.scalar(_TRY_LOCK, {"name": name})
    await connection.commit()
    return bool(taken)


async def check_alive(connection: AsyncConnection) -> None:
    """Raises when the connection was cut, and with it the locks that it held."""
    await connection.execute(_STILL_THERE)
    await connection.commit()
