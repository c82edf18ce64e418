"""The frozen types of the domain and the names of its states and outcomes; each name exists here once."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

IDENTIFIER_PATTERN = r"^[A-Za-z0-9._@+-]{1,128}$"
POOL_PATTERN = r"^[A-Za-z0-9._@+/-]{1,128}$"
LARGEST_CAP = 1_000_000_000_000
LARGEST_QUANTITY = 1_000_000
LARGEST_PER_CUSTOMER = 1_000
MOST_CLAIMS = 32
MOST_IN_ONE_CALL = 64
"""Reservations carried by one script call, so that no run of a script takes long."""


class PoolStatus(StrEnum):
    """What the owner says of a pool; time is judged apart, by its window."""

    ACTIVE = "active"
    PAUSED = "paused"
    CLOSED = "closed"


class LatePayment(StrEnum):
    """What becomes of a payment against an expired or released reservation, mildest first."""

    HONOUR = "honour"
    REFUND_IF_FULL = "refund_if_full"
    REFUND = "refund"


class ReservationStatus(StrEnum):
    """``reserved`` → ``completed`` or ``released``; ``completed`` → ``cancelled``. Expired is not a state."""

    RESERVED = "reserved"
    COMPLETED = "completed"
    RELEASED = "released"
    CANCELLED = "cancelled"


class Outcome(StrEnum):
    """Every word that a script answers with, as spelt in Lua; a test holds the two sides together."""

    GRANTED = "granted"
    EXISTING = "existing"
    COMPLETED = "completed"
    ALREADY_COMPLETED = "already_completed"
    DUPLICATE_PAYMENT = "duplicate_payment"
    REFUND_DUE = "refund_due"
    RELEASED = "released"
    ALREADY_RELEASED = "already_released"
    EXTENDED = "extended"
    HELD = "held"
    NOT_HELD = "not_held"
    CANCELLED = "cancelled"
    ALREADY_CANCELLED = "already_cancelled"
    DEFINED = "defined"
    REMOVED = "removed"
    FOUND = "found"
    RESTORED = "restored"

    UNKNOWN_POOL = "unknown_pool"
    UNKNOWN_RESERVATION = "unknown_reservation"
    PAUSED = "paused"
    CLOSED = "closed"
    NOT_OPEN = "not_open"
    LIMIT_REACHED = "limit_reached"
    SOLD_OUT = "sold_out"
    ALL_RESERVED = "all_reserved"
    ID_CONFLICT = "id_conflict"
    ILLEGAL_TRANSITION = "illegal_transition"
    CUSTOMER_REQUIRED = "customer_required"
    STALE = "stale"
    ROLL = "roll"
    NOT_READY = "not_ready"
    BACKLOG_FULL = "backlog_full"


class OrderStatus(StrEnum):
    """``pending → paid → confirmed``; ``cancelled`` was never paid or owes a refund; ``refunded`` gave all back."""

    PENDING = "pending"
    PAID = "paid"
    CONFIRMED = "confirmed"
    CANCELLED = "cancelled"
    REFUNDED = "refunded"


class OrderEvent(StrEnum):
    """What an order's history tells."""

    CREATED = "created"
    SESSION_OPENED = "session_opened"
    SESSION_CLOSED = "session_closed"
    ATTEMPT_FAILED = "attempt_failed"
    PAYMENT_PENDING = "payment_pending"
    AMOUNT_MISMATCH = "amount_mismatch"
    PAID = "paid"
    DUPLICATE_PAYMENT = "duplicate_payment"
    REFUND_DUE = "refund_due"
    RELEASED = "released"
    CONFIRMED = "confirmed"
    CANCELLED = "cancelled"
    REFUND_OWED = "refund_owed"
    REFUND_PENDING = "refund_pending"
    REFUNDED = "refunded"
    REFUND_FAILED = "refund_failed"
    REFUND_TOTAL = "refund_total"
    """The provider says how much went back in all, and no refund of its own has told of it yet."""
    DISPUTED = "disputed"


class AttemptStatus(StrEnum):
    """Life of one session or transaction at the provider, as far as we know it.

    ``closing`` gives way to a newer attempt on the same reservation: that its session ends gives nothing back.
    ``unpaid`` is complete, and the money of a delayed method on its way.
    """

    FROZEN = "frozen"
    OPEN = "open"
    CLOSING = "closing"
    UNPAID = "unpaid"
    PAID = "paid"
    EXPIRED = "expired"
    FAILED = "failed"


class PaymentStatus(StrEnum):
    """What becomes of money that arrived: it stays, it has to go back, it went back, or a person has to decide."""

    KEPT = "kept"
    REFUND_OWED = "refund_owed"
    REFUNDED = "refunded"
    FLAGGED = "flagged"


class RefundStatus(StrEnum):
    """Life of a row of the refund ledger. A refund that fails at the provider, even later, is ``owed`` again."""

    OWED = "owed"
    REQUESTING = "requesting"
    """Claimed: a worker is about to ask the provider, or died while it did."""
    PENDING = "pending"
    """The provider took it on and has not said yet that the money went back."""
    REFUNDED = "refunded"


