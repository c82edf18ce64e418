"""Bodies of the sandbox's own routes, and what they answer with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, ValidationInfo, field_validator

from api.sandbox.clock import LONGEST_STEP_SECONDS, moved_ms
from api.schemas.base import Body
from api.times import written
from engine.domain import Provider
from engine.money import from_stripe
from persistence.tables.sandbox import (
    FaultKind,
    FaultTarget,
    SandboxCall,
    SandboxDispute,
    SandboxEvent,
    SandboxRefund,
    SandboxSession,
    StandInRefundStatus,
    StandInState,
)

MOST_FAULTS = 10_000
LARGEST_AMOUNT = 10**12

_APPLICABLE: Final[dict[FaultTarget, frozenset[FaultKind]]] = {
    FaultTarget.STRIPE: frozenset(
        {
            FaultKind.ERROR,
            FaultKind.TIMEOUT_AFTER_SUCCESS,
            FaultKind.DELAY,
            FaultKind.DROP,
            FaultKind.FORGET_KEYS,
        }
    ),
    FaultTarget.WEBHOOKS: frozenset(FaultKind) - {FaultKind.FORGET_KEYS},
    # Paystack knows no keys that it could forget.
    FaultTarget.PAYSTACK: frozenset(
        {FaultKind.ERROR, FaultKind.TIMEOUT_AFTER_SUCCESS, FaultKind.DELAY, FaultKind.DROP}
    ),
}


class ClockMove(Body):
    """How far the test clock moves, in seconds; forward only."""

    advance_seconds: Annotated[float, Field(gt=0, le=LONGEST_STEP_SECONDS, allow_inf_nan=False)]


class DashboardRefund(Body):
    """How much goes back; all that is left where nothing is said."""

    amount_minor: Annotated[int, Field(ge=1, le=LARGEST_AMOUNT)] | None = None


class FaultOrder(Body):
    """The next ``count`` calls or events of a target go wrong in one way."""

    target: Annotated[FaultTarget, Field(strict=False)]
    kind: Annotated[FaultKind, Field(strict=False)]
    count: Annotated[int, Field(ge=1, le=MOST_FAULTS)] = 1

    @field_validator("kind")
    @classmethod
    def _kind_fits(cls, kind: FaultKind, info: ValidationInfo) -> FaultKind:
        target = info.data.get("target")
        if target is not None and kind not in _APPLICABLE[target]:
            fitting = ", ".join(sorted(_APPLICABLE[target]))
            raise ValueError(f"can't happen to {target}; what can: {fitting}")
        return kind


def clock_content(offset_ms: int) -> dict[str, Any]:
    """``{now, offset_seconds}`` of a test clock that is so far ahead."""
    whole, rest = divmod(offset_ms, 1000)
    return {"now": written(moved_ms(offset_ms)), "offset_seconds": offset_ms / 1000 if rest else whole}


@dataclass(frozen=True, slots=True)
class SessionWords:
    """The provider's own words for where a session is."""

    status: str
    payment_status: str


def session_content(
    session: SandboxSession, words: SessionWords, refunds: Sequence[SandboxRefund], disputes: Sequence[SandboxDispute]
) -> dict[str, Any]:
    """A stand-in session or transaction, with its state in one word and in the provider's own, and what went back.

    Amounts are in our minor units.
    """
    back = sum(refund.amount for refund in refunds if refund.status == StandInRefundStatus.SUCCEEDED)
    return {
        "id": session.id,
        "provider": session.provider,
        "state": session.state,
        "status": words.status,
        "payment_status": words.payment_status,
        "amount_minor": _minor(session.amount_total, session),
        "amount_refunded_minor": _minor(back, session),
        "currency": session.currency.upper(),
        "payment_ref": payment_ref_of(session),
        "declines": session.declines,
        "expires_at": None if session.expires_at_s is None else written(session.expires_at_s * 1000),
        "refunds": [
            {
                "id": refund.ref if session.provider == Provider.STRIPE else str(refund.number),
                "amount_minor": _minor(refund.amount, session),
                "status": refund.status,
            }
            for refund in refunds
        ],
        "disputes": [{"id": dispute.id, "status": dispute.status} for dispute in disputes],
    }


def payment_ref_of(session: SandboxSession) -> str | None:
    """What a refund names: the PaymentIntent, or the reference of a transaction that was paid."""
    if session.provider == Provider.STRIPE:
        return session.payment_intent
    return session.id if session.state == StandInState.PAID else None


def _minor(amount: int, session: SandboxSession) -> int | None:
    """An amount of the provider's in our minor unit, which Paystack counts in as well."""
    return from_stripe(amount, session.currency) if session.provider == Provider.STRIPE else amount


def event_content(event: SandboxEvent, *, delivered: bool) -> dict[str, Any]:
    """The event that an act caused, and whether it was taken at once; if not, it is tried again."""
    return {"id": event.event_id, "type": event.type, "delivered": delivered}


def call_content(call: SandboxCall) -> dict[str, Any]:
    """One call to a stand-in. ``status`` is null when the caller got no answer."""
    return {
        "at": written(call.at_ms),
        "target": call.target,
        "method": call.method,
        "path": call.path,
        "idempotency_key": call.idempotency_key,
        "params": call.params,
        "status": call.status,
        "fault": call.fault,
    }
