"""The migrated schema is the one that the tables describe, names included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import sql
from sqlalchemy import Connection, Table, inspect, text
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

import persistence.tables  # noqa: F401  (fills the metadata)
from api.servers import PostgresServer
from engine.domain import (
    AttemptStatus,
    LatePayment,
    OrderStatus,
    PaymentStatus,
    PoolStatus,
    Provider,
    ReservationStatus,
    SettlementKind,
    SettlementState,
)
from engine.errors import StorageUnavailable
from engine.settings import Settings
from persistence.base import Base
from persistence.database import create_engine_from
from persistence.migrations import configuration, migrate

LONGEST_NAME = 63
"""Postgres cuts longer names off, and two could then be one."""


@pytest.fixture
async def migrated(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine_from(Settings(database_url=database_url))
    yield engine
    await engine.dispose()


@pytest.fixture
def empty(postgres_server: PostgresServer) -> Iterator[Settings]:
    """Settings that name a database with nothing in it."""
    name = f"empty_{uuid4().hex[:12]}"
    postgres_server.ensure_database(name)
    yield Settings(database_url=postgres_server.url_of(name))
    with postgres_server.connect() as connection:
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


async def test_the_schema_is_what_the_tables_say(migrated: AsyncEngine) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True, "compare_type": True})
        return list(compare_metadata(context, Base.metadata))

    async with migrated.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_checks_and_names_are_those_of_the_tables(migrated: AsyncEngine) -> None:
    """What the comparison above does not look at: check constraints, and how everything is called."""

    def described(connection: Connection) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
        inspector = inspect(connection)
        there, said = {}, {}
        for table in Base.metadata.sorted_tables:
            indexes = inspector.get_indexes(table.name)
            there[table.name] = {str(check["name"]) for check in inspector.get_check_constraints(table.name)} | {
                str(inspector.get_pk_constraint(table.name)["name"]),
                *(str(key["name"]) for key in inspector.get_foreign_keys(table.name)),
                *(str(unique["name"]) for unique in inspector.get_unique_constraints(table.name)),
                *(str(index["name"]) for index in indexes if "duplicates_constraint" not in index),
            }
            said[table.name] = _names(table)
        return there, said

    async with migrated.connect() as connection:
        there, said = await connection.run_sync(described)
    assert there == said
    names = [name for of_table in there.values() for name in of_table]
    assert len(names) == len(set(names))
    assert all(len(name) <= LONGEST_NAME for name in names)


def _names(table: Table) -> set[str]:
    return {str(constraint.name) for constraint in table.constraints} | {str(index.name) for index in table.indexes}


async def test_the_checks_say_the_same(migrated: AsyncEngine, empty: Settings) -> None:
    """Each check as migrated equals the one that the tables would create."""
    described = create_engine_from(empty)
    async with described.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        wanted = await _checks(connection)
    await described.dispose()
    async with migrated.connect() as connection:
        assert await _checks(connection) == wanted
    assert len(wanted) > 30


async def _checks(connection: AsyncConnection) -> dict[str, str]:
    query = "select conname, pg_get_constraintdef(oid) from pg_constraint where contype = 'c' and conrelid <> 0"
    return {row.conname: row.pg_get_constraintdef for row in await connection.execute(text(query))}


ENUMS = {
    ("pools", "status"): PoolStatus,
    ("pools", "late_payment"): LatePayment,
    ("codes", "late_payment"): LatePayment,
    ("reservations", "status"): ReservationStatus,
    ("orders", "status"): OrderStatus,
    ("orders", "provider"): Provider,
    ("attempts", "status"): AttemptStatus,
    ("payments", "status"): PaymentStatus,
    ("settlements", "state"): SettlementState,
    ("settlements", "kind"): SettlementKind,
}


@pytest.mark.parametrize(("table", "column"), ENUMS)
async def test_words_are_the_domains(migrated: AsyncEngine, table: str, column: str) -> None:
    query = text("select pg_get_constraintdef(oid) from pg_constraint where conname = :name")
    async with migrated.connect() as connection:
        definition = str(await connection.scalar(query, {"name": f"ck_{table}_{column}"}))
    assert definition.split("'")[1::2] == [word.value for word in ENUMS[table, column]]


async def test_up_from_nothing_by_several_at_once(empty: Settings) -> None:
    await asyncio.gather(*(migrate(empty) for _ in range(3)))
    await migrate(empty)
    engine = create_engine_from(empty)
    async with engine.connect() as connection:
        revisions = (await connection.scalars(text("select version_num from alembic_version"))).all()
    await engine.dispose()
    assert revisions == [ScriptDirectory.from_config(configuration()).get_current_head()]


async def test_a_migration_that_fails_leaves_nothing(empty: Settings) -> None:
    engine = create_engine_from(empty)
    async with engine.begin() as connection:
        # The last thing that the first schema makes is taken already.
        await connection.execute(text("create view redemptions as select 1 as one"))
    with pytest.raises(ProgrammingError, match="redemptions"):
        await migrate(empty)
    async with engine.connect() as connection:
        tables = await connection.scalars(text("select tablename from pg_tables where schemaname = 'public'"))
        assert tables.all() == []
    await engine.dispose()


async def test_postgres_away_is_told() -> None:
    settings = Settings(database_url="postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    with pytest.raises(StorageUnavailable):
        await migrate(settings)


async def test_what_breaks_a_rule_is_refused(migrated: AsyncEngine) -> None:
    async with migrated.connect() as connection:
        with pytest.raises(IntegrityError, match="ck_orders_not_negative"):
            await connection.execute(
                text(
                    "insert into orders (id, tenant, customer, email, currency, amount_minor, status, provider,"
                    " request_fingerprint, success_url, cancel_url)"
                    " values ('o', 't', 'c', 'e', 'GBP', -1, 'pending', 'stripe', '', '', '')"
                )
            )


async def test_a_completed_reservation_with_a_code_is_a_redemption(migrated: AsyncEngine) -> None:
    insert = text(
        "insert into reservations (tenant, id, status, version, created_at_ms, expires_at_ms, completed_at_ms, ttl_ms,"
        " fingerprint, metadata, code, period, customer, order_id)"
        " values ('t', :id, :status, 2, 1, 1000, :completed, 1, '', '{}', :code, '2026-27', 'ann', 'o1')"
    )
    async with migrated.begin() as connection:
        for identifier, status, completed, code in (
            ("redeemed", "completed", 1_800_000_000_500, "SCHOOL10"),
            ("open", "reserved", None, "SCHOOL10"),
            ("plain", "completed", 1, ""),
        ):
            await connection.execute(insert, {"id": identifier, "status": status, "completed": completed, "code": code})
        (row,) = (await connection.execute(text("select * from redemptions"))).all()
    assert (row.reservation_id, row.code, row.period, row.customer, row.order_id) == (
        "redeemed",
        "SCHOOL10",
        "2026-27",
        "ann",
        "o1",
    )
    assert row.completed_at.isoformat() == "2027-01-15T08:00:00.500000+00:00"
