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

from engine.catalogue import CatalogueStore, Offer, PoolPusher, code_named
from engine.domain import (
    AttemptStatus,
    Claim,
    OrderStatus,
    Outcome,
    Provider,
    Reservation,
    ReservationRequest,
    ReservationStatus,
)
from engine.errors import (
    IdConflict,
    Invalid,
    LastportionError,
    NotReady,
    ProviderError,
    ProviderTimeout,
    Refused,
    Unavailable,
    Unknown,
)
from engine.identifiers import derived_id, new_id
from engine.orders import Attempt, Order, Placed, Placement
from engine.payments.port import FrozenAttempt, PaymentPort, Session, SessionState
from engine.ports import AttemptStore, OrderStore
from engine.pricing import Priced, WantedLine, price
from engine.reservations import RecordLookup, ReservationEngine
from engine.settings import SESSION_HEADROOM_SECONDS, STRIPE_MINIMUM_SESSION_SECONDS, Settings
from engine.settlement import SettlementService

log = structlog.get_logger(__name__)

MOST_ATTEMPTS_IN_ONE_CALL: Final = 3
MOST_ROUNDS: Final = 64
"""Reservations that one order may have had, one after the other, before its key is used up."""
MOST_RELOADS: Final = 4
"""How often a call takes up a definition that changed under it before it asks the caller to try again."""


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
        settings: Settings,
        reservations: ReservationEngine,
        lookup: RecordLookup,
        catalogue: CatalogueStore,
        pusher: PoolPusher,
        orders: OrderStore,
        attempts: AttemptStore,
        payments: PaymentPort,
        settlements: SettlementService,
    ) -> None:
        self._settings = settings
        self._reservations = reservations
        self._lookup = lookup
        self._catalogue = catalogue
        self._pusher = pusher
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
        try:
            is_new = await self._orders.place(placement)
        except Exception:
            await self._give_back(placement.reservation)
            raise
        if not is_new:
            placed = await self._orders.find(request.tenant, order_id)
            if placed is None:
                raise NotReady
            return await self._repeat(request, placed)
        attempt = None if placement.attempt is None else Attempt(placement.attempt, placement.order.provider)
        log.info("order_placed", order=order_id, reservation=placement.order.reservation_id)
        return await self._carry_on(Placed(placement.order, attempt), created=True)

    async def _repeat(self, request: CheckoutRequest, placed: Placed) -> CheckoutAnswer:
        if placed.order.request_fingerprint != request.fingerprint:
            raise IdConflict("This Idempotency-Key was used for another checkout.", id=placed.order.id)
        return await self._carry_on(placed, created=False)

    async def _prepare(self, request: CheckoutRequest, order_id: str) -> Placement:
        """Price and reserve; what is returned is held in Redis and stored nowhere else yet."""
        products = sorted({line.product for line in request.lines})
        now_ms = await self._reservations.now_ms(request.tenant)
        offer = await self._catalogue.offer(request.tenant, products, request.code, now_ms)
        if request.code is not None and offer.code is None:
            raise Unknown("code", request.code)
        priced = price(request.lines, offer.products, offer.code)
        reservation = None
        if offer.code is not None:
            reservation, offer = await self._reserve(request, order_id, 1, offer, products)
            try:
                priced = price(request.lines, offer.products, offer.code)
            except LastportionError:
                await self._give_back(reservation)
                raise
        order = self._order(request, order_id, priced, reservation)
        attempt = None
        if priced.amount_minor > 0:
            attempt = FrozenAttempt(
                order_id=order_id,
                reservation_id=None if reservation is None else reservation.id,
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
                expires_at_s=self._session_end_s(reservation),
            )
        return Placement(order, attempt, reservation)

    def _order(self, request: CheckoutRequest, order_id: str, priced: Priced, reservation: Reservation | None) -> Order:
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

    def _session_end_s(self, reservation: Reservation | None) -> int | None:
        """From the script's clock, so that the session ends before the reservation whatever our own clock says."""
        return None if reservation is None else reservation.created_at_ms // 1000 + self._settings.session_ttl_seconds

    async def _reserve(
        self, request: CheckoutRequest, order_id: str, first_round: int, offer: Offer, products: list[str]
    ) -> tuple[Reservation, Offer]:
        """A live reservation of the code with a session's life ahead of it, and the offer that it was made on.

        An id is not granted twice, so each round has one of its own; a round that an earlier call left unusable
        (ended, about to end, or made on other terms) is given back and passed over.
        """
        reloads = 0
        round_number = first_round
        while round_number < first_round + MOST_ROUNDS:
            wanted = self._request_of(request, order_id, round_number, offer)
            if request.idempotency_key is not None and await self._is_spent(wanted):
                round_number += 1
                continue
            try:
                granted = await self._reservations.reserve(wanted)
            except IdConflict:
                await self._give_back_id(wanted.tenant, wanted.id)
            except Refused as refused:
                renewed = await self._renewed_offer(refused, offer, products)
                if renewed is None or reloads == MOST_RELOADS:
                    raise _in_checkout(refused, wanted.code) from refused
                offer, reloads = renewed, reloads + 1
                continue
            else:
                if granted.created or self._has_life(granted.reservation):
                    return granted.reservation, offer
                await self._give_back(granted.reservation)
            round_number += 1
        raise IdConflict("This Idempotency-Key is used up; check out with a new one.", id=order_id)

    def _request_of(
        self, request: CheckoutRequest, order_id: str, round_number: int, offer: Offer
    ) -> ReservationRequest:
        if offer.code is None or offer.pool is None:
            raise Unknown("code", request.code or "")
        return ReservationRequest(
            tenant=request.tenant,
            id=derived_id("reservation", request.tenant, f"{order_id}:{round_number}"),
            claims=(Claim(offer.pool.pool, 1, offer.pool.rev),),
            ttl_ms=self._settings.reservation_ttl_seconds * 1000,
            customer=request.customer,
            order_id=order_id,
            code=offer.code.code,
            period=offer.period,
        )

    async def _is_spent(self, wanted: ReservationRequest) -> bool:
        """Whether Postgres knows that this id's reservation is over, even if Redis has forgotten it."""
        found = await self._lookup.find_reservation(wanted.tenant, wanted.id)
        return found is not None and found.status is not ReservationStatus.RESERVED

    def _has_life(self, reservation: Reservation) -> bool:
        end_s = self._session_end_s(reservation)
        return (
            reservation.alive
            and end_s is not None
            and end_s - reservation.now_ms // 1000 > STRIPE_MINIMUM_SESSION_SECONDS
        )

    async def _renewed_offer(self, refused: Refused, offer: Offer, products: list[str]) -> Offer | None:
        """The offer as it is now, when that may change the answer; None when the refusal stands."""
        outcome = refused.refusal.outcome
        if offer.code is None or offer.pool is None:
            return None
        tenant = offer.code.tenant
        if outcome in (Outcome.STALE, Outcome.UNKNOWN_POOL):
            # Committed and not yet pushed, or pushed after this call read it.
            await self._pusher.push(tenant, [offer.pool.pool])
        elif outcome not in (Outcome.CLOSED, Outcome.NOT_OPEN):
            return None
        now_ms = await self._reservations.now_ms(tenant)
        renewed = await self._catalogue.offer(tenant, products, offer.code.code, now_ms)
        if outcome in (Outcome.CLOSED, Outcome.NOT_OPEN) and renewed.period == offer.period:
            return None
        return renewed

    async def _carry_on(self, placed: Placed, *, created: bool) -> CheckoutAnswer:
        """Bring an order that stands in Postgres to its answer."""
        is_fresh = created
        for _ in range(MOST_ATTEMPTS_IN_ONE_CALL):
            attempt = placed.attempt
            if attempt is None:
                await self._settlements.apply_waiting_of(placed.order.id)
                return CheckoutAnswer(placed.order, None, created)
            if _is_answered(placed.order, attempt):
                return CheckoutAnswer(placed.order, attempt, created)
            if attempt.status is AttemptStatus.FROZEN:
                if not is_fresh and await self._is_lapsed(attempt.frozen):
                    await self._close(attempt.frozen, "lapsed")
                elif await self._open(attempt.frozen, is_fresh=is_fresh):
                    return CheckoutAnswer(placed.order, (await self._found(placed)).attempt, created)
                placed, is_fresh = await self._found(placed), False
            else:
                placed, is_fresh = await self._start_anew(placed)
        raise ProviderTimeout

    async def _found(self, placed: Placed) -> Placed:
        found = await self._orders.find(placed.order.tenant, placed.order.id)
        if found is None:
            raise NotReady
        return found

    async def _is_lapsed(self, frozen: FrozenAttempt) -> bool:
        """Whether an attempt's reservation ended before the attempt was answered; nobody was told its session."""
        if frozen.reservation_id is None:
            return False
        reservation = await self._reservations.read(frozen.tenant, frozen.reservation_id)
        return reservation.status is not ReservationStatus.COMPLETED and not reservation.alive

    async def _open(self, frozen: FrozenAttempt, *, is_fresh: bool) -> bool:
        """Have the provider open the attempt's session and note it; False when the attempt is over."""
        try:
            session = await self._payments.open(frozen)
            if not is_fresh and session.state is SessionState.OPEN and await self._is_past(frozen):
                # A repeat is answered with what was true when the session was made.
                session = await self._payments.look_up(session.id)
        except ProviderError:
            if not is_fresh and await self._is_past(frozen, STRIPE_MINIMUM_SESSION_SECONDS + SESSION_HEADROOM_SECONDS):
                # Too little life is left for a session, and there is none: a new attempt starts from the beginning.
                await self._close(frozen, "too_late")
                return False
            await self._close(frozen, "refused")
            raise
        except ProviderTimeout:
            log.warning("attempt_unanswered", order=frozen.order_id, attempt=frozen.number)
            raise
        return await self._attach(frozen, session)

    async def _attach(self, frozen: FrozenAttempt, session: Session) -> bool:
        matched = await self._attempts.attach(frozen, session)
        if matched is None:
            # Another call gave this attempt up meanwhile; nobody may pay for what is no longer held.
            log.warning("attempt_overtaken", order=frozen.order_id, attempt=frozen.number, session=session.id)
            await self._payments.expire(session.id)
            return False
        log.info("session_opened", order=frozen.order_id, attempt=frozen.number, session=session.id)
        if matched:
            await self._settlements.apply_waiting_of(frozen.order_id)
        return True

    async def _is_past(self, frozen: FrozenAttempt, margin_s: int = 0) -> bool:
        """Whether fewer than ``margin_s`` seconds are left of the life that the attempt's session was given."""
        if frozen.expires_at_s is None:
            return False
        return await self._reservations.now_ms(frozen.tenant) // 1000 >= frozen.expires_at_s - margin_s

    async def _close(self, frozen: FrozenAttempt, reason: str) -> None:
        """Give the units of an attempt without a session back at once, and say so in the order."""
        if frozen.reservation_id is not None:
            await self._give_back_id(frozen.tenant, frozen.reservation_id)
        await self._attempts.fail(frozen, reason)
        log.info("attempt_failed", order=frozen.order_id, attempt=frozen.number, reason=reason)

    async def _start_anew(self, placed: Placed) -> tuple[Placed, bool]:
        """The next attempt of an order whose last one came to nothing, on units reserved anew, at the same price."""
        order, before = placed.order, placed.attempt
        if before is None:
            raise NotReady
        number = before.frozen.number + 1
        reservation = None
        if before.frozen.reservation_id is not None:
            products = sorted({line.product for line in order.lines})
            offer = await self._catalogue.offer(
                order.tenant, products, order.code, await self._reservations.now_ms(order.tenant)
            )
            reservation, _ = await self._reserve(_request_again(order), order.id, number, offer, products)
        frozen = replace(
            before.frozen,
            number=number,
            idempotency_key=f"{order.id}:{number}",
            reservation_id=None if reservation is None else reservation.id,
            expires_at_s=self._session_end_s(reservation),
        )
        try:
            started = await self._attempts.start(frozen, reservation)
        except Exception:
            await self._give_back(reservation)
            raise
        return await self._found(placed), started

    async def _give_back(self, reservation: Reservation | None) -> None:
        if reservation is not None:
            await self._give_back_id(reservation.tenant, reservation.id)

    async def _give_back_id(self, tenant: str, identifier: str) -> None:
        """Release at once; where Redis can't be reached now, the units come back when the reservation ends."""
        try:
            await self._reservations.release(tenant, identifier)
        except (Unavailable, Unknown) as error:
            log.warning("release_left_to_expiry", reservation=identifier, reason=error.code)


