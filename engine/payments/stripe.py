"""Stripe through its official library: opening, looking up and closing a checkout session.

Which error means what is argued in ``docs/decisions/0020-what-a-stripe-error-means.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import stripe
import structlog

from engine.errors import LastportionError, MalformedBody, ProviderError, ProviderTimeout
from engine.money import to_stripe
from engine.payments.port import ExpireOutcome, FrozenAttempt, ProviderEvent, Session, SessionState
from engine.payments.stripe_events import MARK_ATTEMPT, MARK_ORDER, MARK_TENANT, StripeEvents, session_from

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from stripe.checkout import Session as StripeSession
    from stripe.params.checkout import SessionCreateParams

log = structlog.get_logger(__name__)

NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)
"""What httpx raises before the first byte of a request is on the wire."""


class StripePayments:
    """A :class:`engine.payments.port.PaymentPort` that talks to Stripe.

    ``timeout_seconds`` bounds connecting, sending and each read. The library's own retries are off by default:
    a caller who repeats the attempt under its key learns the same, and knows meanwhile that the answer is owed.
    """

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
        except MalformedBody as error:
            # Stripe acted and answered 2xx, but what it did can't be read.
            log.warning("stripe_answer_unreadable", verb=verb, reason=error.message)
            raise ProviderTimeout from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # The library stumbles over a body that is JSON but not Stripe's, as something between us may send.
            log.warning("stripe_answer_unreadable", verb=verb, exc_info=True)
            raise ProviderTimeout from error


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
        marks["lastportion_reservation"] = attempt.reservation_id
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
        return ProviderError(provider_code=error.code)
    return ProviderTimeout()
