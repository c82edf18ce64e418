"""``/v1/webhooks``: what providers tell us. No key is asked for; the signature over the raw bytes is."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response

from api.answers import json_answer
from api.dependencies import services_of
from api.openapi import OPEN
from api.services import Services
from api.shell import note
from engine.domain import Provider
from engine.errors import BadSignature
from engine.payments.port import ProviderEvent

router = APIRouter(tags=["webhooks"])

STRIPE_SIGNATURE = "stripe-signature"


@router.post("/v1/webhooks/stripe", openapi_extra=OPEN)
async def stripe_event(request: Request) -> Response:
    """Take an event of Stripe's: 200 once its settlement is committed, 503 when it has to come again."""
    services = services_of(request)
    body = await request.body()
    event = await _verified(services, Provider.STRIPE, body, request.headers.get(STRIPE_SIGNATURE))
    note(request, event_id=event.dedup_key, session=event.session_id)
    await services.settlement.receive(Provider.STRIPE, event)
    return json_answer({"received": True})


async def _verified(services: Services, provider: Provider, body: bytes, header: str | None) -> ProviderEvent:
    port = services.payments[provider]
    try:
        return port.verify(body, header, time.time())
    except BadSignature:
        # The sandbox stamps by its test clock, which may be far ahead of ours.
        offset_ms = 0 if services.sandbox is None else await services.sandbox.offset_ms()
        if not offset_ms:
            raise
        return port.verify(body, header, time.time() + offset_ms / 1000)
