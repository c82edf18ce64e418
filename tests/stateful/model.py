"""The rules of reserving in plain Python, without Redis, time or concurrency, to compare the engine with.

It follows the written rules, not the scripts. What it takes from the engine is one thing only: up to which second a
pool was swept, since when somebody looks is nobody's promise. It matters only after a clock stepped back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.domain import (
    Claim,
    LatePayment,
    Outcome,
    PoolDefinition,
    PoolStatus,
    Refusal,
    ReservationRequest,
    ReservationStatus,
)

RESERVED, COMPLETED = ReservationStatus.RESERVED, ReservationStatus.COMPLETED
RELEASED, CANCELLED = ReservationStatus.RELEASED, ReservationStatus.CANCELLED
LONGEST_LIFE_MS = 30 * 24 * 3600 * 1000
STRICTNESS = [LatePayment.HONOUR, LatePayment.REFUND_IF_FULL, LatePayment.REFUND]

Answer = tuple[str, object]
"""A word, and what the model says of the rest: a refusal, a reservation's status, or nothing."""


@dataclass
class Pool:
    """A pool by its definition; counts are sums over reservations."""

    definition: PoolDefinition
    swept_to_s: int = 0


@dataclass
class Held:
    """A reservation. ``limited`` are the pools in which it counts against the customer's limit."""

    id: str
    claims: tuple[Claim, ...]
    customer: str | None
    ttl_ms: int
    created_at_ms: int
    expires_at_s: int
    limited: set[str]
    status: ReservationStatus = RESERVED
    payment: str = ""
    refused: list[str] = field(default_factory=list)
    late: bool = False
    over_cap: int = 0
    restocked: bool = False
    version: int = 1

    def of(self, pool: str) -> int:
        return sum(claim.quantity for claim in self.claims if claim.pool == pool)

    @property
    def sold(self) -> bool:
        return self.status is COMPLETED or (self.status is CANCELLED and not self.restocked)


