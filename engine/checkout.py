"""Checkout: reserve, commit, open a session, attach it, answer; in this order, so that a crash anywhere is mended.

Everything that a repeat needs follows from the tenant and its idempotency key, or stands in Postgres before the
provider hears of it: the order's id, the reservation's, and the frozen attempt, which is repeated byte for byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

import orjson
import structlog

from engine.catalogue import Offer, code_named
from engine.code_reservations import CodeReservations, Holder
from engine.domain import AttemptStatus, OrderStatus, Outcome, Provider, Reservation
from engine.errors import IdConflict, Invalid, LastportionError, NotReady, Refused
from engine.identifiers import derived_id, new_id
from engine.money import check_payable
from engine.orders import Asked, Attempt, Order, Placed, Placement
from engine.paying import Paying, Wish
from engine.ports import OrderStore
from engine.pricing import Priced, WantedLine, price

log = structlog.get_logger(__name__)

_OVER: Final = (AttemptStatus.EXPIRED, AttemptStatus.FAILED)
MOST_RESERVATIONS_TAKEN_OVER: Final = 4
"""Of the same customer's reservations that stand in the way of one checkout, how many it ends before it gives up."""


@dataclass(frozen=True, slots=True)
class CheckoutRequest:
    """What a buyer wants to pay for. Prices are no part of it."""

    tenant: str
    customer: str
    email: str
    lines: tuple[WantedLine, ...]
    success_url: str
    cancel_url: str
    code: str | None = None
    provider: Provider = Provider.STRIPE
    idempotency_key: str | None = None

    @property
    def fingerprint(self) -> str:
        """What the same idempotency key must bring again."""
        content = [
            self.customer,
            self.email,
            [(line.product, line.quantity) for line in self.lines],
            self.success_url,
            self.cancel_url,
            self.code,
            self.provider.value,
        ]
        return blake2b(orjson.dumps(content), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class CheckoutAnswer:
    """What the buyer's shop needs to go on. ``created`` is False for a repeat."""

    order: Order
    attempt: Attempt | None
    created: bool


class CheckoutService:
    """Checks out lines of products, with or without a code.

    ``offered`` are the providers that this deployment can be paid through.
    """

    def __init__(
        self,
        *,
        held: CodeReservations,
        orders: OrderStore,
        paying: Paying,
        offered: frozenset[Provider],
    ) -> None:
        self._held = held
        self._orders = orders
        self._paying = paying
        self._offered = offered
        self._running: set[asyncio.Task[CheckoutAnswer]] = set()
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    async def check_out(self, request: CheckoutRequest) -> CheckoutAnswer:
        """Reserve, store and open a session for an order; the same request under the same key gets the same again.

        Raises ``Unknown``, ``Invalid``, ``CodeNotApplicable``, ``Refused`` (nothing is held), ``IdConflict``,
        ``ProviderError`` (units given back), ``ProviderTimeout`` (still held: repeat), ``Unavailable``.
        """
        request = self._checked(request)
        # A buyer who hangs up in the middle would leave units held and no order: what was begun is finished.
        task = asyncio.create_task(self._in_turn(request))
        self._running.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for checkouts that were begun."""
        if self._running:
            await asyncio.wait(self._running)

    def _forget(self, task: asyncio.Task[CheckoutAnswer]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Also reaches the caller, unless that one hung up.
            log.info("checkout_failed", reason=getattr(error, "code", type(error).__name__))

    async def _in_turn(self, request: CheckoutRequest) -> CheckoutAnswer:
        if request.idempotency_key is None:
            return await self._begin(request, new_id())
        order_id = derived_id("order", request.tenant, request.idempotency_key)
        async with self._turn_of(order_id):
            placed = await self._orders.find(request.tenant, order_id, request.idempotency_key)
            if placed is None:
                return await self._begin(request, order_id)
            return await self._repeat(request, placed)

    @asynccontextmanager
    async def _turn_of(self, order_id: str) -> AsyncIterator[None]:
        """Twins of one key in this process go one after the other; between processes the database decides."""
        lock, users = self._turns.get(order_id, (asyncio.Lock(), 0))
        self._turns[order_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            users = self._turns[order_id][1] - 1
            if users:
                self._turns[order_id] = (lock, users)
            else:
                del self._turns[order_id]

    async def _begin(self, request: CheckoutRequest, order_id: str) -> CheckoutAnswer:
        placement = await self._prepare_or_take_over(request, order_id)
        if isinstance(placement, Placed):
            return await self._carry_on(placement, created=True)
        order = placement.order
        try:
            is_new = await self._orders.place(placement)
        except Exception:
            # Under a key a repeat, which may be under way in another process, has taken these units up by now, or
            # will; and a commit whose answer was lost may have taken place.
            if request.idempotency_key is None:
                await self._held.give_back(order.tenant, order.reservation_id)
            raise
        if not is_new:
            placed = await self._paying.find(order)
            if placed.order.reservation_id != order.reservation_id:
                await self._held.give_back(order.tenant, order.reservation_id)
            return await self._repeat(request, placed)
        log.info("order_placed", order=order_id, reservation=order.reservation_id)
        attempt = None if placement.attempt is None else Attempt(placement.attempt, order.provider)
        return await self._carry_on(Placed(order, attempt), created=True)

    async def _repeat(self, request: CheckoutRequest, placed: Placed) -> CheckoutAnswer:
        if (placed.asked_fingerprint or placed.order.request_fingerprint) != request.fingerprint:
            raise IdConflict("This Idempotency-Key was used for another checkout.", id=placed.order.id)
        return await self._carry_on(placed, created=False)

    async def _prepare_or_take_over(self, request: CheckoutRequest, order_id: str) -> Placement | Placed:
        """What a new order holds; or the order that this customer has already for the same, with a fresh attempt."""
        for _ in range(MOST_RESERVATIONS_TAKEN_OVER):
            try:
                return await self._prepare(request, order_id)
            except Refused as refused:
                taken_over = await self._take_over(request, order_id, refused)
                if taken_over is not None:
                    return taken_over
        raise NotReady("The customer's reservations change all the time; try again.")

    async def _take_over(self, request: CheckoutRequest, order_id: str, refused: Refused) -> Placed | None:
        """Go on with the reservation by which a customer's own limit is reached, or end it.

        The same lines: its order, with a fresh attempt. Other lines: it is closed and released. None when the way is
        free to reserve. Raises ``refused`` when it stands: paid for, made by other means, or renewed often enough.
        """
        held_by = refused.refusal.held_by
        if refused.refusal.outcome is not Outcome.LIMIT_REACHED or held_by is None:
            raise refused
        placed = await self._orders.find_by_reservation(request.tenant, held_by)
        if placed is None or placed.order.customer != request.customer:
            raise refused
        if placed.order.id == order_id:
            raise NotReady("This checkout is under way in another process; try again.")
        async with self._turn_of(placed.order.id):
            placed = await self._paying.find(placed.order)
            if placed.order.reservation_id != held_by:
                return None
            if placed.order.status not in (OrderStatus.PENDING, OrderStatus.CANCELLED):
                raise refused
            # With no session to go on with, what it left held is free.
            is_over = placed.order.withdrawn or (placed.attempt is not None and placed.attempt.status in _OVER)
            if not is_over and placed.attempt is not None and _is_for_the_same(request, placed.order):
                return await self._renew(request, placed, refused)
            if not is_over and not await self._paying.give_up(placed):
                raise refused
        await self._held.give_back(request.tenant, held_by)
        log.info("reservation_given_up", order=placed.order.id, reservation=held_by)
        return None

    async def _renew(self, request: CheckoutRequest, placed: Placed, refused: Refused) -> Placed | None:
        if not await self._paying.has_attempts_left(placed.order):
            refused.details["attempts_left"] = 0
            raise refused
        check_payable(placed.order.amount_minor, placed.order.currency, request.provider)
        key = request.idempotency_key
        wish = Wish(
            request.provider,
            request.email,
            request.success_url,
            request.cancel_url,
            None if key is None else Asked(key, request.fingerprint),
        )
        renewed = await self._paying.renew(placed, wish)
        if renewed is None:
            present = (await self._paying.find(placed.order)).attempt
            if present is not None and present.status in (AttemptStatus.PAID, AttemptStatus.UNPAID):
                raise refused
        return renewed

    async def _prepare(self, request: CheckoutRequest, order_id: str) -> Placement:
        """Price and reserve; what is returned is held in Redis and stored nowhere else yet."""
        offer = await self._held.offer(request.tenant, [line.product for line in request.lines], request.code)
        priced = _priced(request, offer)
        reservation = None
        if offer.code is not None:
            holder = Holder(request.tenant, request.customer, order_id, request.idempotency_key is not None)
            reservation, offer = await self._held.reserve(holder, 1, offer)
            try:
                # Priced by the definition that the units were granted under, should it have changed since.
                priced = _priced(request, offer)
            except LastportionError:
                await self._held.give_back(reservation.tenant, reservation.id)
                raise
        order = _order(request, order_id, priced, reservation)
        if priced.amount_minor == 0:
            return Placement(order, None, reservation)
        return Placement(order, self._paying.first_attempt(order, priced.due, reservation), reservation)

    async def _carry_on(self, placed: Placed, *, created: bool) -> CheckoutAnswer:
        placed = await self._paying.carry_on(placed, is_new=created)
        return CheckoutAnswer(placed.order, placed.attempt, created)

    def _checked(self, request: CheckoutRequest) -> CheckoutRequest:
        if request.provider not in self._offered:
            offered = " or ".join(repr(provider.value) for provider in sorted(self._offered)) or "none here"
            raise Invalid(
                f"The provider {request.provider.value!r} can't be paid with here.",
                fields={"provider": f"must be {offered}"},
            )
        if not request.lines:
            raise Invalid("An order has at least one line.", fields={"lines": "must not be empty"})
        return replace(request, code=None if request.code is None else code_named(request.code))


def _priced(request: CheckoutRequest, offer: Offer) -> Priced:
    """The order's price, if the provider takes such an amount. Raises as ``price`` and ``check_payable`` do."""
    priced = price(request.lines, offer.products, offer.code)
    if priced.amount_minor > 0:
        check_payable(priced.amount_minor, priced.currency, request.provider)
    return priced


def _is_for_the_same(request: CheckoutRequest, order: Order) -> bool:
    """Whether a request is for what an order is for already: the same lines and code."""
    ordered = [(line.product, line.quantity) for line in order.lines]
    return ordered == [(line.product, line.quantity) for line in request.lines] and (request.code or "") == order.code


def _order(request: CheckoutRequest, order_id: str, priced: Priced, reservation: Reservation | None) -> Order:
    return Order(
        id=order_id,
        tenant=request.tenant,
        customer=request.customer,
        email=request.email,
        currency=priced.currency,
        amount_minor=priced.amount_minor,
        discount_minor=priced.discount_minor,
        provider=request.provider if priced.amount_minor > 0 else Provider.NONE,
        request_fingerprint=request.fingerprint,
        success_url=request.success_url,
        cancel_url=request.cancel_url,
        lines=priced.lines,
        reservation_id=None if reservation is None else reservation.id,
        code="" if reservation is None else reservation.code,
        period="" if reservation is None else reservation.period,
        idempotency_key=request.idempotency_key,
        expires_at_ms=None if reservation is None else reservation.expires_at_ms,
    )
