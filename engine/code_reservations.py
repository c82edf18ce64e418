"""Units of a code for a checkout: reserved under ids that follow from the order, and given back.

An id is not granted twice, so an order has one reservation after another, in rounds, each with an id of its own. A
repeat after a crash meets the reservations that earlier calls left behind: it takes one up while it has enough life
ahead of it, and gives it back otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from engine.catalogue import CatalogueStore, Offer, PoolPusher
from engine.domain import Claim, Outcome, Reservation, ReservationRequest, ReservationStatus
from engine.errors import IdConflict, IllegalTransition, LastportionError, NotReady, Refused, Unavailable, Unknown
from engine.identifiers import derived_id
from engine.reservations import RecordLookup, ReservationEngine
from engine.settings import STRIPE_MINIMUM_SESSION_SECONDS, Settings

log = structlog.get_logger(__name__)

MOST_ROUNDS: Final = 64
"""Reservations that one order may have had, one after the other, before its key is used up."""
MOST_RELOADS: Final = 4
"""How often a call takes up a definition that changed under it before it asks the caller to try again."""


@dataclass(frozen=True, slots=True)
class Holder:
    """For whom units are held. A repeatable order may have left reservations behind; another can't have."""

    tenant: str
    customer: str
    order_id: str
    is_repeatable: bool


