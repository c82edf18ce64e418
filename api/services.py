"""Everything that the handlers and the jobs call, built without I/O, started and put away by a role's life."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from api.authentication import KeyRing
from api.foundation import Foundation, lay_foundation
from api.sandbox.mount import Sandbox
from engine.admission import AdmissionState
from engine.catalogue import CatalogueService
from engine.checkout import CheckoutService
from engine.code_reservations import CodeReservations
from engine.domain import Provider
from engine.order_acts import OrderActs
from engine.order_reading import OrderReader
from engine.overdue import OverdueAttempts, no_offset
from engine.paying import Paying
from engine.payments.paystack import PaystackPayments
from engine.payments.port import PaymentPorts
from engine.payments.stripe import StripePayments
from engine.reconciling import ProviderReconciler
from engine.refunds import RefundService
from engine.reservations import ReservationEngine
from engine.settings import Settings
from engine.settlement import SettlementService
from persistence.definitions import PoolDefinitions
from persistence.repositories.attempts import PostgresAttempts
from persistence.repositories.catalogue import PostgresCatalogue
from persistence.repositories.keys import KeyRepository
from persistence.repositories.orders import PostgresOrders
from persistence.repositories.reconciling import PostgresReconciling
from persistence.repositories.refunds import PostgresRefunds
from persistence.repositories.reservations import ReservationRepository
from persistence.repositories.settlements import PostgresSettlements
from persistence.repositories.tenants import load_tenants_in_redis


@dataclass(frozen=True, slots=True)
class Services:
    """One process's services. ``sandbox`` is None outside dev and tests."""

    foundation: Foundation
    keys: KeyRing
    definitions: PoolDefinitions
    catalogue: CatalogueService
    orders: OrderReader
    settlement: SettlementService
    payments: PaymentPorts
    checkout: CheckoutService
    acts: OrderActs
    refunds: RefundService
    overdue: OverdueAttempts
    reconciler: ProviderReconciler
    sandbox: Sandbox | None

    @property
    def settings(self) -> Settings:
        return self.foundation.settings

    @property
    def database(self) -> AsyncEngine:
        return self.foundation.database

    @property
    def redis(self) -> Redis:
        return self.foundation.redis

    @property
    def state(self) -> AdmissionState:
        return self.foundation.state

    @property
    def engine(self) -> ReservationEngine:
        return self.foundation.engine

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start what runs in the background, and put everything away after the block. Raises ``UnsafeRedis``."""
        async with self.foundation.running():
            if self.sandbox is not None:
                await self.sandbox.start()
            try:
                yield
            finally:
                if self.sandbox is not None:
                    await self.sandbox.stop()
                await self.checkout.close()
                for port in self.payments.values():
                    await port.close()
                await self.keys.close()


def build_services(settings: Settings) -> Services:
    """The services of one process, not yet connected."""
    foundation = lay_foundation(settings)
    database, engine = foundation.database, foundation.engine
    sandbox = _sandbox(foundation) if settings.sandbox else None
    offset_ms = no_offset if sandbox is None else sandbox.offset_ms
    definitions = PoolDefinitions(database, engine, foundation.state, offset_ms)
    catalogue, orders = PostgresCatalogue(database), PostgresOrders(database, settings.prefix)
    settlement = SettlementService(
        PostgresSettlements(database, settings.prefix, settings.mismatched_payment),
        engine,
        settings.delayed_hold_seconds,
    )
    payments, offered = _payments(settings), _offered(settings)
    attempts = PostgresAttempts(database, settings.prefix, settings.mismatched_payment)
    held = CodeReservations(settings, engine, ReservationRepository(database), catalogue, definitions)
    paying = Paying(
        held=held,
        orders=orders,
        attempts=attempts,
        payments=payments,
        settlements=settlement,
        most_attempts=settings.checkout_attempts,
    )
    return Services(
        foundation=foundation,
        keys=KeyRing(KeyRepository(database).find, dev=settings.sandbox),
        definitions=definitions,
        catalogue=CatalogueService(catalogue, definitions, engine),
        orders=OrderReader(orders, engine),
        settlement=settlement,
        payments=payments,
        checkout=CheckoutService(
            held=held,
            orders=orders,
            paying=paying,
            offered=offered,
        ),
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
        reconciler=ProviderReconciler(
            reservations=engine,
            store=PostgresReconciling(database),
            payments=payments,
            offered=offered,
            settlements=settlement,
            clock_offset_ms=offset_ms,
        ),
        sandbox=sandbox,
    )


def _payments(settings: Settings) -> PaymentPorts:
    return {
        Provider.STRIPE: StripePayments(
            settings.stripe_secret_key.get_secret_value(),
            settings.stripe_webhook_secret.get_secret_value(),
            api_base=settings.stripe_api_base,
            timeout_seconds=settings.stripe_timeout_seconds,
            tolerance_seconds=settings.signature_tolerance_seconds,
        ),
        Provider.PAYSTACK: PaystackPayments(
            settings.paystack_secret_key.get_secret_value(),
            api_base=settings.paystack_api_base,
            timeout_seconds=settings.paystack_timeout_seconds,
        ),
    }


def _offered(settings: Settings) -> frozenset[Provider]:
    """Who can be paid through: the providers whose key is set."""
    keys = {Provider.STRIPE: settings.stripe_secret_key, Provider.PAYSTACK: settings.paystack_secret_key}
    return frozenset(provider for provider, key in keys.items() if key.get_secret_value().strip())


def _sandbox(foundation: Foundation) -> Sandbox:
    async def clock_moved(offset_ms: int) -> None:
        for tenant in await load_tenants_in_redis(foundation.database):
            await foundation.engine.move_clock(tenant, offset_ms)

    return Sandbox(foundation.settings, foundation.database, clock_moved)
