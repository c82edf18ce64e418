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

from engine.catalogue import code_named
from engine.code_reservations import CodeReservations, Holder
from engine.domain import AttemptStatus, OrderStatus, Provider, Reservation
from engine.errors import IdConflict, Invalid, LastportionError, NotReady, ProviderError, ProviderTimeout
from engine.identifiers import derived_id, new_id
from engine.orders import Attempt, Order, Placed, Placement
from engine.payments.port import FrozenAttempt, PaymentPort, Session, SessionState
from engine.ports import AttemptStore, OrderStore
from engine.pricing import Priced, WantedLine, price
from engine.settings import SESSION_HEADROOM_SECONDS, STRIPE_MINIMUM_SESSION_SECONDS
from engine.settlement import SettlementService, event_from

log = structlog.get_logger(__name__)

MOST_ATTEMPTS_IN_ONE_CALL: Final = 3
LOOKS_FOR_TWIN: Final = 20
PAUSE_FOR_TWIN_SECONDS: Final = 0.1
"""A call that finds its attempt under way in another process waits for that one's answer, 2 seconds at most."""


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
    provider: str = Provider.STRIPE.value
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
            self.provider,
        ]
        return blake2b(orjson.dumps(content), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class CheckoutAnswer:
    """What the buyer's shop needs to go on. ``created`` is False for a repeat."""

    order: Order
    attempt: Attempt | None
    created: bool


class CheckoutService:
    """Checks out lines of products, with or without a code."""

    def __init__(
        self,
        *,
        held: CodeReservations,
        orders: OrderStore,
        attempts: AttemptStore,
        payments: PaymentPort,
        settlements: SettlementService,
    ) -> None:
        self._held = held
        self._orders = orders
        self._attempts = attempts
        self._payments = payments
        self._settlements = settlements
        self._running: set[asyncio.Task[CheckoutAnswer]] = set()
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    async def check_out(self, request: CheckoutRequest) -> CheckoutAnswer:
        """Reserve, store and open a session for an order; the same request under the same key gets the same again.

        Raises ``Unknown``, ``Invalid``, ``CodeNotApplicable``, ``Refused`` (nothing is held), ``IdConflict``,
        ``ProviderError`` (units given back), ``ProviderTimeout`` (still held: repeat), ``Unavailable``.
        """
        request = _checked(request)
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
            placed = await self._orders.find(request.tenant, order_id)
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
        placement = await self._prepare(request, order_id)
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
            placed = await self._found(order.tenant, order_id)
            if placed.order.reservation_id != order.reservation_id:
                await self._held.give_back(order.tenant, order.reservation_id)
            return await self._repeat(request, placed)
        log.info("order_placed", order=order_id, reservation=order.reservation_id)
        attempt = None if placement.attempt is None else Attempt(placement.attempt, order.provider)
        return await self._carry_on(Placed(order, attempt), created=True)

    async def _repeat(self, request: CheckoutRequest, placed: Placed) -> CheckoutAnswer:
        if placed.order.request_fingerprint != request.fingerprint:
            raise IdConflict("This Idempotency-Key was used for another checkout.", id=placed.order.id)
        return await self._carry_on(placed, created=False)

    async def _prepare(self, request: CheckoutRequest, order_id: str) -> Placement:
        """Price and reserve; what is returned is held in Redis and stored nowhere else yet."""
        offer = await self._held.offer(request.tenant, [line.product for line in request.lines], request.code)
        priced = price(request.lines, offer.products, offer.code)
        reservation = None
        if offer.code is not None:
            holder = Holder(request.tenant, request.customer, order_id, request.idempotency_key is not None)
            reservation, offer = await self._held.reserve(holder, 1, offer)
            try:
                # Priced by the definition that the units were granted under, should it have changed since.
                priced = price(request.lines, offer.products, offer.code)
            except LastportionError:
                await self._held.give_back(reservation.tenant, reservation.id)
                raise
        order = _order(request, order_id, priced, reservation)
        if priced.amount_minor == 0:
            return Placement(order, None, reservation)
        attempt = FrozenAttempt(
            order_id=order_id,
            reservation_id=order.reservation_id,
            tenant=request.tenant,
            number=1,
            idempotency_key=f"{order_id}:1",
            amount_minor=priced.amount_minor,
            currency=priced.currency,
            email=request.email,
            customer=request.customer,
            lines=priced.due,
            success_url=request.success_url,
            cancel_url=request.cancel_url,
            expires_at_s=self._held.session_end_s(reservation),
        )
        return Placement(order, attempt, reservation)

    async def _carry_on(self, placed: Placed, *, created: bool) -> CheckoutAnswer:
        """Bring an order that stands in Postgres to its answer."""
        order, is_fresh = placed.order, created
        for _ in range(MOST_ATTEMPTS_IN_ONE_CALL * 2):
            attempt = placed.attempt
            if attempt is None:
                await self._settlements.apply_waiting_of(order.id)
                return CheckoutAnswer(placed.order, None, created)
            if _is_answered(placed.order, attempt):
                return CheckoutAnswer(placed.order, attempt, created)
            if attempt.status is not AttemptStatus.FROZEN:
                is_fresh = await self._start_anew(placed.order, attempt.frozen)
            elif not is_fresh and await self._held.is_over(order.tenant, attempt.frozen.reservation_id):
                # Nobody was told of its session, so nobody can pay for it.
                await self._close(attempt.frozen, "lapsed")
            else:
                await self._open(attempt.frozen, is_fresh=is_fresh)
                is_fresh = False
            placed = await self._found(order.tenant, order.id)
        raise ProviderTimeout

    async def _found(self, tenant: str, order_id: str) -> Placed:
        found = await self._orders.find(tenant, order_id)
        if found is None:
            raise NotReady
        return found

    async def _open(self, frozen: FrozenAttempt, *, is_fresh: bool) -> None:
        """Have the provider open the attempt's session and note what came of it."""
        try:
            session = await self._payments.open(frozen)
            if not is_fresh and session.state is SessionState.OPEN and await self._is_past(frozen, 0):
                # A repeat is answered with what was true when the session was made.
                session = await self._payments.look_up(session.id)
        except ProviderError:
            # Too little life left for a session, and none was made before: then a new attempt begins.
            late = STRIPE_MINIMUM_SESSION_SECONDS + SESSION_HEADROOM_SECONDS
            is_too_late = not is_fresh and await self._is_past(frozen, late)
            is_closed = await self._close(frozen, "too_late" if is_too_late else "refused")
            if is_closed and not is_too_late:
                raise
        except ProviderTimeout:
            log.warning("attempt_unanswered", order=frozen.order_id, attempt=frozen.number)
            if is_fresh or not await self._is_answered_by_twin(frozen):
                raise
        else:
            await self._note(frozen, session)

    async def _note(self, frozen: FrozenAttempt, session: Session) -> None:
        if session.state is SessionState.EXPIRED:
            await self._close(frozen, "session_expired")
            return
        matched = await self._attempts.attach(frozen, session)
        if matched is None:
            # Another call gave this attempt up meanwhile; nobody may pay for what is no longer held.
            log.warning("attempt_overtaken", order=frozen.order_id, attempt=frozen.number, session=session.id)
            await self._payments.expire(session.id)
            return
        log.info("session_opened", order=frozen.order_id, attempt=frozen.number, session=session.id)
        if matched:
            await self._settlements.apply_waiting_of(frozen.order_id)
        if session.state is SessionState.PAID:
            await self._settlements.receive(Provider.STRIPE, event_from(session))

    async def _is_past(self, frozen: FrozenAttempt, margin_s: int) -> bool:
        """Whether no more than ``margin_s`` seconds are left of the life that the attempt's session was given."""
        if frozen.expires_at_s is None:
            return False
        return await self._held.seconds_left(frozen.tenant, frozen.expires_at_s) <= margin_s

    async def _is_answered_by_twin(self, frozen: FrozenAttempt) -> bool:
        """Whether a call in another process, which is at the same attempt, gets its session in the next moments."""
        for _ in range(LOOKS_FOR_TWIN):
            placed = await self._found(frozen.tenant, frozen.order_id)
            if placed.attempt is None or placed.attempt.status is not AttemptStatus.FROZEN:
                return True
            await asyncio.sleep(PAUSE_FOR_TWIN_SECONDS)
        return False

    async def _close(self, frozen: FrozenAttempt, reason: str) -> bool:
        """Note that an attempt has no session, and give its units back at once; False when it is not waiting any more.

        In this order: a twin in another process may have got its session meanwhile, and a buyer may be paying for
        these units.
        """
        if not await self._attempts.fail(frozen, reason):
            return False
        await self._held.give_back(frozen.tenant, frozen.reservation_id)
        log.info("attempt_failed", order=frozen.order_id, attempt=frozen.number, reason=reason)
        return True

    async def _start_anew(self, order: Order, before: FrozenAttempt) -> bool:
        """Commit the next attempt of an order whose last came to nothing, on units reserved anew, at the same price.

        Answers whether it is this call's; another may have been quicker.
        """
        number, reservation = before.number + 1, None
        # Given back already, unless a call died between noting its attempt's end and this.
        await self._held.give_back(before.tenant, before.reservation_id)
        if before.reservation_id is not None:
            holder = Holder(order.tenant, order.customer, order.id, is_repeatable=True)
            offer = await self._held.offer(order.tenant, [line.product for line in order.lines], order.code)
            reservation, _ = await self._held.reserve(holder, number, offer)
        frozen = replace(
            before,
            number=number,
            idempotency_key=f"{order.id}:{number}",
            reservation_id=None if reservation is None else reservation.id,
            expires_at_s=self._held.session_end_s(reservation),
        )
        # Should this fail, the units are a repeat's to take up, as those of an order are.
        is_ours = await self._attempts.start(frozen, reservation)
        if not is_ours:
            present = await self._found(order.tenant, order.id)
            if present.order.reservation_id != frozen.reservation_id:
                await self._held.give_back(frozen.tenant, frozen.reservation_id)
        return is_ours


def _checked(request: CheckoutRequest) -> CheckoutRequest:
    if request.provider != Provider.STRIPE:
        raise Invalid(
            f"The provider {request.provider!r} can't be paid with yet.", fields={"provider": "must be 'stripe'"}
        )
    if not request.lines:
        raise Invalid("An order has at least one line.", fields={"lines": "must not be empty"})
    return replace(request, code=None if request.code is None else code_named(request.code))


def _order(request: CheckoutRequest, order_id: str, priced: Priced, reservation: Reservation | None) -> Order:
    return Order(
        id=order_id,
        tenant=request.tenant,
        customer=request.customer,
        email=request.email,
        currency=priced.currency,
        amount_minor=priced.amount_minor,
        discount_minor=priced.discount_minor,
        provider=Provider.STRIPE if priced.amount_minor > 0 else Provider.NONE,
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


def _is_answered(order: Order, attempt: Attempt) -> bool:
    """Whether there is an answer to repeat: a session that the buyer was told of, or a payment already."""
    if attempt.url is not None or attempt.status is AttemptStatus.PAID:
        return True
    return order.status not in (OrderStatus.PENDING, OrderStatus.CANCELLED)
