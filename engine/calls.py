"""What a script is told and what it answers: the arguments and replies of calls, as domain types."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.domain import (
    MOST_CLAIMS,
    Claim,
    Outcome,
    PoolState,
    Refusal,
    Reservation,
    ReservationRequest,
    ReservationStatus,
)
from engine.errors import Invalid
from engine.keys import escape
from engine.records import decode_pool, decode_reservation, encode_claims, encode_metadata, fingerprint, summed


@dataclass(frozen=True, slots=True)
class ReserveCall:
    """A request ready to send. ``arguments`` are id, ttl, fingerprint, tail, customer, then its claims."""

    request: ReservationRequest
    fingerprint: str
    arguments: tuple[str, ...]


def reserve_call(request: ReservationRequest) -> ReserveCall:
    """A request as the scripts take it, claims on one pool summed, as the rules count them. Raises ``Invalid``."""
    summed_claims = summed(request.claims)
    if not 1 <= len(summed_claims) <= MOST_CLAIMS:
        raise Invalid(fields={"claims": f"Between 1 and {MOST_CLAIMS} claims are needed."})
    if len(summed_claims) != len(request.claims):
        request = replace(request, claims=summed_claims)
    claims = encode_claims(request.claims)
    content = fingerprint(claims, request.customer, request.ttl_ms)
    customer = "" if request.customer is None else escape(request.customer)
    tail = "|".join(
        (
            content,
            claims,
            customer,
            encode_metadata(request.metadata),
            request.order_id,
            escape(request.code),
            request.period,
        )
    )
    arguments = [request.id, str(request.ttl_ms), content, tail, customer]
    for claim in request.claims:
        arguments += (claim.pool, str(claim.quantity), str(claim.rev))
    return ReserveCall(request, content, tuple(arguments))


def granted_reservation(call: ReserveCall, rest: str, epoch: int) -> Reservation:
    """The reservation just made, from its request and the reply ``created_ms|expires_s|counted``."""
    request = call.request
    created, expires, counted = rest.split("|")
    return Reservation(
        tenant=request.tenant,
        id=request.id,
        status=ReservationStatus.RESERVED,
        version=1,
        created_at_ms=int(created),
        expires_at_ms=int(expires) * 1000,
        claims=tuple(Claim(claim.pool, claim.quantity) if claim.rev else claim for claim in request.claims),
        counted=tuple(c == "1" for c in counted) if counted else (False,) * len(request.claims),
        ttl_ms=request.ttl_ms,
        fingerprint=call.fingerprint,
        customer=request.customer,
        metadata=request.metadata,
        order_id=request.order_id,
        code=request.code,
        period=request.period,
        now_ms=int(created),
        epoch=epoch,
    )


def existing_reservation(request: ReservationRequest, reply: str, epoch: int) -> Reservation:
    """The reservation that the same request made before, from the reply ``existing|now_ms|counts|record``."""
    _, now_ms, counts, record = reply.split("|", 3)
    reservation = decode_reservation(request.tenant, request.id, record, int(now_ms), counts == "1")
    return replace(reservation, epoch=epoch)


def refusal_of(request: ReservationRequest, outcome: Outcome, details: list[str]) -> Refusal:
    """A refusal from its reply's details: the claim's position, what is available, and one more by outcome."""
    pool = request.claims[int(details[0]) - 1].pool
    available = int(details[1]) if len(details) > 1 and details[1] else None
    last = details[2] if len(details) > 2 else ""
    return Refusal(
        outcome,
        pool,
        available=available,
        retry_at_ms=int(last) if outcome is Outcome.ALL_RESERVED else None,
        opens_at_ms=int(last) if outcome is Outcome.NOT_OPEN else None,
        held_by=(last or None) if outcome is Outcome.LIMIT_REACHED else None,
    )


def parse_reply(tenant: str, identifier: str, reply: str) -> tuple[Outcome, Reservation | None]:
    """A reply ``outcome|now_ms|counts|record``; those without a record have the outcome alone."""
    word, _, rest = reply.partition("|")
    if not rest:
        return Outcome(word), None
    now_ms, counts, record = rest.split("|", 2)
    return Outcome(word), decode_reservation(tenant, identifier, record, int(now_ms), counts == "1")


def pool_state(tenant: str, pool: str, text: str) -> PoolState:
    """A pool from its field; its earliest live second is when the next units may return."""
    first_s = int(text.split("|", 2)[1])
    return decode_pool(tenant, pool, text, first_s * 1000 if first_s else None)
