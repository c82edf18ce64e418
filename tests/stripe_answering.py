"""Stripe's answers, and a server on loopback that gives them to the adapter."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from engine.payments.port import FrozenAttempt, PricedLine
from engine.payments.stripe import StripePayments
from tests.answering import Answer, Answers
from tests.library_parameters import check_stripe_request
from tests.loopback import listening_socket, served

SESSION: dict[str, Any] = {
    "id": "cs_test_1",
    "object": "checkout.session",
    "status": "open",
    "payment_status": "unpaid",
    "amount_total": 1250,
    "currency": "gbp",
    "url": "https://pay.example/cs_test_1",
    "expires_at": 1_750_001_860,
    "payment_intent": None,
}

ATTEMPT = FrozenAttempt(
    order_id="ord-1",
    reservation_id="res-1",
    tenant="demo",
    number=1,
    idempotency_key="ord-1:1",
    amount_minor=1250,
    currency="GBP",
    email="pupil@school.example",
    customer="pupil-1",
    lines=(PricedLine("Practice pack", 1250),),
    success_url="https://shop.example/thanks",
    cancel_url="https://shop.example/basket",
    expires_at_s=1_750_001_860,
)


@asynccontextmanager
async def answering(*answers: Answer) -> AsyncIterator[tuple[StripePayments, Answers]]:
    """The adapter against these answers; fails afterwards if it asked for what the library doesn't know."""
    app = Answers(check_stripe_request, *answers)
    async with served(app, listening_socket()) as url:
        payments = StripePayments("sk_test_of_the_tests", "whsec", api_base=url, timeout_seconds=5)
        try:
            yield payments, app
        finally:
            await payments.close()
    app.all_asked()


def refusal(kind: str, **more: str) -> bytes:
    """The body of an error in Stripe's own shape."""
    return json.dumps({"error": {"type": kind, "message": "Invalid API Key provided: sk_test_***1234"} | more}).encode()
