"""Paying an order: its attempts at a provider, one after the other, and never two sessions on offer.

Each attempt is frozen and committed before the provider hears of it. One whose answer was lost is repeated byte for
byte; one that gives way to the next is closed at the provider first, and its reservation goes on with a new life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from engine.code_reservations import CodeReservations, Holder
from engine.domain import AttemptStatus, OrderStatus, Provider, Reservation
from engine.errors import IllegalTransition, NotReady, ProviderError, ProviderTimeout, SessionLost
from engine.orders import Asked, Attempt, Order, Placed
from engine.payments.port import (
    ExpireOutcome,
    FrozenAttempt,
    PaymentPort,
    PaymentPorts,
    PricedLine,
    Session,
    SessionState,
)
from engine.ports import AttemptStore, OrderStore
from engine.settings import SESSION_HEADROOM_SECONDS, STRIPE_MINIMUM_SESSION_SECONDS
from engine.settlement import SettlementService, event_from

log = structlog.get_logger(__name__)

MOST_ATTEMPTS_IN_ONE_CALL: Final = 3
LOOKS_FOR_TWIN: Final = 20
PAUSE_FOR_TWIN_SECONDS: Final = 0.1
"""A call that finds its attempt under way in another process waits for that one's answer, 2 seconds at most."""

_ON_OFFER: Final = (AttemptStatus.FROZEN, AttemptStatus.OPEN, AttemptStatus.CLOSING)
_OVER: Final = (AttemptStatus.EXPIRED, AttemptStatus.FAILED)


@dataclass(frozen=True, slots=True)
class Wish:
    """How a buyer wants to pay this time, and the checkout that says so, where its key is not the order's own."""

    provider: Provider
    email: str
    success_url: str
    cancel_url: str
    asked: Asked | None = None


