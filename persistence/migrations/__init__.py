"""Bringing a database to the newest schema; works from an installed wheel, without an alembic.ini."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from engine.settings import Settings
from persistence.database import create_engine_from, hold_lock, transaction


def configuration() -> Config:
    """Alembic's configuration, with the scripts of this package."""
    config = Config()
    config.set_main_option("script_location", "persistence:migrations")
    config.set_main_option("path_separator", "os")
    return config


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Run the missing migrations on a connection, inside its transaction."""
    config = configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


async def migrate(settings: Settings) -> None:
    """Bring the database to the newest schema, all or nothing; several processes at once wait for each other.

    Raises ``StorageUnavailable`` when Postgres can't be reached.
    """
    engine = create_engine_from(settings, pool_size=1)
    try:
        async with transaction(engine) as connection:
            await hold_lock(connection, "lastportion:migrate")
            await connection.run_sync(upgrade)
    finally:
        await engine.dispose()