class Model:
    """All pools and reservations of one tenant, and a clock."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.pools: dict[str, Pool] = {}
        self.held: dict[str, Held] = {}

    def counted(self, held: Held, pool: str) -> bool:
        """Whether its units of a pool were not yet given away by a sweep, nor ended otherwise."""
        return held.status is RESERVED and held.expires_at_s > self.pools[pool].swept_to_s

    def live(self, held: Held, pool: str) -> bool:
        """Counted, and its end lies ahead: what a decision on the pool must reckon with now."""
        return self.counted(held, pool) and self.now_ms < held.expires_at_s * 1000

    def alive(self, held: Held) -> bool:
        return all(self.live(held, claim.pool) for claim in held.claims)

    def reserved(self, pool: str, but: Held | None = None) -> int:
        return sum(held.of(pool) for held in self.held.values() if self.live(held, pool) and held is not but)

    def completed(self, pool: str) -> int:
        return sum(held.of(pool) for held in self.held.values() if held.sold)

    def available(self, pool: str) -> int | None:
        cap = self.pools[pool].definition.cap
        return None if cap is None else max(0, cap - self.completed(pool) - self.reserved(pool))

    def earliest_end_ms(self, pool: str) -> int | None:
        ends = [held.expires_at_s * 1000 for held in self.held.values() if self.live(held, pool) and held.of(pool)]
        return min(ends, default=None)

    def _holdings(self, pool: str, customer: str | None) -> list[Held]:
        """What a customer holds against the limit of a pool, in the order in which it was made."""
        return [held for held in self.held.values() if held.customer == customer and pool in held.limited]

    def define(self, definition: PoolDefinition) -> None:
        known = self.pools.get(definition.pool)
        if known is None:
            self.pools[definition.pool] = Pool(definition)
        elif definition.rev > known.definition.rev:
            known.definition = definition

    def reserve(self, request: ReservationRequest) -> Answer:
        """``granted``, ``existing``, ``id_conflict``, ``customer_required``, or ``refused`` with the refusal."""
        known = self.held.get(request.id)
        if known is not None:
            same = (known.claims, known.customer, known.ttl_ms) == (request.claims, request.customer, request.ttl_ms)
            return ("existing", known) if same else ("id_conflict", None)
        for claim in request.claims:
            refusal = self._refusal(claim, request.customer)
            if refusal is not None:
                return refusal
        expires_at_s = -(-(self.now_ms + request.ttl_ms) // 1000)
        for claim in request.claims:
            expires_at_s = max(expires_at_s, self.pools[claim.pool].swept_to_s + 1)
        limited = {c.pool for c in request.claims if self.pools[c.pool].definition.per_customer is not None}
        made = Held(request.id, request.claims, request.customer, request.ttl_ms, self.now_ms, expires_at_s, limited)
        self.held[request.id] = made
        return "granted", made

    def _refusal(self, claim: Claim, customer: str | None) -> Answer | None:
        name = claim.pool
        if name not in self.pools:
            return "refused", Refusal(Outcome.UNKNOWN_POOL, name)
        outcome = self._first_reason(claim, customer)
        if outcome is None or outcome is Outcome.CUSTOMER_REQUIRED:
            return None if outcome is None else ("customer_required", name)
        refusal = Refusal(
            outcome,
            name,
            self.available(name),
            retry_at_ms=self.earliest_end_ms(name) if outcome is Outcome.ALL_RESERVED else None,
            opens_at_ms=self.pools[name].definition.opens_at_ms if outcome is Outcome.NOT_OPEN else None,
            held_by=self._held_by(name, customer) if outcome is Outcome.LIMIT_REACHED else None,
        )
        return "refused", refusal

    def _first_reason(self, claim: Claim, customer: str | None) -> Outcome | None:
        """The precedence of refusals, from top to bottom."""
        name, quantity, now_ms = claim.pool, claim.quantity, self.now_ms
        rules, sold, reserved = self.pools[name].definition, self.completed(name), self.reserved(name)
        limit, mine = rules.per_customer, self._units_of(name, customer)
        reasons = {
            Outcome.PAUSED: rules.status is PoolStatus.PAUSED,
            Outcome.CLOSED: rules.status is PoolStatus.CLOSED
            or (rules.closes_at_ms is not None and now_ms >= rules.closes_at_ms),
            Outcome.NOT_OPEN: rules.opens_at_ms is not None and now_ms < rules.opens_at_ms,
            Outcome.CUSTOMER_REQUIRED: limit is not None and customer is None,
            Outcome.LIMIT_REACHED: limit is not None and mine + quantity > limit,
            Outcome.SOLD_OUT: rules.cap is not None and sold + quantity > rules.cap,
            Outcome.ALL_RESERVED: rules.cap is not None and sold + reserved + quantity > rules.cap,
        }
        return next((outcome for outcome, holds in reasons.items() if holds), None)

    def _units_of(self, pool: str, customer: str | None) -> int:
        """What a customer has of a pool against its limit."""
        return sum(held.of(pool) for held in self._holdings(pool, customer) if held.sold or self.live(held, pool))

    def _held_by(self, pool: str, customer: str | None) -> str | None:
        return next((held.id for held in self._holdings(pool, customer) if self.live(held, pool)), None)

    def complete(self, identifier: str, payment: str) -> str:
        """The outcome's word, or ``unknown`` or ``illegal``."""
        held = self.held.get(identifier)
        if held is None:
            return "unknown"
        if payment in held.refused:
            return "refund_due"
        if held.status in {COMPLETED, CANCELLED}:
            return self._pay_again(held, payment)
        if self.alive(held):
            return self._sell(held, payment, late=False, over_cap=0)
        over = max(self._over(held, claim) for claim in held.claims)
        strictest = max((self.pools[c.pool].definition.late_payment for c in held.claims), key=STRICTNESS.index)
        if strictest is LatePayment.REFUND or (strictest is LatePayment.REFUND_IF_FULL and over):
            held.status = RELEASED
            return self._refuse(held, payment)
        return self._sell(held, payment, late=True, over_cap=over)

    def _pay_again(self, held: Held, payment: str) -> str:
        if held.status is COMPLETED:
            return "already_completed" if payment in {"", held.payment} else "duplicate_payment"
        if not payment:
            return "illegal"
        return "already_completed" if payment == held.payment else self._refuse(held, payment)

    def _over(self, held: Held, claim: Claim) -> int:
        """By how many units of its own a pool would pass its cap."""
        cap = self.pools[claim.pool].definition.cap
        if cap is None:
            return 0
        after = self.completed(claim.pool) + self.reserved(claim.pool, but=held) + claim.quantity
        return min(claim.quantity, max(0, after - cap))

    def _sell(self, held: Held, payment: str, *, late: bool, over_cap: int) -> str:
        if held.customer is not None:
            held.limited |= {c.pool for c in held.claims if self.pools[c.pool].definition.per_customer is not None}
        held.status, held.payment, held.late, held.over_cap = COMPLETED, payment, late, over_cap
        held.version += 1
        return "completed"

    def _refuse(self, held: Held, payment: str) -> str:
        if payment:
            held.refused.append(payment)
        held.version += 1
        return "refund_due"

    def release(self, identifier: str) -> str:
        held = self.held.get(identifier)
        if held is None:
            return "unknown"
        if held.status is not RESERVED:
            return {RELEASED: "already_released", COMPLETED: "already_completed", CANCELLED: "illegal"}[held.status]
        held.status = RELEASED
        held.version += 1
        return "released"

    def cancel(self, identifier: str, restock: bool) -> str:
        held = self.held.get(identifier)
        if held is None:
            return "unknown"
        if held.status is not COMPLETED:
            return "already_cancelled" if held.status is CANCELLED else "illegal"
        held.status, held.restocked = CANCELLED, restock
        held.version += 1
        return "cancelled"

    def extend(self, identifier: str, ttl_ms: int) -> str:
        held = self.held.get(identifier)
        if held is None:
            return "unknown"
        if not self.alive(held):
            return "illegal"
        bound_s = -(-(held.created_at_ms + LONGEST_LIFE_MS) // 1000)
        end_s = max(held.expires_at_s, min(bound_s, -(-(self.now_ms + ttl_ms) // 1000)))
        if end_s != held.expires_at_s:
            held.expires_at_s = end_s
            held.version += 1
        return "extended"

    def hold(self, identifier: str, ttl_ms: int) -> str:
        """The outcome's word, or ``unknown``."""
        held = self.held.get(identifier)
        if held is None:
            return "unknown"
        if held.status is not RESERVED:
            return "already_completed" if held.status is COMPLETED else "not_held"
        end_s = max(held.expires_at_s, -(-(self.now_ms + ttl_ms) // 1000))
        if not self.alive(held):
            if not all(self._has_room_again(held, claim) for claim in held.claims):
                return "not_held"
            end_s = max(end_s, *(self.pools[claim.pool].swept_to_s + 1 for claim in held.claims))
            # The customer holds it anew, after whatever was made meanwhile.
            self.held[identifier] = self.held.pop(identifier)
        elif end_s == held.expires_at_s:
            return "held"
        held.expires_at_s = end_s
        held.version += 1
        return "held"

    def _has_room_again(self, held: Held, claim: Claim) -> bool:
        """By cap and customer limit alone, its own units not counted against it."""
        name, rules = claim.pool, self.pools[claim.pool].definition
        if rules.cap is not None and self.completed(name) + self.reserved(name, but=held) + claim.quantity > rules.cap:
            return False
        if rules.per_customer is None or name not in held.limited:
            return True
        own = held.of(name) if self.live(held, name) else 0
        return self._units_of(name, held.customer) - own + claim.quantity <= rules.per_customer

    def saw_sweep(self, pool: str, swept_to_s: int, latest_now_ms: int) -> None:
        """Take over up to which second a pool was swept; only what was due at some time may have been."""
        known = self.pools[pool]
        assert known.swept_to_s <= swept_to_s <= max(known.swept_to_s, latest_now_ms // 1000)
        known.swept_to_s = swept_to_s
