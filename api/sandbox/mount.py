"""The sandbox in one piece: what the app mounts, starts and stops."""

from __future__ import annotations

import asyncio

import structlog
from fastapi import APIRouter
from sqlalchemy.ext.asyncio import AsyncEngine

from api.sandbox.control import ClockMoved, Control
from api.sandbox.deliveries import Deliveries
from api.sandbox.disputes import StandInDisputes
from api.sandbox.page import PayPage
from api.sandbox.paystack_api import PaystackApi
from api.sandbox.refunds import StandInRefunds
from api.sandbox.sessions import StandInSessions
from api.sandbox.stripe_api import StripeApi
from engine.domain import Provider
from engine.settings import Settings
from persistence.repositories.sandbox import SandboxStore
from persistence.waiting import end_task

log = structlog.get_logger(__name__)

TURN_SECONDS = 1.0
"""How often the background task looks for what fell due by itself."""

MOST_ROUNDS = 50
"""Bound on the rounds in which a moved clock is caught up with; the background task does the rest."""


class Sandbox:
    """The stand-in providers. Mount ``router`` (its paths begin with ``/sandbox``), call ``start`` and ``stop``.

    ``clock_moved`` is told the test clock's new offset in ms after every move. All state is in Postgres, so several
    API processes show the same sandbox, and a restart changes nothing.
    """

    def __init__(self, settings: Settings, engine: AsyncEngine, clock_moved: ClockMoved) -> None:
        self._store = SandboxStore(engine)
        base_url = settings.base_url
        secrets = {
            Provider.STRIPE: settings.stripe_webhook_secret.get_secret_value(),
            Provider.PAYSTACK: settings.paystack_secret_key.get_secret_value(),
        }
        self._deliveries = Deliveries(self._store, base_url, secrets)
        self._sessions = StandInSessions(self._store, self._deliveries, base_url)
        self._refunds = StandInRefunds(self._store, self._deliveries)
        self._task: asyncio.Task[None] | None = None
        control = Control(
            self._store,
            self._sessions,
            self._refunds,
            StandInDisputes(self._store, self._deliveries),
            clock_moved=clock_moved,
            catch_up=self.catch_up,
        )
        self.router = APIRouter(prefix="/sandbox")
        for part in (
            StripeApi(self._store, self._sessions, self._refunds, self._deliveries),
            PaystackApi(self._store, self._refunds, self._deliveries, base_url),
            PayPage(self._sessions),
            control,
        ):
            self.router.include_router(part.router)

    async def offset_ms(self) -> int:
        """How far the test clock is ahead of the machine's, in ms."""
        async with self._store.transaction() as repository:
            return await repository.offset_ms()

    async def catch_up(self) -> None:
        """Expire and refund what is due and deliver what waits, until nothing is left that is due now."""
        for _ in range(MOST_ROUNDS):
            if not await self._turn():
                return

    async def start(self) -> None:
        """Begin expiring sessions and delivering webhooks in the background."""
        self._task = asyncio.create_task(self._run(), name="sandbox")

    async def stop(self) -> None:
        """End the background task and close connections; what is undelivered stays in Postgres."""
        if self._task is not None:
            await end_task(self._task)
            self._task = None
        await self._deliveries.close()

    async def _turn(self) -> int:
        fell_due = await self._sessions.expire_due() + await self._refunds.process_due()
        return fell_due + await self._deliveries.deliver_due()

    async def _run(self) -> None:
        while True:
            try:
                busy = await self._turn()
            except Exception:
                # Postgres may be away for a while; without this task no webhook would ever arrive again.
                log.exception("sandbox_turn_failed")
                busy = 0
            if not busy:
                await self._deliveries.wait(TURN_SECONDS)
