"""Stripe through its official library: checkout sessions, what was paid by them, and refunds.

Which error means what is argued in ``docs/decisions/0020-what-a-stripe-error-means.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import stripe
import structlog

from engine.errors import AlreadyRefunded, LastportionError, MalformedBody, ProviderError, ProviderTimeout
from engine.money import in_stripe_units, to_stripe
from engine.payments.fields import (
    MARK_ATTEMPT,
    MARK_ORDER,
    MARK_REFUND,
    MARK_RESERVATION,
    MARK_ROUND,
    MARK_TENANT,
)
from engine.payments.port import (
    ExpireOutcome,
    FrozenAttempt,
    FrozenRefund,
    ProviderEvent,
    ProviderRefund,
    Session,
    SessionState,
)
from engine.payments.sending import NEVER_SENT, is_final_status
from engine.payments.stripe_events import StripeEvents
from engine.payments.stripe_objects import refund_from, session_from

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping

    from stripe.checkout import Session as StripeSession
    from stripe.params import RefundCreateParams
    from stripe.params.checkout import SessionCreateParams

log = structlog.get_logger(__name__)

_STUMBLES = (AttributeError, KeyError, TypeError, ValueError)
"""What the library raises over a body that is JSON but not Stripe's, as something between us may send."""

_PAGE = 100
"""Objects in one page of a list, which is the most that Stripe gives."""


class StripePayments:
    """A :class:`engine.payments.port.PaymentPort` that talks to Stripe.

    ``timeout_seconds`` bounds connecting, sending and each read. The library's own retries are off by default:
    a caller who repeats the attempt under its key learns the same, and knows meanwhile that the answer is owed.
    """

    sessions_end: ClassVar[bool] = True

    def __init__(
        self,
        secret_key: str,
        webhook_secret: str,
        *,
        api_base: str | None = None,
        timeout_seconds: float = 10.0,
        tolerance_seconds: int = 300,
        network_retries: int = 0,
    ) -> None:
        self._http = stripe.HTTPXClient(timeout=timeout_seconds)
        self._client = stripe.StripeClient(
            secret_key,
            base_addresses={"api": api_base.rstrip("/")} if api_base else {},
            http_client=self._http,
            max_network_retries=network_retries,
        )
        self._events = StripeEvents(webhook_secret, tolerance_seconds=tolerance_seconds)

    def reference_of(self, _order_id: str, _number: int) -> str | None:
        """None: Stripe names its sessions itself, and our marks in them say whose they are."""
        return None

    async def open(self, attempt: FrozenAttempt) -> Session:
        """Create the attempt's session, or get the one that its idempotency key created before.

        Raises ``ProviderError`` when Stripe refused, ``ProviderTimeout`` when it is unknown whether it acted,
        and ``ValueError`` when the lines don't add up to the amount, since no payment would ever match it.
        """
        call = self._client.v1.checkout.sessions.create_async(
            session_params(attempt), {"idempotency_key": attempt.idempotency_key}
        )
        return await self._session(call, "open")

    async def look_up(self, session_id: str) -> Session:
        """The session as Stripe has it now. Raises as :meth:`open` does."""
        return await self._session(self._client.v1.checkout.sessions.retrieve_async(session_id), "look_up")

    async def expire(self, session_id: str) -> ExpireOutcome:
        """Close an open session. Stripe answers 400 for any other, so a refusal is followed by a look-up.

        Raises ``ProviderError`` when the session is open still, and otherwise as :meth:`open` does.
        """
        try:
            session = await self._session(self._client.v1.checkout.sessions.expire_async(session_id), "expire")
        except ProviderError:
            session = await self.look_up(session_id)
        if session.state is SessionState.EXPIRED:
            return ExpireOutcome.EXPIRED
        if session.state in (SessionState.PAID, SessionState.UNPAID):
            return ExpireOutcome.COMPLETE
        raise ProviderError("The payment provider did not close the session.", session_id=session_id)

    async def paid_since(self, since_s: int) -> AsyncIterator[Session]:
        """Sessions made at or after ``since_s`` that owe nothing any more, ours or not. Raises as :meth:`open` does."""
        found = self._client.v1.checkout.sessions.list_async(
            {"created": {"gte": since_s}, "status": "complete", "limit": _PAGE}
        )
        try:
            async for item in (await found).auto_paging_iter():
                session = _listed(item.to_dict())
                if session is not None and session.state is SessionState.PAID:
                    yield session
        except stripe.StripeError as error:
            raise _translated(error, "paid_since") from error
        except _STUMBLES as error:
            raise _unreadable(error, "paid_since") from error

    async def refund(self, refund: FrozenRefund) -> ProviderRefund:
        """Send money back, or get the refund that the same key made before.

        Raises ``AlreadyRefunded`` when nothing of the payment is left, and otherwise as :meth:`open` does.
        """
        try:
            made = await self._client.v1.refunds.create_async(
                refund_params(refund), {"idempotency_key": refund.idempotency_key}
            )
            return refund_from(made.to_dict(), refund.payment_ref)
        except stripe.StripeError as error:
            translated = _translated(error, "refund")
            if isinstance(translated, ProviderError) and error.code == "charge_already_refunded":
                raise AlreadyRefunded(provider_code=error.code) from error
            raise translated from error
        except (MalformedBody, *_STUMBLES) as error:
            raise _unreadable(error, "refund") from error

    async def look_up_refunds(self, payment_ref: str) -> list[ProviderRefund]:
        """Every refund of the PaymentIntent, oldest pages included. Raises as :meth:`open` does."""
        try:
            found = await self._client.v1.refunds.list_async({"payment_intent": payment_ref, "limit": _PAGE})
            return [refund_from(item.to_dict(), payment_ref) async for item in found.auto_paging_iter()]
        except stripe.StripeError as error:
            raise _translated(error, "look_up_refunds") from error
        except (MalformedBody, *_STUMBLES) as error:
            raise _unreadable(error, "look_up_refunds") from error

    def verify(self, body: bytes, header: str | None, now_s: float) -> ProviderEvent:
        """See :meth:`engine.payments.stripe_events.StripeEvents.verify`."""
        return self._events.verify(body, header, now_s)

    async def close(self) -> None:
        """Release the connections."""
        await self._http.close_async()  # type: ignore[no-untyped-call]  # the library leaves it without types

    async def _session(self, call: Awaitable[StripeSession], verb: str) -> Session:
        try:
            return session_from((await call).to_dict())
        except stripe.StripeError as error:
            raise _translated(error, verb) from error
        except (MalformedBody, *_STUMBLES) as error:
            raise _unreadable(error, verb) from error


