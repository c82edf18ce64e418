"""How a reservation, a pool and a customer counter are written as Redis strings, on Python's side.

The scripts read and write the same strings; the order of fields stands in ``lua/README.md`` and a contract test
compares what a script wrote with what is written here. Plain separated strings are used because every server,
fakeredis included, handles them, and because parsing one is a single ``string.match``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import orjson

from engine.domain import (
    Claim,
    LatePayment,
    PoolDefinition,
    PoolState,
    PoolStatus,
    Reservation,
    ReservationStatus,
)
from engine.keys import escape, unescape

_STATUS_LETTERS = {
    ReservationStatus.RESERVED: "R",
    ReservationStatus.COMPLETED: "C",
    ReservationStatus.RELEASED: "L",
    ReservationStatus.CANCELLED: "X",
}
_STATUSES = {letter: status for status, letter in _STATUS_LETTERS.items()}
_POOL_LETTERS = {PoolStatus.ACTIVE: "a", PoolStatus.PAUSED: "p", PoolStatus.CLOSED: "c"}
_POOL_STATUSES = {letter: status for status, letter in _POOL_LETTERS.items()}
_LATE_LETTERS = {LatePayment.HONOUR: "h", LatePayment.REFUND_IF_FULL: "f", LatePayment.REFUND: "r"}
_LATE_POLICIES = {letter: policy for policy, letter in _LATE_LETTERS.items()}


def summed(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Claims with those on one pool added up, in the order in which the pools first stand."""
    by_pool: dict[str, Claim] = {}
    for claim in claims:
        before = by_pool.get(claim.pool)
        by_pool[claim.pool] = (
            claim if before is None else Claim(claim.pool, before.quantity + claim.quantity, max(before.rev, claim.rev))
        )
    return tuple(by_pool.values())


def encode_claims(claims: Iterable[Claim]) -> str:
    """``pool:quantity`` joined by commas: frozen in the record and compared by every later transition."""
    return ",".join(f"{claim.pool}:{claim.quantity}" for claim in claims)


def decode_claims(text: str) -> tuple[Claim, ...]:
    """The inverse of :func:`encode_claims`; ``rev`` is not kept."""
    pairs = (entry.rpartition(":") for entry in text.split(","))
    return tuple(Claim(pool, int(quantity)) for pool, _, quantity in pairs)


def fingerprint(claims: str, customer: str | None, ttl_ms: int) -> str:
    """What the same id must bring again to be the same request: claims, customer and ttl (16 hex digits)."""
    content = f"{claims}|{ttl_ms}|{'' if customer is None else '=' + customer}"
    return blake2b(content.encode(), digest_size=8).hexdigest()


def encode_metadata(metadata: dict[str, str]) -> str:
    """Metadata as escaped JSON; empty when there is none."""
    return escape(orjson.dumps(metadata).decode()) if metadata else ""


def encode_reservation(r: Reservation) -> str:
    """A reservation's record."""
    return "|".join(
        (
            _STATUS_LETTERS[r.status],
            str(r.version),
            str(r.created_at_ms),
            str(r.expires_at_ms // 1000),
            "" if r.completed_at_ms is None else str(r.completed_at_ms),
            "" if r.ended_at_ms is None else str(r.ended_at_ms),
            "1" if r.late else "",
            str(r.over_cap) if r.over_cap else "",
            "1" if r.restocked else "",
            "".join("1" if c else "0" for c in r.counted) if any(r.counted) else "",
            escape(r.payment_ref),
            ",".join(escape(ref) for ref in r.refused_payments),
            str(r.ttl_ms),
            r.fingerprint,
            encode_claims(r.claims),
            "" if r.customer is None else escape(r.customer),
            encode_metadata(r.metadata),
            r.order_id,
            escape(r.code),
            r.period,
        )
    )


def decode_reservation(tenant: str, identifier: str, record: str, now_ms: int = 0, counts: bool = True) -> Reservation:
    """A reservation from its record; raises ``ValueError`` when the record is not one."""
    f = record.split("|")
    if len(f) != 20:
        raise ValueError(f"a record has 20 fields, not {len(f)}")
    if f[0] not in _STATUSES:
        raise ValueError(f"a record begins with the letter of its state, not with {f[0]!r}")
    claims = decode_claims(f[14])
    return Reservation(
        tenant=tenant,
        id=identifier,
        status=_STATUSES[f[0]],
        version=int(f[1]),
        created_at_ms=int(f[2]),
        expires_at_ms=int(f[3]) * 1000,
        completed_at_ms=int(f[4]) if f[4] else None,
        ended_at_ms=int(f[5]) if f[5] else None,
        late=f[6] == "1",
        over_cap=int(f[7]) if f[7] else 0,
        restocked=f[8] == "1",
        counted=tuple(c == "1" for c in f[9]) if f[9] else (False,) * len(claims),
        payment_ref=unescape(f[10]),
        refused_payments=tuple(unescape(ref) for ref in f[11].split(",")) if f[11] else (),
        ttl_ms=int(f[12]),
        fingerprint=f[13],
        claims=claims,
        customer=unescape(f[15]) if f[15] else None,
        metadata=orjson.loads(unescape(f[16])) if f[16] else {},
        order_id=f[17],
        code=unescape(f[18]),
        period=f[19],
        now_ms=now_ms,
        counts=counts,
    )


def encode_definition(d: PoolDefinition) -> str:
    """The part of a pool's field that its owner decides: cap, status, window, limit, late policy, rev."""
    return "|".join(
        (
            "" if d.cap is None else str(d.cap),
            _POOL_LETTERS[d.status],
            "" if d.opens_at_ms is None else str(d.opens_at_ms),
            "" if d.closes_at_ms is None else str(d.closes_at_ms),
            "" if d.per_customer is None else str(d.per_customer),
            _LATE_LETTERS[d.late_payment],
            str(d.rev),
        )
    )


def encode_pool(definition: str, completed: int, reserved: int, first_s: int, swept_to_s: int) -> str:
    """A pool's field: counts, the earliest second that may be live (0 for none), how far it was swept, definition."""
    return f"{reserved}|{first_s}|{completed}|{swept_to_s}|{definition}"


def decode_pool(tenant: str, pool: str, text: str, next_expiry_at_ms: int | None = None) -> PoolState:
    """A pool from its field."""
    reserved, _first, completed, _swept, cap, status, opens, closes, per_customer, late, rev = text.split("|")
    return PoolState(
        definition=PoolDefinition(
            tenant=tenant,
            pool=pool,
            cap=int(cap) if cap else None,
            rev=int(rev),
            opens_at_ms=int(opens) if opens else None,
            closes_at_ms=int(closes) if closes else None,
            status=_POOL_STATUSES[status],
            per_customer=int(per_customer) if per_customer else None,
            late_payment=_LATE_POLICIES[late],
        ),
        completed=int(completed),
        reserved=int(reserved),
        next_expiry_at_ms=next_expiry_at_ms,
    )


@dataclass(frozen=True, slots=True)
class Holding:
    """One reservation of a customer in a pool's counter; it counts while ``expires_at_s`` lies ahead."""

    reservation: str
    quantity: int
    expires_at_s: int


def encode_holdings(completed: int, holdings: Iterable[Holding]) -> str:
    """A customer counter: completed units, then what is reserved, ``;id:quantity:second`` each."""
    return str(completed) + "".join(f";{h.reservation}:{h.quantity}:{h.expires_at_s}" for h in holdings)


def bucket(pool: str, second: int) -> str:
    """A bucket's name: its field in the tenant hash and its member in the sorted set of expiries."""
    return f"{pool}|{second}"
