"""Whoever touches an order, its payments and their refunds locks them in this order: nobody waits in a circle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from engine.domain import Outcome, Provider, RefundCause
from engine.errors import ProviderError
from engine.payments.port import ProviderRefund, ProviderRefundStatus
from persistence.database import transaction
from persistence.refunding import PaymentName, owe_refunds
from persistence.repositories.refunds import PostgresRefunds
from persistence.settling import AppliedSettlement, apply_settlements
from tests.books import CLAIM_SECONDS, Books, open_books, somebody_waits
from tests.settled_orders import PAYS, ledger, open_order, rows, store


@pytest.fixture
async def books(database_url: str) -> AsyncIterator[Books]:
    """With one paid order."""
    async with open_books(database_url) as opened:
        await opened.add_order()
        yield opened


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    """With one order that nobody has paid."""
    async with open_order(database_url) as engine:
        yield engine


async def test_orders_and_payments_stay_locked_in_one_order(books: Books) -> None:
    """Counting, paying, cancelling and refusing at once end, and nobody is chosen as a deadlock's victim."""
    payments: list[PaymentName] = []
    for number in range(6):
        await books.add_payment(f"pi_{number}", 1000)
        payments.append(("stripe", f"pi_{number}"))
    books.stripe.before["refund"] = [ProviderError(provider_code="no"), None] * 3

    async def tell(number: int) -> None:
        await books.hear(books.stripe.send_back_by_hand(f"pi_{number}", 100))

    await asyncio.gather(
        *(tell(number) for number in range(6)), books.cancel(), *(books.service.pay_due() for _ in range(4))
    )
    for _ in range(3):
        await books.let_pause_pass()
        await books.service.pay_due()
    assert [books.stripe.sent_back(ref) for _, ref in payments] == [1000] * 6
    assert await books.order() == ("refunded", 6000)


async def test_who_gives_a_claim_up_takes_the_order_before_the_refund(books: Books) -> None:
    """As whoever counts news does: the other way round the two would wait for each other."""
    await books.add_payment("pi_1")
    await books.owe()
    claimed = await books.store.claim([Provider.STRIPE], CLAIM_SECONDS)
    assert claimed is not None
    async with books.database.begin() as connection:
        await connection.execute(text("select from orders for update"))
        giving_up = asyncio.create_task(books.store.put_back(claimed, "no", 60, is_refused=False, may_have_acted=True))
        await somebody_waits(books.database, giving_up)
        await connection.execute(text("select from refunds for update nowait"))
    await giving_up
    assert await books.refunds() == [("owed", 1, 4900)]


async def test_the_persister_takes_the_order_before_a_payment_that_it_corrects(database: AsyncEngine) -> None:
    async with transaction(database) as connection:
        await store(connection, "wrong", PAYS, "p1", "mismatched")
        await store(connection, "right", PAYS, "p1")
        await connection.execute(
            text(
                "insert into payments (tenant, order_id, provider, ref, amount_minor, currency, status, settlement_id)"
                " values ('t', 'o1', 'stripe', 'p1', 1000, 'GBP', 'flagged', 'wrong')"
            )
        )
        await owe_refunds(connection, {("stripe", "p1"): RefundCause.MISMATCHED})

    async def persist() -> None:
        async with transaction(database) as connection:
            await apply_settlements(connection, [AppliedSettlement("right", Outcome.DUPLICATE_PAYMENT)])

    async with database.begin() as connection:
        await connection.execute(text("select from orders for update"))
        persisting = asyncio.create_task(persist())
        await somebody_waits(database, persisting)
        await connection.execute(text("select from payments for update nowait"))
        await connection.execute(text("select from refunds for update nowait"))
    await persisting
    assert await ledger(database) == [("p1", "duplicate", 1250)]


async def test_the_persister_and_news_of_refunds_do_not_wait_for_each_other(database: AsyncEngine) -> None:
    """Payments are carried over, cancelled and told to be refunded, in many transactions at once."""
    refunds = PostgresRefunds(database)

    async def pays(number: int) -> None:
        async with transaction(database) as connection:
            for one in (number, number + 100):
                await store(connection, f"s{one}", PAYS, f"p{one}")
            await apply_settlements(
                connection,
                [
                    AppliedSettlement(f"s{number}", Outcome.DUPLICATE_PAYMENT),
                    AppliedSettlement(f"s{number + 100}", Outcome.DUPLICATE_PAYMENT),
                ],
            )

    async def tells(number: int) -> None:
        for _ in range(2):
            refund = ProviderRefund(f"re_{number}", f"p{number}", 250, "GBP", ProviderRefundStatus.SUCCEEDED)
            await refunds.record(Provider.STRIPE, f"p{number}", [refund])

    numbers = range(12)
    await asyncio.gather(*(act(number) for number in numbers for act in (tells, pays, tells)))
    await refunds.count_pending(100)
    (order,) = await rows(database, "select refunded_minor from orders")
    assert order.refunded_minor == 12 * 250
    assert sum(amount for _, _, amount in await ledger(database)) == 24 * 1250 - 12 * 250
