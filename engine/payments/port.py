"""The payment port: what the engine asks of a provider. Adapters know providers; nothing else does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PricedLine:
    """One line as the buyer reads it at the provider; ``amount_minor`` is for the whole line, discounts taken off."""

    name: str
    amount_minor: int


@dataclass(frozen=True, slots=True)
class FrozenAttempt:
    """Everything that a provider is told, fixed and stored before it hears of it.

    A repeat sends the same bytes under the same ``idempotency_key``: a value recomputed from "now" would be refused
    as "other parameters". ``expires_at_s`` is None where nothing is reserved: the provider's default stands.
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


class EventKind(StrEnum):
    """What an event means to the engine; FOREIGN is anything that it does not act on."""

    PAID = "paid"
    UNPAID = "unpaid"
    EXPIRED = "expired"
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


class ExpireOutcome(StrEnum):
    """Answer of closing a session: only EXPIRED means closed; COMPLETE means reconcile as paid."""

    EXPIRED = "expired"
    COMPLETE = "complete"


class PaymentPort(Protocol):
    """The verbs that every adapter has.

    All raise ``engine.errors.ProviderError`` when the provider certainly refused and
    ``engine.errors.ProviderTimeout`` when it is unknown whether it acted.
    """

    async def open(self, attempt: FrozenAttempt) -> Session:
        """Create the session of a frozen attempt, or get the one that the same attempt created before."""
        ...

    async def look_up(self, session_id: str) -> Session:
        """The session as it is now."""
        ...

    async def expire(self, session_id: str) -> ExpireOutcome:
        """Close an open session, so that it can't be paid any more."""
        ...

    def verify(self, body: bytes, header: str | None, now_s: float) -> ProviderEvent:
        """Check the signature over the raw bytes and parse them; raises ``BadSignature`` or ``MalformedBody``."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
