"""Orders that were paid, in Postgres, and a provider that has the money: what refunds are tested on, without Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from engine.domain import Provider, RefundCause
from engine.orders import RefundShown
from engine.payments.port import Dispute, EventKind, ProviderEvent, ProviderRefund, RefundTotal
from engine.refunds import RefundService
from engine.settings import Settings
from persistence.database import create_engine_from, transaction
from persistence.refunding import owe_all_of, owe_refunds
from persistence.repositories.refunds import PostgresRefunds, load_refunds
from tests.scripted_provider import ScriptedProvider

TENANT = "school"
CLAIM_SECONDS = 900

_numbers = count(1)


@dataclass
class Books:
    """What is written down of orders and payments, and who can be asked for money back."""

    database: AsyncEngine
    stripe: ScriptedProvider
    paystack: ScriptedProvider
    store: PostgresRefunds
    service: RefundService

    async def run(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        """What a statement finds or returns."""
        async with transaction(self.database) as connection:
            done = await connection.execute(text(query), values)
            return [tuple(row) for row in done] if done.returns_rows else []

    async def add_order(self, order: str = "o1", status: str = "paid") -> None:
        """An order as it is when it was paid."""
        await self.run(
            "insert into orders (id, tenant, customer, email, currency, amount_minor, status, provider,"
            " request_fingerprint, success_url, cancel_url)"
            " values (:id, :tenant, 'ann', 'a@b.example', 'GBP', 4900, :status, 'stripe', 'f', 's', 'c')",
            id=order,
            tenant=TENANT,
            status=status,
        )
        if status in ("paid", "confirmed", "cancelled"):
            await self.run("insert into order_history (order_id, event) values (:id, 'paid')", id=order)
        if status in ("confirmed", "cancelled"):
            await self.run("insert into order_history (order_id, event) values (:id, :event)", id=order, event=status)

    async def add_payment(
        self,
        ref: str = "pi_1",
        amount_minor: int = 4900,
        *,
        order: str | None = "o1",
        status: str = "kept",
        provider: Provider = Provider.STRIPE,
        currency: str = "GBP",
    ) -> None:
        """Money that arrived, known to us and to its provider."""
        self.port(provider).payments[ref] = (amount_minor, currency)
        await self.run(
            "insert into payments (id, tenant, order_id, provider, ref, amount_minor, currency, status)"
            " values (:ref, :tenant, :order, :provider, :ref, :amount, :currency, :status)",
            ref=ref,
            tenant=TENANT,
            order=order,
            provider=provider.value,
            amount=amount_minor,
            currency=currency,
            status=status,
        )

    async def owe(
        self, ref: str = "pi_1", cause: RefundCause = RefundCause.DUPLICATE, provider: Provider = Provider.STRIPE
    ) -> None:
        """A payment has to go back."""
        async with transaction(self.database) as connection:
            await connection.execute(text("update payments set status = 'refund_owed' where ref = :ref"), {"ref": ref})
            await owe_refunds(connection, {(provider.value, ref): cause})

    async def cancel(self, order: str = "o1") -> None:
        """The seller cancels a paid order."""
        async with transaction(self.database) as connection:
            await connection.execute(text("update orders set status = 'cancelled' where id = :id"), {"id": order})
            await connection.execute(
                text("insert into order_history (order_id, event) values (:id, 'cancelled')"), {"id": order}
            )
            await owe_all_of(connection, [order], RefundCause.CANCELLED)

    async def hear(self, news: ProviderRefund | RefundTotal | Dispute, provider: Provider = Provider.STRIPE) -> None:
        """A verified event arrives."""
        await self.service.receive(provider, told(news))

    async def let_pause_pass(self) -> None:
        """Until refunds that wait are due."""
        await self.run("update refunds set next_try_at = now() where next_try_at > now()")

    async def let_claims_go_stale(self) -> None:
        """Until refunds that a worker has had in hand may be taken by another."""
        await self.run(
            "update refunds set claimed_at = claimed_at - make_interval(secs => :age) where claim is not null",
            age=CLAIM_SECONDS + 1,
        )

    async def refunds(self) -> list[tuple[Any, ...]]:
        """Status, round and amount of the ledger's rows, oldest first."""
        return await self.run("select status, round, amount_minor from refunds order by created_at, id")

    async def payment(self, ref: str = "pi_1") -> tuple[Any, ...]:
        """Status of a payment, and what went back of it."""
        (row,) = await self.run("select status, refunded_minor from payments where ref = :ref", ref=ref)
        return row

    async def order(self, order: str = "o1") -> tuple[Any, ...]:
        """Status of an order, and what went back of it."""
        (row,) = await self.run("select status, refunded_minor from orders where id = :id", id=order)
        return row

    async def events(self, order: str = "o1") -> list[str]:
        """What happened to an order."""
        return [
            row[0]
            for row in await self.run("select event from order_history where order_id = :id order by id", id=order)
        ]

    async def shown(self, order: str = "o1") -> list[RefundShown]:
        """The refunds of an order as a reader of it sees them."""
        async with transaction(self.database) as connection:
            return (await load_refunds(connection, [order])).get(order, [])

    def port(self, provider: Provider) -> ScriptedProvider:
        return self.paystack if provider is Provider.PAYSTACK else self.stripe


def told(news: ProviderRefund | RefundTotal | Dispute) -> ProviderEvent:
    """An event as an adapter hands it over once its signature was checked."""
    is_dispute = isinstance(news, Dispute)
    return ProviderEvent(
        kind=EventKind.DISPUTE if is_dispute else EventKind.REFUND,
        type="charge.dispute.updated" if is_dispute else "refund.updated",
        dedup_key=f"evt_{next(_numbers)}",
        session_id=None,
        payment_ref=news.payment_ref,
        amount_minor=None,
        currency=None,
        created_at_s=None,
        refund=news if isinstance(news, ProviderRefund) else None,
        refund_total=news if isinstance(news, RefundTotal) else None,
        dispute=news if isinstance(news, Dispute) else None,
    )


async def somebody_waits(database: AsyncEngine, who: asyncio.Task[None]) -> None:
    """Until a lock is waited for in this database."""
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    count = 0
    while count == 0:
        async with transaction(database) as connection:
            count = (await connection.execute(text(waiting))).scalar_one()
        assert not who.done()


@asynccontextmanager
async def open_books(database_url: str) -> AsyncIterator[Books]:
    """Books in this database. A second set on the same is a second process."""
    database = create_engine_from(Settings(database_url=database_url))
    stripe, paystack = ScriptedProvider(lambda: 0), ScriptedProvider(lambda: 0, sessions_end=False)
    store = PostgresRefunds(database)
    payments = {Provider.STRIPE: stripe, Provider.PAYSTACK: paystack}
    try:
        yield Books(database, stripe, paystack, store, RefundService(store, payments, CLAIM_SECONDS))
    finally:
        await database.dispose()
