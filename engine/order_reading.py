"""Orders as they read at this moment: whether one is still to be paid depends on the scripts' clock."""

from __future__ import annotations

import time
from dataclasses import replace

import structlog

from engine.errors import Unavailable, Unknown
from engine.orders import OrderFilter, OrderStory
from engine.ports import OrderStore
from engine.reservations import ReservationEngine

log = structlog.get_logger(__name__)


class OrderReader:
    """Reads orders with their payments and history."""

    def __init__(self, orders: OrderStore, reservations: ReservationEngine) -> None:
        self._orders = orders
        self._reservations = reservations

    async def order(self, tenant: str, order_id: str) -> OrderStory:
        """Raises ``Unknown`` and ``StorageUnavailable``."""
        story = await self._orders.story(tenant, order_id)
        if story is None:
            raise Unknown("order", order_id)
        return replace(story, order=story.order.at(await self._now_ms(tenant)))

    async def orders(self, tenant: str, wanted: OrderFilter) -> list[OrderStory]:
        """Orders that read as wanted, oldest first. Raises ``StorageUnavailable``."""
        now_ms = await self._now_ms(tenant)
        stories = await self._orders.list_stories(tenant, wanted, now_ms)
        return [replace(story, order=story.order.at(now_ms)) for story in stories]

    async def _now_ms(self, tenant: str) -> int:
        try:
            return await self._reservations.now_ms(tenant)
        except Unavailable:
            # Orders stand in Postgres and can be read without Redis; the two clocks differ by little.
            log.debug("order_read_by_own_clock")
            return time.time_ns() // 1_000_000
