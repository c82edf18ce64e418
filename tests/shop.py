"""A shop to test checkout and settlement with: real Redis and Postgres, and a provider that does as it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import count
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from engine.admission import AdmissionState
from engine.catalogue import CatalogueService, CodeDefinition, Discount, Product
from engine.checkout import CheckoutAnswer, CheckoutRequest, CheckoutService
from engine.code_reservations import CodeReservations
from engine.domain import PoolState, Provider
from engine.order_acts import OrderActs
from engine.order_reading import OrderReader
from engine.orders import Order, OrderStory
from engine.overdue import OverdueAttempts
from engine.paying import Paying
from engine.payments.port import EventKind, PaymentPorts, ProviderEvent
from engine.periods import PeriodKind, PeriodRule
from engine.pricing import WantedLine
from engine.redis_client import create_redis
from engine.refunds import RefundService
from engine.reservations import ReservationEngine
from engine.settings import Settings
from engine.settlement import SettlementService
from persistence.admission import Admission
from persistence.database import create_engine_from
from persistence.definitions import PoolDefinitions
from persistence.persister import Persister
from persistence.repositories.attempts import PostgresAttempts
from persistence.repositories.catalogue import PostgresCatalogue
from persistence.repositories.orders import PostgresOrders
from persistence.repositories.refunds import PostgresRefunds
from persistence.repositories.reservations import ReservationRepository
from persistence.repositories.settlements import PostgresSettlements
from tests.scripted_provider import ScriptedProvider

TENANT = "school"
PRODUCT = "practice-pack"
CODE = "SCHOOL10"


_event_numbers = count(1)


def event(
    kind: EventKind,
    session_id: str,
    *,
    amount_minor: int | None = 4410,
    currency: str | None = "GBP",
    payment_ref: str | None = None,
    dedup_key: str | None = None,
    order: str | None = None,
    attempt: int | None = None,
    created_at_s: int | None = None,
) -> ProviderEvent:
    """An event as an adapter hands it over once its signature was checked."""
    paid = kind is EventKind.PAID
    return ProviderEvent(
        kind=kind,
        type=f"checkout.session.{'completed' if paid else kind.value}",
        dedup_key=dedup_key or f"evt_{next(_event_numbers)}",
        session_id=session_id,
        payment_ref=(payment_ref or f"pi_{session_id}") if paid else None,
        amount_minor=amount_minor,
        currency=currency,
        created_at_s=created_at_s,
        marked_order_id=order,
        marked_tenant=None if order is None else TENANT,
        marked_attempt=attempt,
    )


@dataclass
class Shop:
    """One process's services, and the means to look behind them."""

    settings: Settings
    database: AsyncEngine
    redis: Any
    state: AdmissionState
    admission: Admission
    engine: ReservationEngine
    definitions: PoolDefinitions
    catalogue: CatalogueService
    held: CodeReservations
    orders: PostgresOrders
    attempts: PostgresAttempts
    settlements: PostgresSettlements
    settlement: SettlementService
    payments: PaymentPorts
    provider: ScriptedProvider
    paystack: ScriptedProvider
    paying: Paying
    checkout: CheckoutService
    acts: OrderActs
    refunds: RefundService
    overdue: OverdueAttempts
    reader: OrderReader
    persister: Persister
    clock: list[int]

    async def persist(self) -> None:
        """Carry everything that Redis holds to Postgres."""
        await self.persister.drain()

    async def stock(self, cap: int | None = 30, *, per_customer: int | None = None, percent: int = 10) -> None:
        """The product, and a code with so many redemptions."""
        await self.catalogue.put_product(Product(TENANT, PRODUCT, "Practice pack", 4900, "GBP"))
        await self.catalogue.put_code(
            CodeDefinition(
                tenant=TENANT,
                code=CODE,
                cap=cap,
                period=PeriodRule(PeriodKind.NONE),
                discount=Discount(percent_off=Decimal(percent)),
                per_customer=per_customer,
            )
        )

    async def stock_naira(self) -> None:
        """A product that Paystack can be paid for; the code takes 10 % off it as well."""
        await self.catalogue.put_product(Product(TENANT, "ng", "Practice pack", 250000, "NGN"))

    async def buy(
        self, key: str | None = None, customer: str = "ada", code: str | None = CODE, **changes: Any
    ) -> CheckoutAnswer:
        """Check out one product."""
        return await self.checkout.check_out(replace(request(key, customer, code), **changes))

    async def pool(self) -> PoolState:
        """The code's pool."""
        return await self.engine.read_pool(TENANT, f"codes/{CODE}/all")

    async def story(self, order_id: str) -> OrderStory:
        """An order as it reads once everything is persisted."""
        await self.persist()
        return await self.reader.order(TENANT, order_id)

    async def order(self, order_id: str) -> Order:
        return (await self.story(order_id)).order

    async def advance(self, seconds: int) -> None:
        """Move the scripts' clock, and with it the provider's."""
        self.clock[0] += seconds
        await self.engine.move_clock(TENANT, self.clock[0] * 1000)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query finds in Postgres."""
        async with self.database.begin() as connection:
            return [tuple(row) for row in await connection.execute(text(query))]


def request(key: str | None = None, customer: str = "ada", code: str | None = CODE) -> CheckoutRequest:
    """One product, with the code."""
    return CheckoutRequest(
        tenant=TENANT,
        customer=customer,
        email=f"{customer}@example.com",
        lines=(WantedLine(PRODUCT, 1),),
        success_url="https://shop.example/thanks",
        cancel_url="https://shop.example/cart",
        code=code,
        idempotency_key=key,
    )


@asynccontextmanager
async def open_shop(redis_url: str, database_url: str, **changes: Any) -> AsyncIterator[Shop]:
    """A shop on these servers, admitted. A second one on the same servers is a second process."""
    settings = Settings.model_validate(
        {"redis_url": redis_url, "database_url": database_url, "sandbox": True, "partitions": 2} | changes
    )
    database, redis = create_engine_from(settings), create_redis(settings)
    state, clock = AdmissionState(), [0]
    admission = Admission(settings, database, redis, state)
    engine = ReservationEngine(redis, settings, state, ReservationRepository(database))

    async def offset_ms() -> int:
        return clock[0] * 1000

    definitions = PoolDefinitions(database, engine, state, offset_ms)
    catalogue, orders = PostgresCatalogue(database), PostgresOrders(database, settings.prefix)
    attempts = PostgresAttempts(database, settings.prefix, settings.mismatched_payment)
    settlements = PostgresSettlements(database, settings.prefix, settings.mismatched_payment)
    held = CodeReservations(settings, engine, ReservationRepository(database), catalogue, definitions)
    settlement = SettlementService(settlements, engine, settings.delayed_hold_seconds)
    base_s = await redis.time()
    provider = ScriptedProvider(now_s=lambda: int(base_s[0]) + clock[0])
    paystack = ScriptedProvider(now_s=provider.now_s, sessions_end=False)
    payments: PaymentPorts = {Provider.STRIPE: provider, Provider.PAYSTACK: paystack}
    paying = Paying(
        held=held,
        orders=orders,
        attempts=attempts,
        payments=payments,
        settlements=settlement,
        most_attempts=settings.checkout_attempts,
    )
    checkout = CheckoutService(
        held=held,
        orders=orders,
        paying=paying,
        offered=frozenset(payments),
    )
    reading = create_redis(settings, blocking=True)
    await admission.ensure()
    try:
        yield Shop(
            settings=settings,
            database=database,
            redis=redis,
            state=state,
            admission=admission,
            engine=engine,
            definitions=definitions,
            catalogue=CatalogueService(catalogue, definitions, engine),
            held=held,
            orders=orders,
            attempts=attempts,
            settlements=settlements,
            settlement=settlement,
            payments=payments,
            provider=provider,
            paystack=paystack,
            paying=paying,
            checkout=checkout,
            acts=OrderActs(orders, paying, held, settlement),
            refunds=RefundService(PostgresRefunds(database), payments, settings.refund_claim_seconds),
            overdue=OverdueAttempts(
                reservations=engine,
                held=held,
                attempts=attempts,
                payments=payments,
                settlements=settlement,
                clock_offset_ms=offset_ms,
            ),
            reader=OrderReader(orders, engine),
            persister=Persister(settings, database, reading, state),
            clock=clock,
        )
    finally:
        await checkout.close()
        await redis.aclose()
        await reading.aclose()
        await database.dispose()
