"""The connection pool to Postgres, and the one way in which everything here uses a transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from engine.errors import StorageUnavailable
from engine.settings import Settings

_UNAVAILABLE_CLASSES = ("08", "40", "53", "57", "58")
"""SQLSTATE classes that say "not now": lost connection, rolled back for another's sake, out of resources,
cancelled or shutting down, system error."""

_READ_ONLY = "25006"
"""What a server answers that was demoted to a standby: a fail-over is under way."""


def create_engine_from(settings: Settings, pool_size: int | None = None) -> AsyncEngine:
    """A pool with bounded connect, statement and network waits; sessions run in UTC.

    ``pool_size`` overrides the setting. No connection is made before the first use.
    """
    url = make_url(settings.database_url)
    if url.drivername in {"postgresql", "postgres"}:
        url = url.set(drivername="postgresql+psycopg")
    timeout_ms = int(settings.database_timeout_seconds * 1000)
    return create_async_engine(
        url,
        pool_size=pool_size or settings.database_pool_size,
        # A task that holds a session lock does its work over other connections, however small the pool.
        max_overflow=2,
        pool_timeout=settings.database_timeout_seconds,
        pool_pre_ping=True,
        connect_args={
            # libpq counts whole seconds and takes anything below 2 as 2.
            "connect_timeout": max(2, round(settings.database_timeout_seconds)),
            "tcp_user_timeout": timeout_ms,
            "application_name": "lastportion",
            "options": f"-c statement_timeout={timeout_ms} -c timezone=UTC",
        },
    )


def is_unavailable(error: BaseException) -> bool:
    """Whether a database error means "try again later" rather than "this is wrong"."""
    if isinstance(error, PoolTimeout):
        return True
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        return error.connection_invalidated or type(error.orig).__name__ == "OperationalError"
    return state[:2] in _UNAVAILABLE_CLASSES or state == _READ_ONLY


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """One transaction: committed at the end of the block, rolled back when it raises or is cancelled.

    Raises ``StorageUnavailable`` when Postgres can't be reached or gives up. After a connection lost during the
    commit it is unknown whether it took place, so whatever is done in a block must bear being done again.
    """
    try:
        async with engine.begin() as connection:
            yield connection
    except (DBAPIError, PoolTimeout) as error:
        if is_unavailable(error):
            raise StorageUnavailable from error
        raise


async def hold_lock(connection: AsyncConnection, name: str) -> None:
    """Wait for the lock ``name`` until this transaction ends. The wait is not bounded by the statement time-out."""
    await connection.execute(text("set local statement_timeout = 0"))
    await connection.execute(text("select pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name})
