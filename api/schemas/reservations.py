"""Reservations on the wire."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue, StringConstraints

from api.schemas.base import Body, Customer, Identifier, PoolId, Printable
from api.times import written, written_or_none
from engine.domain import LARGEST_QUANTITY, MOST_CLAIMS, Claim, Reservation, ReservationRequest, ReservationStatus
from engine.settings import LARGEST_TTL_SECONDS

MOST_IN_A_BATCH = 500
LARGEST_METADATA_BYTES = 1024


def _small_metadata(metadata: dict[str, str]) -> dict[str, str]:
    if sum(len(name.encode()) + len(text.encode()) for name, text in metadata.items()) > LARGEST_METADATA_BYTES:
        raise ValueError(f"must not hold more than {LARGEST_METADATA_BYTES} bytes of names and texts")
    # Postgres keeps it as jsonb, which can't hold a NUL.
    if any("\0" in name or "\0" in text for name, text in metadata.items()):
        raise ValueError("must not hold NUL characters")
    return metadata


TtlSeconds = Annotated[int, Field(ge=1, le=LARGEST_TTL_SECONDS)]
Metadata = Annotated[dict[Annotated[str, StringConstraints(min_length=1)], str], AfterValidator(_small_metadata)]


class ClaimBody(Body):
    """So many units of one pool; claims on the same pool are added up."""

    pool: PoolId
    quantity: Annotated[int, Field(ge=1, le=LARGEST_QUANTITY)]


class ReservationBody(Body):
    """Units of one or several pools, all or nothing. ``id`` is the idempotency key where it is given."""

    id: Identifier | None = None
    customer: Customer | None = None
    claims: Annotated[list[ClaimBody], Field(min_length=1, max_length=MOST_CLAIMS)]
    ttl_seconds: TtlSeconds | None = None
    metadata: Metadata = Field(default_factory=dict)

    def request(self, tenant: str, identifier: str, default_ttl_seconds: int) -> ReservationRequest:
        """What the engine is asked for."""
        return ReservationRequest(
            tenant=tenant,
            id=identifier,
            claims=tuple(Claim(claim.pool, claim.quantity) for claim in self.claims),
            ttl_ms=(self.ttl_seconds or default_ttl_seconds) * 1000,
            customer=self.customer,
            metadata=self.metadata,
        )


class BatchBody(Body):
    """Reservations that are judged each on its own; an element that isn't valid spoils only itself."""

    reservations: Annotated[list[JsonValue], Field(max_length=MOST_IN_A_BATCH)]


class CompleteBody(Body):
    payment_ref: Printable | None = None


class ReleaseBody(Body):
    """Nothing; a field is a mistake."""


class ExtendBody(Body):
    ttl_seconds: TtlSeconds


class CancelBody(Body):
    """``restock`` says whether the units go back on sale."""

    restock: bool


def reservation_content(r: Reservation) -> dict[str, Any]:
    """A reservation as the contract writes it."""
    return {
        "id": r.id,
        "status": r.status.value,
        "customer": r.customer,
        "claims": [{"pool": claim.pool, "quantity": claim.quantity} for claim in r.claims],
        "created_at": written(r.created_at_ms),
        "expires_at": written(r.expires_at_ms),
        "expired": r.expired,
        "completed_at": written_or_none(r.completed_at_ms),
        "released_at": written_or_none(r.ended_at_ms) if r.status is ReservationStatus.RELEASED else None,
        "late": r.late,
        "over_cap": r.over_cap,
        "metadata": r.metadata,
    }
