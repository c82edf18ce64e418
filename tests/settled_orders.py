"""One order in Postgres, and settlements that are applied to it without any Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from engine.domain import Outcome, SettlementKind
from engine.settings import Settings
from persistence.database import create_engine_from, transaction
from persistence.settling import AppliedSettlement, apply_settlements

PAYS = SettlementKind.COMPLETE
RELEASES = SettlementKind.RELEASE
CANCELS = SettlementKind.CANCEL
HOLDS = SettlementKind.HOLD

Step = tuple[SettlementKind, str | None, Outcome]
"""What a settlement asks for, the payment that it brings, and what the scripts said."""


@asynccontextmanager
async def open_order(database_url: str) -> AsyncIterator[AsyncEngine]:
    """A database with one order of 12.50, a session on offer, and a further attempt that came to nothing."""
    engine = create_engine_from(Settings(database_url=database_url))
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "insert into orders (id, tenant, customer, email, currency, amount_minor, status, provider,"
                " request_fingerprint, success_url, cancel_url)"
                " values ('o1', 't', 'ann', 'a@b.example', 'GBP', 1250, 'pending', 'stripe', 'f', 's', 'c')"
            )
        )
        for number in (1, 2):
            await connection.execute(
                text(
                    "insert into attempts (order_id, number, provider, idempotency_key, parameters, status, session_id)"
                    " values ('o1', :number, 'stripe', 'o1:' || :key, '{}', :status, 'cs' || :key)"
                ),
                {"number": number, "key": str(number), "status": "open" if number == 1 else "failed"},
            )
    try:
        yield engine
    finally:
        await engine.dispose()


async def store(
    connection: AsyncConnection, identifier: str, kind: SettlementKind, payment: str | None, state: str = "stored"
) -> None:
    """A settlement as binding leaves it."""
    await connection.execute(
        text(
            "insert into settlements (id, provider, dedup_key, kind, tenant, order_id, session_id, payment_ref,"
            " amount_minor, currency, state)"
            " values (:id, 'stripe', :id, :kind, 't', 'o1', 'cs1', :payment, :amount, 'GBP', :state)"
        ),
        {"id": identifier, "kind": kind, "payment": payment, "amount": 1250 if payment else None, "state": state},
    )


async def apply(database: AsyncEngine, *steps: Step, at_once: bool) -> None:
    """Store settlements and apply them, all in one transaction or each in one of its own."""
    applied = []
    async with transaction(database) as connection:
        for number, (kind, payment, outcome) in enumerate(steps):
            await store(connection, f"s{number}", kind, payment)
            applied.append(AppliedSettlement(f"s{number}", outcome))
        if at_once:
            assert await apply_settlements(connection, applied) == len(steps)
    if not at_once:
        for one in applied:
            async with transaction(database) as connection:
                assert await apply_settlements(connection, [one]) == 1


async def rows(database: AsyncEngine, query: str) -> Sequence[Row[Any]]:
    """What a statement finds or returns."""
    async with transaction(database) as connection:
        return (await connection.execute(text(query))).all()


async def status_of_order(database: AsyncEngine) -> str:
    """How the order stands."""
    return str((await rows(database, "select status from orders"))[0].status)


async def statuses_of_payments(database: AsyncEngine) -> dict[str, str]:
    """How the payments stand, by reference."""
    return {row.ref: row.status for row in await rows(database, "select ref, status from payments")}


async def told(database: AsyncEngine) -> list[str]:
    """What happened to the order."""
    return [row.event for row in await rows(database, "select event from order_history order by id")]


async def ledger(database: AsyncEngine) -> list[tuple[str, str, int]]:
    """What is owed back: of which payment, why and how much."""
    query = """
        select p.ref, f.cause, f.amount_minor from refunds f join payments p on p.id = f.payment_id
        where f.status = 'owed' order by 1
    """
    return [(row.ref, row.cause, row.amount_minor) for row in await rows(database, query)]