def _checked(request: CheckoutRequest) -> CheckoutRequest:
    if request.provider != Provider.STRIPE:
        raise Invalid(
            f"The provider {request.provider!r} can't be paid with yet.", fields={"provider": "must be 'stripe'"}
        )
    if not request.lines:
        raise Invalid("An order has at least one line.", fields={"lines": "must not be empty"})
    return replace(request, code=None if request.code is None else code_named(request.code))


def _is_answered(order: Order, attempt: Attempt) -> bool:
    """Whether there is an answer to repeat: the buyer has been told of a session, or has paid after all."""
    return attempt.url is not None or order.status not in (OrderStatus.PENDING, OrderStatus.CANCELLED)


def _request_again(order: Order) -> CheckoutRequest:
    """The request that an order was made from, as far as reserving again needs it."""
    return CheckoutRequest(
        tenant=order.tenant,
        customer=order.customer,
        email=order.email,
        lines=tuple(WantedLine(line.product, line.quantity) for line in order.lines),
        success_url=order.success_url,
        cancel_url=order.cancel_url,
        code=order.code,
        idempotency_key=order.idempotency_key,
    )


def _in_checkout(refused: Refused, code: str) -> LastportionError:
    """The refusal with the buyer's code beside the pool; what only a caller could mend becomes "try again"."""
    if refused.refusal.outcome in (Outcome.STALE, Outcome.UNKNOWN_POOL):
        return NotReady("The code's definition is on its way; try again.")
    error = Refused(refused.refusal, f"The code {code} can't be used: {refused.refusal.outcome.value}.")
    error.details["promotion_code"] = code
    return error
