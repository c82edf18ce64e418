"""What each kind of answer from Stripe, or none, means for the units: given back, or still held."""

from __future__ import annotations

import json

import pytest

from engine.errors import ProviderError, ProviderTimeout
from engine.payments.port import ExpireOutcome
from engine.payments.stripe import StripePayments
from tests.loopback import listening_socket
from tests.stripe_answering import ATTEMPT, SESSION, answering, refusal


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
