"""Paystack's answers, and a server on loopback that gives them to the adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from engine.domain import Provider
from engine.payments.paystack import PaystackPayments
from engine.payments.port import FrozenAttempt, FrozenRefund, PricedLine, Session
from tests.answering import Answer, Answers, as_json
from tests.loopback import listening_socket, served
from tests.paystack_fields import check_paystack_request

KEY = "sk_test_of_the_tests"
URL = "https://checkout.example/0peioxfhpn"

ATTEMPT = FrozenAttempt(
    order_id="ord-1",
    reservation_id="res-1",
    tenant="demo",
    number=2,
    idempotency_key="ord-1:2",
    amount_minor=10000,
    currency="NGN",
    email="pupil@school.example",
    customer="pupil-1",
    lines=(PricedLine("Practice pack", 10000),),
    success_url="https://shop.example/thanks",
    cancel_url="https://shop.example/basket",
    expires_at_s=None,
    provider=Provider.PAYSTACK,
    reference="ord-1-2",
)
REFUND = FrozenRefund("rfd_1", 1, "demo", "ord-1", "ord-1-2", 2500, "NGN")

STARTED = as_json(
    200,
    {
        "status": True,
        "message": "Authorization URL created",
        "data": {"authorization_url": URL, "access_code": "0peioxfhpn", "reference": "ord-1-2"},
    },
)
DUPLICATE = as_json(400, {"status": False, "message": "Duplicate Transaction Reference"})


def transaction(**changes: Any) -> dict[str, Any]:
    """A paid transaction as an answer has it."""
    return {
        "id": 4099260516,
        "status": "success",
        "reference": "ord-1-2",
        "amount": 10000,
        "currency": "NGN",
        "metadata": {"lastportion_order": "ord-1", "lastportion_tenant": "demo", "lastportion_attempt": "2"},
    } | changes


def verified(**changes: Any) -> tuple[int, bytes]:
    """The answer of a look-up."""
    return as_json(200, {"status": True, "message": "Verification successful", "data": transaction(**changes)})


def refund_row(**changes: Any) -> dict[str, Any]:
    """A refund as an answer has it."""
    return {
        "id": 3018284,
        "transaction": 4099260516,
        "amount": 2500,
        "currency": "NGN",
        "status": "pending",
        "merchant_note": "lastportion:rfd_1:1",
    } | changes


def listed(*rows: dict[str, Any], **meta: Any) -> tuple[int, bytes]:
    """A page of a list."""
    return as_json(200, {"status": True, "message": "retrieved", "data": rows} | ({"meta": meta} if meta else {}))


def refused(status: int, message: str = "No.", **more: str) -> tuple[int, bytes]:
    """An error in Paystack's own shape."""
    return as_json(status, {"status": False, "message": message} | more)


@asynccontextmanager
async def answering(*answers: Answer) -> AsyncIterator[tuple[PaystackPayments, Answers]]:
    """The adapter against these answers; fails afterwards if it asked for what is not documented."""
    app = Answers(check_paystack_request, *answers)
    async with served(app, listening_socket()) as url:
        payments = PaystackPayments(KEY, api_base=url, timeout_seconds=5)
        try:
            yield payments, app
        finally:
            await payments.close()
    app.all_asked()


async def look_up_all(payments: PaystackPayments) -> list[Session]:
    """What was paid since a second of the tests."""
    return [session async for session in payments.paid_since(1_750_000_000)]
