"""Stripe's refunds API: what it takes and refuses, on top of what both stand-ins' refunds are."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.sandbox.calls import Call
from api.sandbox.refunds import StandInRefunds, find_refund
from api.sandbox.stripe_errors import StripeRefusal, no_such
from api.sandbox.stripe_lists import only, page_of
from api.sandbox.stripe_objects import refund_object
from api.sandbox.stripe_params import Metadata, Text, refusal_of
from engine.domain import Provider
from engine.money import payable_step, to_stripe
from persistence.repositories.sandbox import SandboxRepository
from persistence.tables.sandbox import SandboxSession, StandInDisputeStatus


class RefundCreate(BaseModel):
    """The parameters of ``POST /v1/refunds`` that the stand-in knows; ``amount`` is in Stripe's unit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    payment_intent: Text | None = None
    charge: Text | None = None
    amount: int | None = Field(default=None, ge=1, le=99_999_999)
    reason: Literal["duplicate", "fraudulent", "requested_by_customer"] | None = None
    metadata: Metadata | None = None
    expand: list[str] | None = None


class StripeRefunds:
    """The actions under ``/v1/refunds``. All raise ``StripeRefusal``."""

    def __init__(self, refunds: StandInRefunds) -> None:
        self._refunds = refunds

    async def create(self, repository: SandboxRepository, call: Call) -> dict[str, Any]:
        """A new refund, of all that is left where no amount is named; struck by ``delay`` it stays pending."""
        try:
            wanted = RefundCreate.model_validate(call.params)
        except ValidationError as error:
            raise refusal_of(error) from error
        session = await self._paid(repository, wanted)
        left = await self._refunds.left(repository, session)
        if left is None:
            raise StripeRefusal(
                400, f"This PaymentIntent ({session.payment_intent}) does not have a successful charge to refund."
            )
        disputes = await repository.disputes_of(session.id)
        if any(dispute.status != StandInDisputeStatus.WON for dispute in disputes):
            raise StripeRefusal(
                400, f"Charge {session.charge} has been charged back; cannot issue a refund.", code="charge_disputed"
            )
        if left == 0:
            raise StripeRefusal(
                400, f"Charge {session.charge} has already been refunded.", code="charge_already_refunded"
            )
        amount = wanted.amount if wanted.amount is not None else left
        if amount > left:
            raise StripeRefusal(
                400,
                f"Refund amount ({amount}) is greater than unrefunded amount on charge ({left}) in {session.currency}.",
                param="amount",
            )
        step = to_stripe(payable_step(session.currency), session.currency)
        if amount % step:
            raise StripeRefusal(
                400,
                f"Invalid amount: in {session.currency} it must be a multiple of {step}.",
                code="parameter_invalid_integer",
                param="amount",
            )
        params = wanted.model_dump(include={"metadata", "reason"}, exclude_none=True)
        refund, _ = await self._refunds.make(repository, session, amount, params, later=call.is_late, key=call.key)
        return refund_object(refund, session)

    async def retrieve(self, repository: SandboxRepository, refund_id: str) -> dict[str, Any]:
        """A refund as it is now."""
        found = await find_refund(repository, refund_id) if refund_id.startswith("re_") else None
        if found is None:
            raise no_such("refund", refund_id[:100], "id")
        return refund_object(*found)

    async def listed(self, repository: SandboxRepository, call: Call) -> dict[str, Any]:
        """Refunds, of one PaymentIntent or charge or of all, newest first."""
        only(call.params, "payment_intent", "charge", "created", "limit", "starting_after", "expand")
        found = [
            refund_object(refund, session)
            for refund, session in await repository.refunds(Provider.STRIPE)
            if call.params.get("payment_intent") in (None, session.payment_intent)
            and call.params.get("charge") in (None, session.charge)
        ]
        return page_of("/v1/refunds", "refund", found, call.params)

    async def _paid(self, repository: SandboxRepository, wanted: RefundCreate) -> SandboxSession:
        if (wanted.payment_intent is None) == (wanted.charge is None):
            raise StripeRefusal(400, "One of the following params should be provided: payment_intent or charge.")
        if wanted.payment_intent is not None:
            session = await repository.session_of_intent(wanted.payment_intent)
            if session is None:
                raise no_such("payment_intent", wanted.payment_intent[:100], "payment_intent")
            return session
        session = await repository.session_of_charge(str(wanted.charge))
        if session is None:
            raise no_such("charge", str(wanted.charge)[:100], "charge")
        return session
