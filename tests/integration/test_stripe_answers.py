"""What each kind of answer from Stripe, or none, means for the units: given back, or still held."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from engine.errors import ProviderError, ProviderTimeout
from engine.payments.port import ExpireOutcome, FrozenAttempt, PricedLine
from engine.payments.stripe import StripePayments
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


class Answers:
    """A server that gives the answers it was told, one a call; ``None`` cuts the connection."""

    def __init__(self, *answers: tuple[int, bytes] | None) -> None:
        self._answers = list(answers)
        self.calls = 0

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        answer = self._answers[min(self.calls, len(self._answers) - 1)]
        self.calls += 1
        status, body = answer or (200, b"{}")
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": head})
        if answer is not None:
            await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def answering(*answers: tuple[int, bytes] | None) -> AsyncIterator[tuple[StripePayments, Answers]]:
    app = Answers(*answers)
    async with served(app, listening_socket()) as url:
        payments = StripePayments("sk_test_of_the_tests", "whsec", api_base=url, timeout_seconds=5)
        try:
            yield payments, app
        finally:
            await payments.close()


def refusal(kind: str, **more: str) -> bytes:
    return json.dumps({"error": {"type": kind, "message": "Invalid API Key provided: sk_test_***1234"} | more}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        (400, refusal("invalid_request_error", param="line_items")),
        (400, refusal("invalid_request_error", code="rate_limit")),
        (401, refusal("invalid_request_error")),
        (402, refusal("card_error", code="card_declined")),
        (403, refusal("invalid_request_error")),
        (429, refusal("invalid_request_error", code="rate_limit")),
        (500, refusal("api_error")),
        (503, refusal("api_error")),
    ],
)
async def test_an_error_of_stripes_own_is_a_refusal(answer: tuple[int, bytes]) -> None:
    async with answering(answer) as (payments, app):
        with pytest.raises(ProviderError) as raised:
            await payments.open(ATTEMPT)
        assert app.calls == 1
    assert "sk_test" not in raised.value.message + str(raised.value.details)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        (409, refusal("idempotency_error", code="idempotency_key_in_use")),
        (400, refusal("idempotency_error")),
        (502, b"<html>Bad Gateway</html>"),
        (504, b""),
        (500, b'{"error": "text"}'),
        (500, b"[]"),
        (200, b"{"),
        (200, b"[]"),
        (200, b"{}"),
        (200, json.dumps(SESSION | {"amount_total": None}).encode()),
        (200, json.dumps(SESSION | {"status": "odd"}).encode()),
        (200, json.dumps(SESSION | {"expires_at": "soon"}).encode()),
    ],
)
async def test_an_answer_that_leaves_it_open_keeps_the_units(answer: tuple[int, bytes] | None) -> None:
    async with answering(answer) as (payments, app):
        with pytest.raises(ProviderTimeout):
            await payments.open(ATTEMPT)
        assert app.calls == 1


async def test_no_answer_in_time_keeps_the_units() -> None:
    listener = listening_socket()
    payments = StripePayments(
        "sk_test_of_the_tests",
        "whsec",
        api_base=f"http://127.0.0.1:{listener.getsockname()[1]}",
        timeout_seconds=0.2,
    )
    with pytest.raises(ProviderTimeout):
        await payments.open(ATTEMPT)
    await payments.close()
    listener.close()


async def test_a_session_that_stays_open_was_not_closed() -> None:
    refused = (400, refusal("invalid_request_error"))
    still_open = (200, json.dumps(SESSION).encode())
    async with answering(refused, still_open) as (payments, app):
        with pytest.raises(ProviderError, match="did not close"):
            await payments.expire("cs_test_1")
        assert app.calls == 2


@pytest.mark.parametrize(
    ("status", "payment_status", "outcome"),
    [
        ("expired", "unpaid", ExpireOutcome.EXPIRED),
        ("complete", "paid", ExpireOutcome.COMPLETE),
        ("complete", "unpaid", ExpireOutcome.COMPLETE),
    ],
)
async def test_after_a_refused_closing_the_look_up_decides(
    status: str, payment_status: str, outcome: ExpireOutcome
) -> None:
    found = json.dumps(SESSION | {"status": status, "payment_status": payment_status}).encode()
    async with answering((400, refusal("invalid_request_error")), (200, found)) as (payments, _):
        assert await payments.expire("cs_test_1") is outcome


async def test_an_unknown_answer_to_closing_stays_unknown() -> None:
    async with answering(None, (200, json.dumps(SESSION | {"status": "expired"}).encode())) as (payments, app):
        with pytest.raises(ProviderTimeout):
            await payments.expire("cs_test_1")
        assert app.calls == 1
