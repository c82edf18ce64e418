"""Alembic's entry: on the connection that ``migrate`` brings, else (at a developer's prompt) on one from settings."""

from __future__ import annotations

import asyncio

from alembic import context
from sqlalchemy import Connection

import persistence.tables  # noqa: F401  (fills the metadata)
from engine.settings import settings_from_environment
from persistence.base import Base
from persistence.database import create_engine_from


def run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=Base.metadata, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


async def run_from_settings() -> None:
    engine = create_engine_from(settings_from_environment(), pool_size=1)
    async with engine.begin() as connection:
        await connection.run_sync(run)
    await engine.dispose()


given: Connection | None = context.config.attributes.get("connection")
if given is None:
    asyncio.run(run_from_settings())
else:
    run(given)