def session_params(attempt: FrozenAttempt) -> SessionCreateParams:
    """What Stripe is told of an attempt; the same attempt gives the same parameters, whenever it is asked."""
    if sum(line.amount_minor for line in attempt.lines) != attempt.amount_minor:
        raise ValueError(f"the lines of order {attempt.order_id} don't add up to {attempt.amount_minor}")
    # Session metadata is not copied to the PaymentIntent, whose events and refunds must be traceable as well.
    marks = {
        MARK_ORDER: attempt.order_id,
        MARK_TENANT: attempt.tenant,
        MARK_ATTEMPT: str(attempt.number),
    }
    if attempt.reservation_id is not None:
        marks[MARK_RESERVATION] = attempt.reservation_id
    params: SessionCreateParams = {
        "mode": "payment",
        "line_items": [
            {
                "price_data": {
                    "currency": attempt.currency.lower(),
                    "product_data": {"name": line.name},
                    "unit_amount": to_stripe(line.amount_minor, attempt.currency),
                },
                "quantity": 1,
            }
            for line in attempt.lines
        ],
        "success_url": attempt.success_url,
        "cancel_url": attempt.cancel_url,
        "customer_email": attempt.email,
        "client_reference_id": attempt.order_id,
        "metadata": marks,
        "payment_intent_data": {"metadata": dict(marks)},
    }
    if attempt.expires_at_s is not None:
        params["expires_at"] = attempt.expires_at_s
    return params


def refund_params(refund: FrozenRefund) -> RefundCreateParams:
    """What Stripe is told of a refund; the same refund gives the same parameters, whenever it is asked."""
    marks = {MARK_REFUND: refund.id, MARK_ROUND: str(refund.round), MARK_TENANT: refund.tenant}
    if refund.order_id is not None:
        marks[MARK_ORDER] = refund.order_id
    return {
        "payment_intent": refund.payment_ref,
        "amount": in_stripe_units(refund.amount_minor, refund.currency),
        "metadata": marks,
    }


def _listed(found: Mapping[str, Any]) -> Session | None:
    """A session in a list; None where it can't be read, so that it doesn't hide those that come after it."""
    try:
        return session_from(found)
    except MalformedBody as error:
        log.warning("stripe_session_unreadable", id=str(found.get("id"))[:64], reason=error.message)
        return None


def _unreadable(error: Exception, verb: str) -> ProviderTimeout:
    """Stripe acted and answered 2xx, but what it did can't be read."""
    reason = error.message if isinstance(error, MalformedBody) else type(error).__name__
    log.warning("stripe_answer_unreadable", verb=verb, reason=reason)
    return ProviderTimeout()


def _translated(error: stripe.StripeError, verb: str) -> LastportionError:
    """Our error for Stripe's: a refusal only where Stripe itself says so, or where nothing was sent."""
    facts: dict[str, Any] = {
        "verb": verb,
        "kind": type(error).__name__,
        "http_status": error.http_status,
        "provider_code": error.code,
        "request_id": error.request_id,
    }
    if isinstance(error, stripe.APIConnectionError):
        facts["cause"] = type(error.__cause__).__name__
        certain = isinstance(error.__cause__, NEVER_SENT)
    elif error.http_status is None:
        certain = True
    else:
        # 409: a call under the same key is running. Idempotency error: one under the same key was answered.
        occupied = error.http_status == 409 or isinstance(error, stripe.IdempotencyError)
        certain = error.error is not None and not occupied
    # Stripe's sentence stays out of logs and answers: it may quote the buyer's e-mail or a part of the key.
    log.warning("stripe_refused" if certain else "stripe_answer_unknown", **facts)
    if certain:
        return ProviderError(provider_code=error.code, is_final=is_final_status(error.http_status))
    return ProviderTimeout()
