"""What a seller does with an order: confirm it, or cancel it, with what was paid going back."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from engine.code_reservations import CodeReservations
from engine.domain import OrderStatus, ReservationStatus
from engine.errors import IllegalTransition, NotReady, ProviderError, ProviderTimeout, Unknown
from engine.orders import Placed, Withdrawal
from engine.paying import Paying
from engine.ports import OrderStore
from engine.settlement import SettlementService

log = structlog.get_logger(__name__)

MOST_TURNS: Final = 20
LOOKS_FOR_EFFECT: Final = 20
PAUSE_FOR_EFFECT_SECONDS: Final = 0.05
"""What is settled reaches the order with the persister's next batch, for which the caller waits a second at most."""

_UNPAID = (OrderStatus.PENDING, OrderStatus.CANCELLED)
_TAKEN_BACK = (OrderStatus.CANCELLED, OrderStatus.REFUNDED)


class OrderActs:
    """Confirms and cancels orders; each act may be repeated."""

    def __init__(
        self, orders: OrderStore, paying: Paying, held: CodeReservations, settlements: SettlementService
    ) -> None:
        self._orders = orders
        self._paying = paying
        self._held = held
        self._settlements = settlements

    async def confirm(self, tenant: str, order_id: str) -> None:
        """Say that a paid order will be served. Raises ``Unknown``, ``IllegalTransition``, ``StorageUnavailable``."""
        status = await self._orders.confirm(tenant, order_id)
        if status is None:
            raise Unknown("order", order_id)
        if status not in (OrderStatus.PAID, OrderStatus.CONFIRMED):
            raise IllegalTransition(status.value)

    async def cancel(self, tenant: str, order_id: str, *, restock: bool) -> None:
        """Take an order back: what was paid is owed back at once, what was not paid can't be paid any more.

        ``restock`` puts the units of a paid order back on sale; those of an unpaid one always go back. A payment that
        comes all the same, where the provider can't close its session, is refunded. Raises ``Unknown``,
        ``ProviderError`` and ``ProviderTimeout`` (its session may be open still; the order is as it was) and
        ``Unavailable``.
        """
        for _ in range(MOST_TURNS):
            placed = await self._found(tenant, order_id)
            if placed.order.status not in _UNPAID:
                await self._take_back(placed, restock=restock)
                return await self._wait_for_effect(tenant, order_id)
            if await self._withdraw(placed):
                return None
            # Paid or opened anew while we looked; what was paid is on its way to the order.
            await self._settlements.apply_waiting_of(order_id)
            if await self._held.is_sold(tenant, placed.order.reservation_id):
                await self._take_back(placed, restock=restock)
                return await self._wait_for_effect(tenant, order_id)
            await asyncio.sleep(PAUSE_FOR_EFFECT_SECONDS)
        raise NotReady("The order is being paid at this moment; try again.")

    async def _withdraw(self, placed: Placed) -> bool:
        """Cancel an unpaid order; False when it turned out to be paid, or to be on offer again."""
        order = placed.order
        # Money of a delayed method that is on its way can't be stopped; it goes back when it comes.
        withdrawal = await self._orders.withdraw(order.tenant, order.id)
        if withdrawal is Withdrawal.ON_OFFER and await self._close_session(placed):
            withdrawal = await self._orders.withdraw(order.tenant, order.id)
        if withdrawal is not Withdrawal.DONE:
            return False
        # Again, too, where a call before this one died here.
        await self._held.give_back(order.tenant, order.reservation_id)
        log.info("order_withdrawn", order=order.id, reservation=order.reservation_id)
        return True

    async def _close_session(self, placed: Placed) -> bool:
        try:
            return await self._paying.give_up(placed)
        except ProviderError as error:
            raise ProviderError(
                "The payment provider did not close the order's session, so it was not cancelled. Ask again.",
                is_final=error.is_final,
                **error.details,
            ) from error
        except ProviderTimeout as error:
            raise ProviderTimeout(
                "Whether the payment provider closed the order's session is not known, so it was not cancelled. "
                "Ask again."
            ) from error

    async def _wait_for_effect(self, tenant: str, order_id: str) -> None:
        for _ in range(LOOKS_FOR_EFFECT):
            if (await self._found(tenant, order_id)).order.status in _TAKEN_BACK:
                return
            await asyncio.sleep(PAUSE_FOR_EFFECT_SECONDS)

    async def _take_back(self, placed: Placed, *, restock: bool) -> None:
        order = placed.order
        if order.reservation_id is None:
            if not await self._orders.cancel_unreserved(order.tenant, order.id):
                present = await self._found(order.tenant, order.id)
                if present.order.status not in _TAKEN_BACK:
                    raise IllegalTransition(present.order.status.value)
            return
        try:
            await self._settlements.cancel(order.tenant, order.reservation_id, restock)
        except IllegalTransition as error:
            # Its money went back before, and its units with it.
            if error.details["status"] != ReservationStatus.RELEASED.value:
                raise
        log.info("order_cancelled", order=order.id, reservation=order.reservation_id)

    async def _found(self, tenant: str, order_id: str) -> Placed:
        placed = await self._orders.find(tenant, order_id)
        if placed is None:
            raise Unknown("order", order_id)
        return placed
