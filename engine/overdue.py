"""Attempts that nobody spoke of again: the news of how a session ended was lost, or never sent.

Once a session's time is over, the provider is asked what became of it, and the answer is settled like the event that
should have said so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from engine.code_reservations import CodeReservations
from engine.domain import AttemptStatus, Provider
from engine.errors import ProviderError, ProviderTimeout
from engine.orders import Attempt
from engine.payments.port import PaymentPort, Session, SessionState
from engine.ports import AttemptStore
from engine.reservations import ReservationEngine
from engine.settlement import SettlementService, event_from

log = structlog.get_logger(__name__)

GRACE_SECONDS: Final = 60
"""How long after a session's end its event may take before the provider is asked."""
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
        payments: PaymentPort,
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
                await self._settle(attempt)
            except (ProviderError, ProviderTimeout) as error:
                log.warning("overdue_attempt_unknown", order=attempt.frozen.order_id, reason=error.code)
        return len(overdue)

    async def _settle(self, attempt: Attempt) -> None:
        session = await self._session_of(attempt)
        if session is None:
            # First the attempt, as checkout does: one that has its session by now keeps its units.
            if await self._attempts.fail(attempt.frozen, "never_opened"):
                await self._held.give_back(attempt.frozen.tenant, attempt.frozen.reservation_id)
            return
        if attempt.status is AttemptStatus.FROZEN and await self._attempts.attach(attempt.frozen, session) is None:
            return
        if session.state is not SessionState.OPEN:
            await self._settlements.receive(Provider.STRIPE, event_from(session))

    async def _session_of(self, attempt: Attempt) -> Session | None:
        """The session as it is now; None when the attempt never had one.

        A provider that remembers the attempt's key answers a repeat with the session that it made then, and refuses
        to make one whose end has passed.
        """
        if attempt.session_id is not None:
            return await self._payments.look_up(attempt.session_id)
        if attempt.frozen.expires_at_s is None:
            # Without an end of its own a repeat might open a session, a day later, that nobody waits for.
            return None
        try:
            opened = await self._payments.open(attempt.frozen)
        except ProviderError:
            return None
        return await self._payments.look_up(opened.id)
