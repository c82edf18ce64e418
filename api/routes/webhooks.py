"""``/v1/webhooks``: what providers tell us. No key is asked for; the signature over the raw bytes is."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response

from api import metrics
from api.answers import json_answer
from api.body import check_content_type
from api.dependencies import services_of
from api.headers import header_of
from api.metrics import WebhookResult
from api.openapi import signed
from api.services import Services
from api.shell import note
from engine.domain import Provider
from engine.errors import BadSignature, MalformedBody, Unavailable
from engine.payments.port import EventKind, ProviderEvent

router = APIRouter(tags=["webhooks"])

STRIPE_SIGNATURE = b"stripe-signature"
PAYSTACK_SIGNATURE = b"x-paystack-signature"
_ABOUT_MONEY_BACK = (EventKind.REFUND, EventKind.DISPUTE)


@router.post("/v1/webhooks/stripe", openapi_extra=signed("Stripe-Signature"))
async def stripe_event(request: Request) -> Response:
    """Take an event of Stripe's: 200 once its settlement is committed, 503 when it has to come again."""
    return await _receive(request, Provider.STRIPE, STRIPE_SIGNATURE)


@router.post("/v1/webhooks/paystack", openapi_extra=signed("X-Paystack-Signature"))
async def paystack_event(request: Request) -> Response:
    """Take an event of Paystack's: 200 once its settlement is committed, 503 when it has to come again."""
    return await _receive(request, Provider.PAYSTACK, PAYSTACK_SIGNATURE)


async def _receive(request: Request, provider: Provider, signature: bytes) -> Response:
    try:
        event = await _verified(request, provider, signature)
        note(request, event_id=event.dedup_key, session=event.session_id)
        await _commit(services_of(request), provider, event)
    except BadSignature:
        metrics.count_webhook(provider, WebhookResult.BAD_SIGNATURE)
        raise
    except MalformedBody:
        metrics.count_webhook(provider, WebhookResult.MALFORMED)
        raise
    except Unavailable:
        metrics.count_webhook(provider, WebhookResult.UNAVAILABLE)
        raise
    is_foreign = event.kind is EventKind.FOREIGN
    metrics.count_webhook(provider, WebhookResult.FOREIGN if is_foreign else WebhookResult.ACCEPTED)
    return json_answer({"received": True})


async def _verified(request: Request, provider: Provider, signature: bytes) -> ProviderEvent:
    """The event in the body; raises ``BadSignature``, or ``MalformedBody`` where it says that it isn't JSON, or isn't.

    A missing Content-Type is taken as JSON: what counts is who signed.
    """
    services = services_of(request)
    body = await request.body()
    header = header_of(request, signature)
    port = services.payments[provider]
    check_content_type(request)
    try:
        return port.verify(body, header, time.time())
    except BadSignature:
        # The sandbox stamps by its test clock, which may be far ahead of ours.
        offset_ms = 0 if services.sandbox is None else await services.sandbox.offset_ms()
        if not offset_ms:
            raise
        return port.verify(body, header, time.time() + offset_ms / 1000)


async def _commit(services: Services, provider: Provider, event: ProviderEvent) -> None:
    if event.kind in _ABOUT_MONEY_BACK:
        await services.refunds.receive(provider, event)
    else:
        await services.settlement.receive(provider, event)
        await services.settlement.wait_for_effect(provider, event)