class Paying:
    """Brings orders that stand in Postgres to an open session, a payment or their end."""

    def __init__(
        self,
        *,
        held: CodeReservations,
        orders: OrderStore,
        attempts: AttemptStore,
        payments: PaymentPorts,
        settlements: SettlementService,
        most_attempts: int,
    ) -> None:
        """``most_attempts`` bounds the sessions that one reservation is paid in, each of which extends its life."""
        self._held = held
        self._orders = orders
        self._attempts = attempts
        self._payments = payments
        self._settlements = settlements
        self._most_attempts = most_attempts

    def first_attempt(
        self, order: Order, lines: Sequence[PricedLine], reservation: Reservation | None
    ) -> FrozenAttempt:
        """The first attempt of an order, frozen; nothing is stored or sent."""
        port = self._payments[order.provider]
        return FrozenAttempt(
            order_id=order.id,
            reservation_id=order.reservation_id,
            tenant=order.tenant,
            number=1,
            idempotency_key=f"{order.id}:1",
            amount_minor=order.amount_minor,
            currency=order.currency,
            email=order.email,
            customer=order.customer,
            lines=tuple(lines),
            success_url=order.success_url,
            cancel_url=order.cancel_url,
            expires_at_s=self._held.session_end_s(reservation) if port.sessions_end else None,
            provider=order.provider,
            reference=port.reference_of(order.id, 1),
        )

    async def carry_on(self, placed: Placed, *, is_new: bool) -> Placed:
        """Bring an order to the state in which its buyer can be answered.

        ``is_new`` says that nobody can have spoken to the provider about it yet. Raises ``ProviderError`` (units given
        back), ``ProviderTimeout`` (still held: repeat), ``Refused``, ``IllegalTransition`` (its seller cancelled it)
        and ``Unavailable``.
        """
        order, is_fresh = placed.order, is_new
        for _ in range(MOST_ATTEMPTS_IN_ONE_CALL * 2):
            attempt = placed.attempt
            if attempt is None:
                await self._settlements.apply_waiting_of(order.id)
                return placed
            if placed.order.withdrawn:
                raise IllegalTransition(placed.order.status.value, "The order was cancelled by its seller.")
            if _is_answered(placed.order, attempt):
                return placed
            if attempt.status in _OVER:
                is_fresh = await self._start_anew(placed.order, attempt.frozen)
            elif attempt.status is AttemptStatus.CLOSING:
                is_fresh = await self._renew_within_bounds(placed) is not None
            elif not is_fresh and await self._held.is_over(order.tenant, attempt.frozen.reservation_id):
                # Nobody was told of its session, so nobody can pay for it.
                await self._close(attempt.frozen, "lapsed")
            else:
                await self._open(placed.order, attempt.frozen, is_fresh=is_fresh)
                is_fresh = False
            placed = await self.find(order)
        raise ProviderTimeout

    async def renew(self, placed: Placed, wish: Wish) -> Placed | None:
        """End an order's session, give its reservation a session's life again, and commit the next attempt.

        In this order: what closing finds paid is settled, and a session that may be open still is followed by no
        other. None when there is nothing to go on with: the reservation ended, or the order was paid, or a twin was
        quicker. Raises ``ProviderError`` and ``ProviderTimeout``, after which a repeat goes on here.
        """
        order, attempt = placed.order, placed.attempt
        if attempt is None or not await self._end_session(attempt):
            return None
        reservation, ends_s = None, None
        if order.reservation_id is not None:
            extended = await self._held.extend(order.tenant, order.reservation_id)
            if extended is None:
                await self._attempts.end(attempt.frozen)
                return None
            reservation, ends_s = extended
        frozen = self._next(attempt.frozen, wish, reservation, ends_s)
        if not await self._attempts.start(frozen, reservation, wish.asked):
            await self._attempts.end(attempt.frozen)
            return None
        log.info("attempt_renewed", order=order.id, attempt=frozen.number, reservation=frozen.reservation_id)
        return await self.find(order)

    async def has_attempts_left(self, order: Order) -> bool:
        """Whether an order's present reservation, or an order without one, may be paid in one more session."""
        return await self._attempts.count_on(order.id, order.reservation_id) < self._most_attempts

    async def give_up(self, placed: Placed) -> bool:
        """End an unpaid order's session, so that nothing of it can be paid; False when it was paid, or is about to be.

        Its units are the caller's to give back. What was paid meanwhile is settled, as far as it can be. Raises
        ``ProviderError`` and ``ProviderTimeout``: then it may be payable still.
        """
        attempt = placed.attempt
        if attempt is not None and attempt.status in _OVER:
            return placed.order.status in (OrderStatus.PENDING, OrderStatus.CANCELLED)
        if attempt is None or not await self._end_session(attempt):
            # A total of zero is paid from the start, and waits at most for being settled.
            await self._settlements.apply_waiting_of(placed.order.id)
            return False
        await self._attempts.end(attempt.frozen)
        return True

    async def find(self, order: Order) -> Placed:
        """The order as it is now. Raises ``NotReady`` when it isn't visible."""
        found = await self._orders.find(order.tenant, order.id)
        if found is None:
            raise NotReady
        return found

    def _next(
        self, before: FrozenAttempt, wish: Wish, reservation: Reservation | None, ends_s: int | None
    ) -> FrozenAttempt:
        """The attempt after another, at the same price."""
        port, number = self._payments[wish.provider], before.number + 1
        return replace(
            before,
            number=number,
            idempotency_key=f"{before.order_id}:{number}",
            reservation_id=None if reservation is None else reservation.id,
            email=wish.email,
            success_url=wish.success_url,
            cancel_url=wish.cancel_url,
            expires_at_s=ends_s if port.sessions_end else None,
            provider=wish.provider,
            reference=port.reference_of(before.order_id, number),
        )

    async def _end_session(self, attempt: Attempt) -> bool:
        """Have an attempt give way: its session can't be paid any more, or is at least not on offer.

        False when it was paid (which is settled then), is about to be, or was over before.
        """
        frozen, port = attempt.frozen, self._payments[attempt.provider]
        if attempt.status not in _ON_OFFER or not await self._attempts.close(frozen, attempt.session_id):
            return False
        session_id = attempt.session_id if attempt.url is not None else await self._session_of(port, frozen)
        if session_id is None:
            return True
        # Known before it is closed, so that what is told of it now finds this attempt.
        if not await self._attempts.close(frozen, session_id):
            return False
        try:
            outcome = await port.expire(session_id)
        except ProviderError as error:
            sentence = "The payment provider did not close the session that is open, which can still be paid."
            raise ProviderError(sentence, is_final=error.is_final, **error.details) from error
        if outcome is not ExpireOutcome.COMPLETE:
            return True
        await self._settlements.receive(attempt.provider, event_from(await port.look_up(session_id)))
        return False

    async def _session_of(self, port: PaymentPort, frozen: FrozenAttempt) -> str | None:
        """The session of an attempt whose answer nobody noted; None when the provider refuses to have one.

        The repeat brings the one of then, or makes it: only what has a name can be closed.
        """
        try:
            return (await port.open(frozen)).id
        except SessionLost:
            return frozen.reference
        except ProviderError as error:
            if not error.is_final:
                # It says nothing of the session that an earlier call may have made.
                raise ProviderTimeout from error
            return None

    async def _open(self, order: Order, frozen: FrozenAttempt, *, is_fresh: bool) -> None:
        """Have the provider open the attempt's session and note what came of it."""
        port = self._payments[frozen.provider]
        try:
            session = await port.open(frozen)
            if not is_fresh and session.state is SessionState.OPEN and await self._is_past(frozen, 0):
                # A repeat is answered with what was true when the session was made.
                session = await port.look_up(session.id)
        except SessionLost:
            await self._replace_lost(order, frozen)
        except ProviderError as error:
            if not is_fresh and not error.is_final:
                # It says nothing of the session that an earlier call may have made.
                raise ProviderTimeout from error
            # Too little life left for a session, and none was made before: then a new attempt begins.
            late = STRIPE_MINIMUM_SESSION_SECONDS + SESSION_HEADROOM_SECONDS
            is_too_late = not is_fresh and await self._is_past(frozen, late)
            is_closed = await self._close(frozen, "too_late" if is_too_late else "refused")
            if is_closed and not is_too_late:
                raise
        except ProviderTimeout:
            log.warning("attempt_unanswered", order=frozen.order_id, attempt=frozen.number)
            if is_fresh or not await self._is_answered_by_twin(order, frozen):
                raise
        else:
            await self._note(port, frozen, session)

    async def _replace_lost(self, order: Order, frozen: FrozenAttempt) -> None:
        """The answer that said where to pay is lost for good: another attempt on the same units takes its place."""
        placed = await self.find(order)
        attempt = placed.attempt
        if attempt is None or attempt.frozen.number != frozen.number or attempt.status is not AttemptStatus.FROZEN:
            # The call that got the answer was a twin's, and has noted it by now.
            return
        log.warning("session_address_lost", order=frozen.order_id, attempt=frozen.number)
        await self._renew_within_bounds(placed)

    async def _renew_within_bounds(self, placed: Placed) -> Placed | None:
        """Renew an attempt on the same terms. Raises ``ProviderTimeout`` when there were as many as there may be."""
        attempt = placed.attempt
        if attempt is None or not await self.has_attempts_left(placed.order):
            raise ProviderTimeout
        return await self.renew(placed, wish_of(attempt.frozen))

    async def _note(self, port: PaymentPort, frozen: FrozenAttempt, session: Session) -> None:
        if session.state is SessionState.EXPIRED:
            await self._close(frozen, "session_expired")
            return
        if not _is_as_asked(frozen, session):
            # Nobody is sent to pay something else than was agreed.
            log.error("session_differs", order=frozen.order_id, attempt=frozen.number, session=session.id)
            await port.expire(session.id)
            await self._close(frozen, "session_differs")
            raise ProviderError(provider_code="session_differs")
        matched = await self._attempts.attach(frozen, session)
        if matched is None:
            # Another call gave this attempt up meanwhile; nobody may pay for what is no longer held.
            log.warning("attempt_overtaken", order=frozen.order_id, attempt=frozen.number, session=session.id)
            await port.expire(session.id)
            return
        log.info("session_opened", order=frozen.order_id, attempt=frozen.number, session=session.id)
        if matched:
            await self._settlements.apply_waiting_of(frozen.order_id)
        if session.state in (SessionState.PAID, SessionState.UNPAID):
            await self._settlements.receive(frozen.provider, event_from(session))

    async def _is_past(self, frozen: FrozenAttempt, margin_s: int) -> bool:
        """Whether no more than ``margin_s`` seconds are left of the life that the attempt's session was given."""
        if frozen.expires_at_s is None:
            return False
        return await self._held.seconds_left(frozen.tenant, frozen.expires_at_s) <= margin_s

    async def _is_answered_by_twin(self, order: Order, frozen: FrozenAttempt) -> bool:
        """Whether a call in another process, which is at the same attempt, gets its session in the next moments."""
        for _ in range(LOOKS_FOR_TWIN):
            placed = await self.find(order)
            if placed.attempt is None or placed.attempt.frozen.number != frozen.number:
                return True
            if placed.attempt.status is not AttemptStatus.FROZEN:
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
        reservation = None
        # Given back already, unless a call died between noting its attempt's end and this.
        await self._held.give_back(before.tenant, before.reservation_id)
        if before.reservation_id is not None:
            holder = Holder(order.tenant, order.customer, order.id, is_repeatable=True)
            offer = await self._held.offer(order.tenant, [line.product for line in order.lines], order.code)
            reservation, _ = await self._held.reserve(holder, before.number + 1, offer)
        frozen = self._next(before, wish_of(before), reservation, self._held.session_end_s(reservation))
        # Should this fail, the units are a repeat's to take up, as those of an order are.
        is_ours = await self._attempts.start(frozen, reservation)
        if not is_ours:
            present = await self.find(order)
            if present.order.reservation_id != frozen.reservation_id:
                await self._held.give_back(frozen.tenant, frozen.reservation_id)
        return is_ours


def _is_as_asked(frozen: FrozenAttempt, session: Session) -> bool:
    """Whether a session that was just opened is what its attempt asked for, and can be gone to."""
    money = (session.amount_minor, session.currency.upper()) == (frozen.amount_minor, frozen.currency.upper())
    return money and (session.url is None or session.url.startswith(("https://", "http://")))


def wish_of(frozen: FrozenAttempt) -> Wish:
    """To be paid as before."""
    return Wish(frozen.provider, frozen.email, frozen.success_url, frozen.cancel_url)


def _is_answered(order: Order, attempt: Attempt) -> bool:
    """Whether there is an answer to repeat: a session that the buyer was told of, or a payment already."""
    if attempt.status is AttemptStatus.CLOSING:
        return False
    if attempt.url is not None or attempt.status in (AttemptStatus.PAID, AttemptStatus.UNPAID):
        return True
    return order.status not in (OrderStatus.PENDING, OrderStatus.CANCELLED)
