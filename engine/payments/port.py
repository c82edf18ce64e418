"""The payment port: what the engine asks of a provider. Adapters know providers; nothing else does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from engine.domain import Provider


@dataclass(frozen=True, slots=True)
class PricedLine:
    """One line as the buyer reads it at the provider; ``amount_minor`` is for the whole line, discounts taken off."""

    name: str
    amount_minor: int


@dataclass(frozen=True, slots=True)
class FrozenAttempt:
    """Everything that a provider is told, fixed and stored before it hears of it.

    A repeat sends the same bytes under the same ``idempotency_key``: a value recomputed from "now" would be refused
    as "other parameters". ``expires_at_s`` is None where nothing is reserved, so that the provider's default stands,
    and where the provider knows no end. ``idempotency_key`` is the order's id, a colon and the number.
    """

    order_id: str
    reservation_id: str | None
    tenant: str
    number: int
    idempotency_key: str
    amount_minor: int
    currency: str
    email: str
    customer: str
    lines: tuple[PricedLine, ...]
    success_url: str
    cancel_url: str
    expires_at_s: int | None
    provider: Provider = Provider.STRIPE
    reference: str | None = None
    """The session's id where we choose it ourselves, so that news of it find the order without our marks."""


class SessionState(StrEnum):
    """What a provider says of a session, reduced to what the engine decides on."""

    OPEN = "open"
    PAID = "paid"
    UNPAID = "unpaid"
    """Complete, but the money of a delayed method is not there yet."""
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Session:
    """A session or transaction as the provider reports it."""

    id: str
    state: SessionState
    url: str | None
    expires_at_s: int | None
    amount_minor: int
    currency: str
    payment_ref: str | None
    """What a refund of its payment names; None while nothing was paid."""
    marked_order_id: str | None = None
    marked_tenant: str | None = None
    marked_attempt: int | None = None
    """Our own marks, as an event carries them; see :class:`ProviderEvent`."""


@dataclass(frozen=True, slots=True)
class FrozenRefund:
    """Everything that a provider is told of a refund, stored before it hears of it.

    ``id`` is the row of our ledger, ``round`` rises only when the refund of the round before is known to have failed,
    or to have been refused, so that the key never brings back what failed. ``amount_minor`` is what goes back, in
    minor units.
    """

    id: str
    round: int
    tenant: str
    order_id: str | None
    payment_ref: str
    amount_minor: int
    currency: str

    @property
    def idempotency_key(self) -> str:
        return f"refund:{self.id}:{self.round}"


class ProviderRefundStatus(StrEnum):
    """How far a refund is at the provider. In this order news of it outrank each other, whichever came first."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ProviderRefund:
    """One refund as the provider tells of it, in an answer, a look-up or an event; whoever asked for it.

    ``ref`` is the provider's id; None where an event has none. ``alias`` is another name that events use for it.
    ``marked_refund_id`` and ``marked_round`` are our own mark: the ledger's row that it was made for.
    """

    ref: str | None
    payment_ref: str
    amount_minor: int
    currency: str
    status: ProviderRefundStatus
    alias: str | None = None
    reason: str | None = None
    marked_refund_id: str | None = None
    marked_round: int | None = None


@dataclass(frozen=True, slots=True)
class RefundTotal:
    """How much of a payment has gone back in all, as one event says it; later events say more, or repeat."""

    payment_ref: str
    total_minor: int
    currency: str


@dataclass(frozen=True, slots=True)
class Dispute:
    """A buyer's bank asks for the money of a payment back. ``status`` and ``reason`` are the provider's words."""

    ref: str
    payment_ref: str
    amount_minor: int
    currency: str
    status: str
    reason: str | None
    is_closed: bool


class EventKind(StrEnum):
    """What an event means to the engine; FOREIGN is anything that it does not act on."""

    PAID = "paid"
    UNPAID = "unpaid"
    EXPIRED = "expired"
    REFUND = "refund"
    """News of money that goes back: ``refund``, or ``refund_total``, says what."""
    DISPUTE = "dispute"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class ProviderEvent:
    """A verified event. ``marked_order_id`` is our own mark, found in its metadata; None when there is none.

    ``dedup_key`` is the provider's event id, or where it has none the fields that tell two events apart.
    """

    kind: EventKind
    type: str
    dedup_key: str
    session_id: str | None
    payment_ref: str | None
    amount_minor: int | None
    currency: str | None
    created_at_s: int | None
    marked_order_id: str | None = None
    marked_tenant: str | None = None
    marked_attempt: int | None = None
    """Which attempt of the order our mark names: of two sessions of one order, the event is about this one."""
    body: Mapping[str, object] = field(default_factory=dict)
    refund: ProviderRefund | None = None
    refund_total: RefundTotal | None = None
    dispute: Dispute | None = None


class ExpireOutcome(StrEnum):
    """Answer of closing a session: only EXPIRED means closed; COMPLETE means reconcile as paid.

    LAPSES: the provider closes none. It is no longer on offer, and who kept its address may still pay.
    """

    EXPIRED = "expired"
    COMPLETE = "complete"
    LAPSES = "lapses"


class PaymentPort(Protocol):
    """The verbs that every adapter has.

    All raise ``engine.errors.ProviderError`` when the provider certainly refused and
    ``engine.errors.ProviderTimeout`` when it is unknown whether it acted.
    """

    @property
    def sessions_end(self) -> bool:
        """Whether a session ends at the second that it was given, and can be closed before.

        Otherwise it only lapses: it is not on offer any more, and a payment may come all the same.
        """
        ...

    def reference_of(self, order_id: str, number: int) -> str | None:
        """The id that the session of this attempt will have, where it is ours to choose; None where it is not."""
        ...

    async def open(self, attempt: FrozenAttempt) -> Session:
        """Create the session of a frozen attempt, or get the one that the same attempt created before.

        Raises ``SessionLost`` where the provider has that one and does not say any more where it is paid.
        """
        ...

    async def look_up(self, session_id: str) -> Session:
        """The session as it is now."""
        ...

    async def expire(self, session_id: str) -> ExpireOutcome:
        """Close an open session, so that it can't be paid any more."""
        ...

    def paid_since(self, since_s: int) -> AsyncIterator[Session]:
        """Sessions made at or after this second (of the provider's clock) that are paid, ours or not."""
        ...

    async def refund(self, refund: FrozenRefund) -> ProviderRefund:
        """Send money back. Raises ``AlreadyRefunded`` when nothing of the payment is left."""
        ...

    async def look_up_refunds(self, payment_ref: str) -> list[ProviderRefund]:
        """Every refund of a payment that the provider knows, whoever asked for it."""
        ...

    def verify(self, body: bytes, header: str | None, now_s: float) -> ProviderEvent:
        """Check the signature over the raw bytes and parse them; raises ``BadSignature`` or ``MalformedBody``."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


PaymentPorts = Mapping[Provider, PaymentPort]
"""The adapters by the provider that each speaks to."""
