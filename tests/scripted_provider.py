"""A provider in memory that does as it is told: its sessions, its refunds, and what goes wrong with a call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from engine.errors import AlreadyRefunded, MalformedBody, ProviderError, SessionLost
from engine.payments.port import (
    ExpireOutcome,
    FrozenAttempt,
    FrozenRefund,
    ProviderEvent,
    ProviderRefund,
    ProviderRefundStatus,
    Session,
    SessionState,
)
from engine.settings import STRIPE_MINIMUM_SESSION_SECONDS


@dataclass
class ScriptedProvider:
    """A :class:`engine.payments.port.PaymentPort`: idempotent by key as Stripe is, or, where ``sessions_end`` is False,
    like Paystack, which knows neither keys nor ends and tells a session's address once.

    ``before`` and ``after`` hold, per verb, what is raised in the next calls: before the provider acts, or after it.
    """

    now_s: Callable[[], int]
    sessions_end: bool = True
    sessions: dict[str, Session] = field(default_factory=dict)
    made_at_s: dict[str, int] = field(default_factory=dict)
    by_key: dict[str, tuple[FrozenAttempt, str]] = field(default_factory=dict)
    refunds: list[ProviderRefund] = field(default_factory=list)
    refund_status: ProviderRefundStatus = ProviderRefundStatus.SUCCEEDED
    refunds_by_key: dict[str, tuple[FrozenRefund, ProviderRefund]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    before: dict[str, list[BaseException | None]] = field(default_factory=dict)
    after: dict[str, list[BaseException | None]] = field(default_factory=dict)
    opened: Callable[[Session], Any] | None = None
    refunding: Callable[[FrozenRefund], Any] | None = None
    """Awaited, as ``opened`` is, when the provider has acted and before it answers."""
    payments: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Amount and currency of what was paid, by what a refund names."""

    def reference_of(self, order_id: str, number: int) -> str | None:
        return None if self.sessions_end else f"{order_id}-{number}"

    async def open(self, attempt: FrozenAttempt) -> Session:
        self.calls.append(("open", attempt.idempotency_key))
        self._fail(self.before, "open")
        session = self._repeated(attempt) if attempt.idempotency_key in self.by_key else self._made(attempt)
        if self.opened is not None:
            await self.opened(session)
        self._fail(self.after, "open")
        return session

    def _repeated(self, attempt: FrozenAttempt) -> Session:
        known, session_id = self.by_key[attempt.idempotency_key]
        if not self.sessions_end:
            session = self.sessions[session_id]
            if session.state is SessionState.PAID:
                return session
            raise SessionLost
        assert known == attempt, "the same key brought other parameters"
        # What was true when the session was made, as Stripe replays it.
        return self._open_session(attempt, session_id)

    def _made(self, attempt: FrozenAttempt) -> Session:
        left_s = None if attempt.expires_at_s is None else attempt.expires_at_s - self.now_s()
        if left_s is not None and left_s < STRIPE_MINIMUM_SESSION_SECONDS:
            raise ProviderError(provider_code="expires_at_too_soon")
        session = self._open_session(attempt, attempt.reference or f"cs_{len(self.sessions) + 1}")
        self.by_key[attempt.idempotency_key] = (attempt, session.id)
        self.sessions[session.id] = session
        self.made_at_s[session.id] = self.now_s()
        return session

    @staticmethod
    def _open_session(attempt: FrozenAttempt, session_id: str) -> Session:
        return Session(
            session_id,
            SessionState.OPEN,
            f"https://pay.example/{session_id}",
            attempt.expires_at_s,
            attempt.amount_minor,
            attempt.currency,
            None,
            attempt.order_id,
            attempt.tenant,
            attempt.number,
        )

    async def look_up(self, session_id: str) -> Session:
        self.calls.append(("look_up", session_id))
        self._fail(self.before, "look_up")
        session = self.sessions.get(session_id)
        if session is None:
            raise ProviderError(provider_code="not_found")
        if session.state is SessionState.OPEN and session.expires_at_s and session.expires_at_s <= self.now_s():
            session = self._becomes(session_id, SessionState.EXPIRED)
        return session

    async def expire(self, session_id: str) -> ExpireOutcome:
        self.calls.append(("expire", session_id))
        self._fail(self.before, "expire")
        if self.sessions[session_id].state in (SessionState.PAID, SessionState.UNPAID):
            return ExpireOutcome.COMPLETE
        if not self.sessions_end:
            return ExpireOutcome.LAPSES
        self._becomes(session_id, SessionState.EXPIRED)
        self._fail(self.after, "expire")
        return ExpireOutcome.EXPIRED

    async def paid_since(self, since_s: int) -> AsyncIterator[Session]:
        self.calls.append(("paid_since", str(since_s)))
        self._fail(self.before, "paid_since")
        for session in list(self.sessions.values()):
            if session.state is SessionState.PAID and self.made_at_s[session.id] >= since_s:
                yield session

    async def refund(self, refund: FrozenRefund) -> ProviderRefund:
        self.calls.append(("refund", refund.idempotency_key))
        self._fail(self.before, "refund")
        known = self.refunds_by_key.get(refund.idempotency_key) if self.sessions_end else None
        if known is None:
            made = self._send_back(refund.payment_ref, refund.amount_minor, refund)
            self.refunds_by_key[refund.idempotency_key] = (refund, made)
        else:
            asked, made = known
            assert asked == refund, "the same key brought other parameters"
        if self.refunding is not None:
            await self.refunding(refund)
        self._fail(self.after, "refund")
        return made

    def _send_back(self, payment_ref: str, amount_minor: int, mark: FrozenRefund | None) -> ProviderRefund:
        paid, currency = self.payments[payment_ref]
        left = paid - self.sent_back(payment_ref)
        if left <= 0:
            raise AlreadyRefunded(provider_code="charge_already_refunded")
        if amount_minor > left:
            raise ProviderError(provider_code="refund_too_large")
        made = ProviderRefund(
            f"re_{len(self.refunds) + 1}",
            payment_ref,
            amount_minor,
            currency,
            self.refund_status,
            marked_refund_id=None if mark is None else mark.id,
            marked_round=None if mark is None else mark.round,
        )
        self.refunds.append(made)
        return made

    async def look_up_refunds(self, payment_ref: str) -> list[ProviderRefund]:
        self.calls.append(("look_up_refunds", payment_ref))
        self._fail(self.before, "look_up_refunds")
        return [refund for refund in self.refunds if refund.payment_ref == payment_ref]

    def verify(self, body: bytes, header: str | None, now_s: float) -> ProviderEvent:
        raise MalformedBody(f"{len(body)} bytes, {header}, {now_s}: events are made here, not sent")

    async def close(self) -> None:
        return None

    def pay(self, session_id: str, ref: str | None = None) -> None:
        """The buyer pays; no event is sent by that alone."""
        assert self.sessions[session_id].state in (SessionState.OPEN, SessionState.UNPAID)
        own = session_id if not self.sessions_end else f"pi_{session_id}"
        session = self._becomes(session_id, SessionState.PAID, ref or own)
        self.payments[ref or own] = (session.amount_minor, session.currency)

    def send_back_by_hand(self, payment_ref: str, amount_minor: int) -> ProviderRefund:
        """Somebody refunds at the provider's dashboard; no event is sent by that alone."""
        return self._send_back(payment_ref, amount_minor, None)

    def sent_back(self, payment_ref: str) -> int:
        """What went back of a payment, or is on its way."""
        return sum(
            refund.amount_minor
            for refund in self.refunds
            if refund.payment_ref == payment_ref and refund.status is not ProviderRefundStatus.FAILED
        )

    def called(self, verb: str) -> list[str]:
        """What the calls of a verb were about."""
        return [about for called, about in self.calls if called == verb]

    def fail_refund(self, ref: str) -> ProviderRefund:
        """A refund comes back: the buyer's bank did not take it."""
        return self.refund_becomes(ref, ProviderRefundStatus.FAILED, "lost_or_stolen_card")

    def refund_becomes(self, ref: str, status: ProviderRefundStatus, reason: str | None = None) -> ProviderRefund:
        """A refund gets further, or fails; no event is sent by that alone."""
        index = next(i for i, refund in enumerate(self.refunds) if refund.ref == ref)
        self.refunds[index] = replace(self.refunds[index], status=status, reason=reason)
        return self.refunds[index]

    @property
    def payable(self) -> list[str]:
        """Sessions on which money can still be paid."""
        return [
            s.id
            for s in self.sessions.values()
            if s.state is SessionState.OPEN and (s.expires_at_s is None or s.expires_at_s > self.now_s())
        ]

    def _becomes(self, session_id: str, state: SessionState, ref: str | None = None) -> Session:
        self.sessions[session_id] = replace(self.sessions[session_id], state=state, payment_ref=ref)
        return self.sessions[session_id]

    @staticmethod
    def _fail(plan: dict[str, list[BaseException | None]], verb: str) -> None:
        if plan.get(verb):
            error = plan[verb].pop(0)
            if error is not None:
                raise error