class CodeReservations:
    """Reserves one unit of a code's present period, and gives it back."""

    def __init__(
        self,
        settings: Settings,
        reservations: ReservationEngine,
        lookup: RecordLookup,
        catalogue: CatalogueStore,
        pusher: PoolPusher,
    ) -> None:
        self._settings = settings
        self._reservations = reservations
        self._lookup = lookup
        self._catalogue = catalogue
        self._pusher = pusher

    async def offer(self, tenant: str, products: Sequence[str], code: str | None) -> Offer:
        """Products and code as they are now. Raises ``Unknown`` for a code that isn't there."""
        now_ms = await self._reservations.now_ms(tenant)
        offer = await self._catalogue.offer(tenant, sorted(set(products)), code, now_ms)
        if code is not None and offer.code is None:
            raise Unknown("code", code)
        return offer

    def session_end_s(self, reservation: Reservation | None) -> int | None:
        """When a session on a new reservation ends; None where nothing is reserved.

        Counted on the script's clock, so that it lies before the reservation's end whatever our own clock says.
        """
        return None if reservation is None else reservation.created_at_ms // 1000 + self._settings.session_ttl_seconds

    async def extend(self, tenant: str, reservation_id: str) -> tuple[Reservation, int] | None:
        """Give a reservation a session's life again; with the second at which a session on it ends.

        None when it is not alive any more.
        """
        try:
            extended = await self._reservations.extend(
                tenant, reservation_id, self._settings.reservation_ttl_seconds * 1000
            )
        except (IllegalTransition, Unknown):
            return None
        ends_s = extended.now_ms // 1000 + self._settings.session_ttl_seconds
        # At the bound of a reservation's life it is not extended as far as a session needs.
        return (extended, ends_s) if ends_s * 1000 < extended.expires_at_ms else None

    async def reserve(self, holder: Holder, first_round: int, offer: Offer) -> tuple[Reservation, Offer]:
        """A reservation with a session's life ahead of it, and the offer as it was when it was granted.

        Raises ``Refused`` when a rule of the pool says no.
        """
        round_number, reloads = first_round, 0
        while round_number < first_round + MOST_ROUNDS:
            wanted = self._request(holder, round_number, offer)
            try:
                reservation = await self._usable(wanted, is_repeatable=holder.is_repeatable)
            except Refused as refused:
                renewed = await self._renewed(refused, offer)
                if renewed is None or reloads == MOST_RELOADS:
                    raise _in_checkout(refused, wanted.code) from refused
                offer, reloads = renewed, reloads + 1
                continue
            if reservation is not None:
                return reservation, offer
            round_number += 1
        raise IdConflict("This Idempotency-Key is used up; check out with a new one.", id=holder.order_id)

    async def give_back(self, tenant: str, reservation_id: str | None) -> None:
        """Release at once; where Redis can't be reached now, the units come back when the reservation ends."""
        if reservation_id is None:
            return
        try:
            await self._reservations.release(tenant, reservation_id)
        except IllegalTransition:
            # Sold and cancelled since: its units are not held.
            return
        except (Unavailable, Unknown) as error:
            log.warning("release_left_to_expiry", reservation=reservation_id, reason=error.code)

    async def is_over(self, tenant: str, reservation_id: str | None) -> bool:
        """Whether a reservation ended without having been completed."""
        if reservation_id is None:
            return False
        reservation = await self._reservations.read(tenant, reservation_id)
        return reservation.status is not ReservationStatus.COMPLETED and not reservation.alive

    async def is_alive(self, tenant: str, reservation_id: str) -> bool:
        """Whether a reservation still holds units that nobody has bought."""
        return (await self._reservations.read(tenant, reservation_id)).alive

    async def is_sold(self, tenant: str, reservation_id: str | None) -> bool:
        """Whether a reservation was completed, though its order may not know it yet."""
        if reservation_id is None:
            return False
        return (await self._reservations.read(tenant, reservation_id)).status is ReservationStatus.COMPLETED

    async def seconds_left(self, tenant: str, end_s: int) -> int:
        """How long, on the scripts' clock, until this second."""
        return end_s - await self._reservations.now_ms(tenant) // 1000

    def _request(self, holder: Holder, round_number: int, offer: Offer) -> ReservationRequest:
        if offer.code is None or offer.pool is None:
            raise ValueError("nothing is reserved without a code")
        return ReservationRequest(
            tenant=holder.tenant,
            id=derived_id("held", holder.tenant, f"{holder.order_id}:{round_number}"),
            claims=(Claim(offer.pool.pool, 1, offer.pool.rev),),
            ttl_ms=self._settings.reservation_ttl_seconds * 1000,
            customer=holder.customer,
            order_id=holder.order_id,
            code=offer.code.code,
            period=offer.period,
        )

    async def _usable(self, wanted: ReservationRequest, *, is_repeatable: bool) -> Reservation | None:
        """The reservation of this round; None when an earlier call has used the round up."""
        if is_repeatable and await self._is_spent(wanted):
            return None
        try:
            granted = await self._reservations.reserve(wanted)
        except IdConflict:
            # Granted on other terms, to a call that has committed no order. It may be about to, in another process, so
            # its units are its own to give back; those of a call that died come back when the reservation ends.
            return None
        if granted.created or self._has_life(granted.reservation):
            return granted.reservation
        await self.give_back(wanted.tenant, wanted.id)
        return None

    async def _is_spent(self, wanted: ReservationRequest) -> bool:
        """Whether Postgres knows that this id's reservation is over, even if Redis has forgotten it."""
        found = await self._lookup.find_reservation(wanted.tenant, wanted.id)
        if found is None:
            return False
        over = found.expires_at_ms <= await self._reservations.now_ms(wanted.tenant)
        return over or found.status is not ReservationStatus.RESERVED

    def _has_life(self, reservation: Reservation) -> bool:
        end_s = self.session_end_s(reservation)
        left_s = 0 if end_s is None else end_s - reservation.now_ms // 1000
        return reservation.alive and left_s > STRIPE_MINIMUM_SESSION_SECONDS

    async def _renewed(self, refused: Refused, offer: Offer) -> Offer | None:
        """The offer as it is now, when that may change the answer; None when the refusal stands."""
        outcome = refused.refusal.outcome
        if offer.code is None or offer.pool is None:
            return None
        if outcome in (Outcome.STALE, Outcome.UNKNOWN_POOL):
            # Committed and not yet pushed, or pushed after this call read it.
            await self._pusher.push(offer.code.tenant, [offer.pool.pool])
            return await self.offer(offer.code.tenant, list(offer.products), offer.code.code)
        if outcome in (Outcome.CLOSED, Outcome.NOT_OPEN):
            renewed = await self.offer(offer.code.tenant, list(offer.products), offer.code.code)
            # A period that turned between two looks at the clock.
            return renewed if renewed.period != offer.period else None
        return None


def _in_checkout(refused: Refused, code: str) -> LastportionError:
    """The refusal with the buyer's code beside the pool; what no buyer can mend becomes "try again"."""
    if refused.refusal.outcome in (Outcome.STALE, Outcome.UNKNOWN_POOL):
        return NotReady("The code's definition is on its way; try again.")
    error = Refused(refused.refusal, f"The code {code} can't be used: {refused.refusal.outcome.value}.")
    error.details["promotion_code"] = code
    return error
