"""Attempts that nobody spoke of again: the news of how a session ended was lost, or never sent.

Once a session's time is over, the provider is asked what became of it, and the answer is settled like the event that
should have said so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import structlog

from engine.code_reservations import CodeReservations
from engine.domain import AttemptStatus
from engine.errors import ProviderError, ProviderTimeout
from engine.orders import Attempt
from engine.payments.port import PaymentPort, PaymentPorts, Session, SessionState
from engine.ports import AttemptStore
from engine.reservations import ReservationEngine
from engine.settlement import SettlementService, event_from

log = structlog.get_logger(__name__)

GRACE_SECONDS: Final = 60
"""How long after a session's end its event may take before the provider is asked."""
PAUSE_FOR_MONEY_SECONDS: Final = 24 * 3600
"""How long until a session whose money takes days is asked about again."""
MOST_ASKED_IN_ONE_RUN: Final = 50
_BEGIN: Final = ("", 0)


async def no_offset() -> int:
    """The clock of a deployment without sandbox."""
    return 0


class OverdueAttempts:
    """Asks a provider about attempts whose session should have ended.

    ``clock_offset_ms`` tells how far the sandbox's test clock is ahead.
    """

    def __init__(
        self,
        *,
        reservations: ReservationEngine,
        held: CodeReservations,
        attempts: AttemptStore,
        payments: PaymentPorts,
        settlements: SettlementService,
        clock_offset_ms: Callable[[], Awaitable[int]] = no_offset,
    ) -> None:
        self._reservations = reservations
        self._held = held
        self._attempts = attempts
        self._payments = payments
        self._settlements = settlements
        self._clock_offset_ms = clock_offset_ms
        self._after = _BEGIN

    async def close(self) -> int:
        """Settle what the provider knows of overdue attempts; answers how many were asked about.

        A run goes on behind the last, so that attempts that stay as they are, such as those of a delayed method whose
        money takes days, keep no other from being asked about. Raises ``Unavailable``. A provider that does not
        answer is asked again when all others were.
        """
        now_ms = await self._reservations.now_ms() + await self._clock_offset_ms()
        before_s = now_ms // 1000 - GRACE_SECONDS
        overdue = await self._attempts.load_overdue(before_s, self._after, MOST_ASKED_IN_ONE_RUN)
        last = overdue[-1].frozen if len(overdue) == MOST_ASKED_IN_ONE_RUN else None
        self._after = _BEGIN if last is None else (last.order_id, last.number)
        for attempt in overdue:
            try:
                await self._settle(attempt, now_ms // 1000)
            except (ProviderError, ProviderTimeout) as error:
                log.warning("overdue_attempt_unknown", order=attempt.frozen.order_id, reason=error.code)
        return len(overdue)

    async def _settle(self, attempt: Attempt, now_s: int) -> None:
        port = self._payments[attempt.provider]
        session = await self._session_of(port, attempt)
        if session is None:
            # First the attempt, as checkout does: one that has its session by now keeps its units.
            if await self._attempts.fail(attempt.frozen, "never_opened"):
                await self._held.give_back(attempt.frozen.tenant, attempt.frozen.reservation_id)
            else:
                await self._attempts.end(attempt.frozen)
            return
        if attempt.status is AttemptStatus.FROZEN and await self._attempts.attach(attempt.frozen, session) is None:
            return
        if session.state is SessionState.OPEN:
            if port.sessions_end or not await self._has_lapsed(attempt):
                return
            # Nobody can close it: it is not on offer any more, and a payment that comes all the same is a late one.
            session = replace(session, state=SessionState.EXPIRED)
        if session.state is SessionState.UNPAID:
            await self._attempts.look_up_later(attempt.frozen, now_s + PAUSE_FOR_MONEY_SECONDS)
            if attempt.status is AttemptStatus.UNPAID:
                return
        await self._settlements.receive(attempt.provider, event_from(session))
        if session.state is SessionState.EXPIRED:
            # One that gave way to an attempt which never came: what it held ends by itself.
            await self._attempts.end(attempt.frozen)

    async def _has_lapsed(self, attempt: Attempt) -> bool:
        """Whether what an attempt was to pay for is held no more; an extension by hand may have put that off."""
        held = attempt.frozen.reservation_id
        return held is None or not await self._held.is_alive(attempt.frozen.tenant, held)

    async def _session_of(self, port: PaymentPort, attempt: Attempt) -> Session | None:
        """The session as it is now; None when the attempt never had one.

        A provider that remembers the attempt's key answers a repeat with the session that it made then, and refuses
        to make one whose end has passed.
        """
        frozen = attempt.frozen
        if attempt.session_id is not None and (attempt.url is not None or frozen.reference is None):
            return await port.look_up(attempt.session_id)
        if frozen.reference is not None:
            # It may never have been sent; what the provider does not know was not.
            try:
                return await port.look_up(frozen.reference)
            except ProviderError as error:
                if not error.is_final:
                    raise
                return None
        if frozen.expires_at_s is None:
            # Without an end of its own a repeat might open a session, a day later, that nobody waits for.
            return None
        try:
            opened = await port.open(frozen)
        except ProviderError as error:
            if not error.is_final:
                # Out of order at this moment, which says nothing of the session.
                raise
            return None
        return await port.look_up(opened.id)
