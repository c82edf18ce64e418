"""Bodies of the sandbox's own routes, and what they answer with."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, ValidationInfo, field_validator

from api.sandbox.clock import LONGEST_STEP_SECONDS, moved_ms
from api.schemas.base import Body
from api.times import written
from engine.money import from_stripe
from persistence.tables.sandbox import FaultKind, FaultTarget, SandboxCall, SandboxEvent, SandboxSession

MOST_FAULTS = 10_000

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
    FaultTarget.PAYSTACK: frozenset(),
}


class ClockMove(Body):
    """How far the test clock moves, in seconds; forward only."""

    advance_seconds: Annotated[float, Field(gt=0, le=LONGEST_STEP_SECONDS, allow_inf_nan=False)]


class FaultOrder(Body):
    """The next ``count`` calls or events of a target go wrong in one way."""

    target: Annotated[FaultTarget, Field(strict=False)]
    kind: Annotated[FaultKind, Field(strict=False)]
    count: Annotated[int, Field(ge=1, le=MOST_FAULTS)] = 1

    @field_validator("target")
    @classmethod
    def _there_is_a_stand_in(cls, target: FaultTarget) -> FaultTarget:
        if not _APPLICABLE[target]:
            raise ValueError(f"there is no stand-in for {target} yet")
        return target

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


def session_content(session: SandboxSession, status: str, payment_status: str) -> dict[str, Any]:
    """A stand-in session, with its state in one word and in Stripe's two, and amounts in our minor units."""
    return {
        "id": session.id,
        "state": session.state,
        "status": status,
        "payment_status": payment_status,
        "amount_minor": from_stripe(session.amount_total, session.currency),
        "currency": session.currency.upper(),
        "payment_ref": session.payment_intent,
        "declines": session.declines,
        "expires_at": written(session.expires_at_s * 1000),
    }


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
