"""Orders as they are stored and shown: what was bought, what it costs, and how far paying it has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from engine.domain import (
    AttemptStatus,
    OrderStatus,
    PaymentStatus,
    Provider,
    RefundStatus,
    Reservation,
    SettlementKind,
    SettlementState,
)
from engine.payments.port import FrozenAttempt
from engine.pricing import OrderLine


@dataclass(frozen=True, slots=True)
class Order:
    """What a buyer pays for. ``amount_minor`` is due after the discount; ``expires_at_ms`` is the reservation's."""

    id: str
    tenant: str
    customer: str
    email: str
    currency: str
    amount_minor: int
    discount_minor: int
    provider: Provider
    request_fingerprint: str
    success_url: str
    cancel_url: str
    lines: tuple[OrderLine, ...]
    reservation_id: str | None = None
    code: str = ""
    period: str = ""
    idempotency_key: str | None = None
    expires_at_ms: int | None = None
    status: OrderStatus = OrderStatus.PENDING
    late: bool = False
    withdrawn: bool = False
    """Cancelled by its seller while unpaid: a payment that comes all the same goes back."""
    refunded_minor: int = 0
    created_at: datetime | None = None

    def at(self, now_ms: int) -> Order:
        """The order as it reads now: one whose reservation expired unpaid is cancelled, though nobody wrote it."""
        if self.status is OrderStatus.PENDING and self.expires_at_ms is not None and self.expires_at_ms <= now_ms:
            return replace(self, status=OrderStatus.CANCELLED)
        return self


@dataclass(frozen=True, slots=True)
class Attempt:
    """One session at a provider. ``url`` is set once the buyer was told of it."""

    frozen: FrozenAttempt
    provider: Provider
    status: AttemptStatus = AttemptStatus.FROZEN
    session_id: str | None = None
    url: str | None = None
    session_expires_at_s: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """The checkout that asked for a further attempt of an order: its idempotency key, and what that must bring."""

    idempotency_key: str
    fingerprint: str


class Withdrawal(StrEnum):
    """What came of taking an unpaid order back."""

    DONE = "done"
    """It is withdrawn, or was cancelled before."""
    PAID = "paid"
    ON_OFFER = "on_offer"
    """A session of it can be paid still: another call has opened one."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An order with its newest attempt; none where nothing is to be paid.

    ``asked_fingerprint`` is what the key that it was found by must bring again, where that key asked for a further
    attempt of an order that another key had made.
    """

    order: Order
    attempt: Attempt | None
    asked_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """What a checkout commits in one transaction before the provider hears of it."""

    order: Order
    attempt: FrozenAttempt | None
    reservation: Reservation | None


@dataclass(frozen=True, slots=True)
class Payment:
    """Money that arrived for an order."""

    provider: Provider
    ref: str
    amount_minor: int
    currency: str
    status: PaymentStatus


@dataclass(frozen=True, slots=True)
class RefundShown:
    """Money of an order that goes back. ``id`` is the one that whoever asked for it gave it, else ours or the
    provider's."""

    id: str
    amount_minor: int
    status: RefundStatus


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One thing that happened to an order."""

    at: datetime
    event: str
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OrderStory:
    """An order with all that became of it."""

    order: Order
    payments: tuple[Payment, ...]
    refunds: tuple[RefundShown, ...]
    history: tuple[HistoryEntry, ...]


@dataclass(frozen=True, slots=True)
class OrderFilter:
    """Which orders to list, oldest first; ``after`` is the id of the last one already seen."""

    status: OrderStatus | None = None
    customer: str | None = None
    after: str | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class StoredSettlement:
    """A stored instruction that ends a reservation, as far as applying it needs."""

    id: str
    kind: SettlementKind
    state: SettlementState
    tenant: str
    reservation_id: str
    payment_ref: str
    restock: bool
    record: str
