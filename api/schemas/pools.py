"""Pools on the wire."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from api.schemas.base import Body, Cap, InstantMs, PerCustomer
from api.times import written_or_none
from engine.domain import LatePayment, PoolDefinition, PoolState, PoolStatus


class PoolBody(Body):
    """The whole definition of a pool; a field left out takes its default. ``cap`` null is unlimited, 0 is nothing."""

    cap: Cap | None
    opens_at: InstantMs | None = None
    closes_at: InstantMs | None = None
    status: PoolStatus = PoolStatus.ACTIVE
    per_customer: PerCustomer | None = None
    late_payment: LatePayment = Field(default=LatePayment.HONOUR)

    @model_validator(mode="after")
    def _window_in_order(self) -> Self:
        if self.opens_at is not None and self.closes_at is not None and self.closes_at <= self.opens_at:
            raise ValueError("closes_at must lie after opens_at")
        return self

    def definition(self, tenant: str, pool: str) -> PoolDefinition:
        """The definition without a ``rev``: it gets one when it is committed."""
        return PoolDefinition(
            tenant=tenant,
            pool=pool,
            cap=self.cap,
            rev=0,
            opens_at_ms=self.opens_at,
            closes_at_ms=self.closes_at,
            status=self.status,
            per_customer=self.per_customer,
            late_payment=self.late_payment,
        )


def pool_content(state: PoolState) -> dict[str, Any]:
    """A pool as the contract writes it."""
    definition = state.definition
    return {
        "pool": definition.pool,
        "cap": definition.cap,
        "completed": state.completed,
        "reserved": state.reserved,
        "available": state.available,
        "status": definition.status.value,
        "opens_at": written_or_none(definition.opens_at_ms),
        "closes_at": written_or_none(definition.closes_at_ms),
        "per_customer": definition.per_customer,
        "late_payment": definition.late_payment.value,
        "next_expiry_at": written_or_none(state.next_expiry_at_ms),
    }