class RefundCause(StrEnum):
    """Why money goes back."""

    REQUESTED = "requested"
    CANCELLED = "cancelled"
    DUPLICATE = "duplicate"
    LATE = "late"
    MISMATCHED = "mismatched"


class MismatchPolicy(StrEnum):
    """What becomes of a payment whose amount or currency is not what was asked for."""

    REFUND = "refund"
    FLAG = "flag"


class SettlementState(StrEnum):
    """Life of a stored settlement; only the persister writes ``applied`` for one that names a reservation.

    ``unmatched`` belongs to no session known so far; ``mismatched`` brought another amount or currency.
    """

    STORED = "stored"
    APPLIED = "applied"
    UNMATCHED = "unmatched"
    MISMATCHED = "mismatched"


class SettlementKind(StrEnum):
    """What a settlement asks of the reservation it names."""

    COMPLETE = "complete"
    RELEASE = "release"
    CANCEL = "cancel"
    HOLD = "hold"
    """Keep the units, or take them again: the money of a delayed method is on its way."""


class Provider(StrEnum):
    """Who moves the money; ``api`` marks a settlement that an API caller asked for, ``none`` a total of zero."""

    STRIPE = "stripe"
    PAYSTACK = "paystack"
    API = "api"
    NONE = "none"


class Scope(StrEnum):
    """What a key may do; see the contract."""

    READ = "read"
    CHECKOUT = "checkout"
    SETTLE = "settle"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Claim:
    """So many units of one pool. ``rev`` is the definition that the caller built on; 0 asks for no check."""

    pool: str
    quantity: int
    rev: int = 0


@dataclass(frozen=True, slots=True)
class PoolDefinition:
    """What the owner decides of a pool. ``cap`` None is unlimited, 0 is nothing; ``rev`` rises with each change."""

    tenant: str
    pool: str
    cap: int | None
    rev: int
    opens_at_ms: int | None = None
    closes_at_ms: int | None = None
    status: PoolStatus = PoolStatus.ACTIVE
    per_customer: int | None = None
    late_payment: LatePayment = LatePayment.HONOUR


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool as the script sees it now. ``available`` is derived and never below 0; None when unlimited."""

    definition: PoolDefinition
    completed: int
    reserved: int
    next_expiry_at_ms: int | None

    @property
    def available(self) -> int | None:
        cap = self.definition.cap
        return None if cap is None else max(0, cap - self.completed - self.reserved)


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """What a caller wants reserved; all claims or none. ``origin`` fields are empty outside a checkout."""

    tenant: str
    id: str
    claims: tuple[Claim, ...]
    ttl_ms: int
    customer: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    order_id: str = ""
    code: str = ""
    period: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation's whole state at one version; what the record in Redis and an outbox entry carry.

    ``counted`` says per claim whether it counts against the customer's limit of that pool.
    ``refused_payments`` are payments answered with ``refund_due``; each stays so however often it is asked again.
    ``restocked`` is meaningful when cancelled. ``now_ms`` is the script's clock of the answer (0 when read from
    Postgres, where ``expired`` can't be told).
    """

    tenant: str
    id: str
    status: ReservationStatus
    version: int
    created_at_ms: int
    expires_at_ms: int
    claims: tuple[Claim, ...]
    counted: tuple[bool, ...]
    ttl_ms: int
    fingerprint: str
    completed_at_ms: int | None = None
    ended_at_ms: int | None = None
    late: bool = False
    over_cap: int = 0
    restocked: bool = False
    payment_ref: str = ""
    refused_payments: tuple[str, ...] = ()
    customer: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    order_id: str = ""
    code: str = ""
    period: str = ""
    now_ms: int = 0
    counts: bool = True
    """Whether every claim is still counted in its pool; False once a sweep dropped one of them."""
    epoch: int = 0
    """The epoch that Redis answered under when it was reserved or read; 0 for what stands in Postgres. Who commits
    what only Redis may know must check that this epoch has not ended."""

    @property
    def alive(self) -> bool:
        """Reserved, before its end, and not yet swept."""
        return self.status is ReservationStatus.RESERVED and self.counts and self.now_ms < self.expires_at_ms

    @property
    def expired(self) -> bool:
        return self.status is ReservationStatus.RESERVED and not self.alive


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing was reserved: the first claim in request order that fails, and what the buyer may wait for."""

    outcome: Outcome
    pool: str
    available: int | None = None
    retry_at_ms: int | None = None
    opens_at_ms: int | None = None
    held_by: str | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """A reservation made now (``created``), or the one that the same request made before."""

    reservation: Reservation
    created: bool


@dataclass(frozen=True, slots=True)
class Settled:
    """What a transition did, and the reservation afterwards."""

    outcome: Outcome
    reservation: Reservation
