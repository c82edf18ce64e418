"""Stripe through its library: what is asked, refunds, and what was paid while nobody listened (cases E1, E2, E5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import structlog

from engine.errors import AlreadyRefunded, ProviderError, ProviderTimeout
from engine.payments.port import (
    FrozenRefund,
    PaymentPort,
    PricedLine,
    ProviderRefund,
    ProviderRefundStatus,
    Session,
    SessionState,
)
from engine.payments.stripe import StripePayments, refund_params, session_params
from tests.answering import Answer, as_json
from tests.library_parameters import refund_parameters, session_parameters
from tests.loopback import listening_socket
from tests.stripe_answering import ATTEMPT, SESSION, answering, refusal

REFUND = FrozenRefund("rfd_1", 2, "demo", "ord-1", "pi_1", 400, "GBP")
MARKS = {"lastportion_order": "ord-1", "lastportion_tenant": "demo", "lastportion_attempt": "1"}


def refunded(**changes: Any) -> dict[str, Any]:
    return {
        "id": "re_1",
        "object": "refund",
        "amount": 400,
        "currency": "gbp",
        "payment_intent": "pi_1",
        "status": "succeeded",
        "metadata": {"lastportion_refund": "rfd_1", "lastportion_round": "2"},
    } | changes


def session(**changes: Any) -> dict[str, Any]:
    paid = {"status": "complete", "payment_status": "paid", "payment_intent": "pi_1", "metadata": MARKS}
    return SESSION | paid | changes


def page(*items: dict[str, Any], more: bool = False, url: str = "/v1/checkout/sessions") -> tuple[int, bytes]:
    return as_json(200, {"object": "list", "url": url, "has_more": more, "data": items})


async def paid_since(payments: StripePayments) -> list[Session]:
    return [found async for found in payments.paid_since(1_750_000_000)]


# What is asked


@pytest.mark.parametrize(
    ("currency", "minor", "sent"),
    [("GBP", 1250, 1250), ("JPY", 80, 80), ("KWD", 18600, 18600), ("BHD", 35200, 35200), ("UGX", 100, 10000)],
)
async def test_amounts_are_asked_in_stripes_units(currency: str, minor: int, sent: int) -> None:
    attempt = replace(ATTEMPT, currency=currency, amount_minor=minor, lines=(PricedLine("Practice pack", minor),))
    made = as_json(200, refunded(amount=sent, currency=currency.lower()))
    async with answering(as_json(200, SESSION | {"amount_total": sent, "currency": currency.lower()}), made) as (
        payments,
        app,
    ):
        opened = await payments.open(attempt)
        returned = await payments.refund(replace(REFUND, amount_minor=minor, currency=currency))
    asked = [request.params for request in app.all_asked()]
    assert asked[0]["line_items"][0]["price_data"] == {
        "currency": currency.lower(),
        "product_data": {"name": "Practice pack"},
        "unit_amount": str(sent),
    }
    assert asked[1]["amount"] == str(sent)
    assert (opened.amount_minor, returned.amount_minor) == (minor, minor)


async def test_a_refund_is_asked_under_its_key_with_our_marks() -> None:
    async with answering(as_json(200, refunded())) as (payments, app):
        made = await payments.refund(REFUND)
    asked = app.all_asked()[0]
    assert (asked.method, asked.path) == ("POST", "/v1/refunds")
    assert asked.headers["idempotency-key"] == "refund:rfd_1:2"
    assert asked.params == {
        "payment_intent": "pi_1",
        "amount": "400",
        "metadata": {
            "lastportion_refund": "rfd_1",
            "lastportion_round": "2",
            "lastportion_tenant": "demo",
            "lastportion_order": "ord-1",
        },
    }
    assert made == ProviderRefund(
        ref="re_1",
        payment_ref="pi_1",
        amount_minor=400,
        currency="GBP",
        status=ProviderRefundStatus.SUCCEEDED,
        marked_refund_id="rfd_1",
        marked_round=2,
    )


def test_what_is_asked_is_what_the_library_knows() -> None:
    for strict, params in (
        (session_parameters(), session_params(ATTEMPT)),
        (session_parameters(), session_params(replace(ATTEMPT, reservation_id=None, expires_at_s=None))),
        (refund_parameters(), refund_params(REFUND)),
        (refund_parameters(), refund_params(replace(REFUND, order_id=None))),
    ):
        assert strict.validate_python(params) == params
        with pytest.raises(ValueError, match="forbidden"):
            strict.validate_python({**params, "coupon": "x"})


def test_a_refund_of_no_order_marks_none() -> None:
    assert "lastportion_order" not in refund_params(replace(REFUND, order_id=None)).get("metadata", {})


async def test_the_port_is_the_protocols() -> None:
    port: PaymentPort = StripePayments("sk", "whsec")
    assert port.sessions_end
    assert port.reference_of("ord-1", 1) is None
    await port.close()


# Refunds


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("pending", ProviderRefundStatus.PENDING),
        ("requires_action", ProviderRefundStatus.PENDING),
        ("succeeded", ProviderRefundStatus.SUCCEEDED),
        ("failed", ProviderRefundStatus.FAILED),
        ("canceled", ProviderRefundStatus.FAILED),
    ],
)
async def test_a_refunds_status_is_reduced_to_what_matters(word: str, status: ProviderRefundStatus) -> None:
    async with answering(as_json(200, refunded(status=word, failure_reason="lost_or_stolen_card"))) as (payments, _):
        made = await payments.refund(REFUND)
    assert (made.status, made.reason) == (status, "lost_or_stolen_card")


async def test_a_payment_that_went_back_whole_is_told_apart() -> None:
    answer = (400, refusal("invalid_request_error", code="charge_already_refunded"))
    async with answering(answer) as (payments, app):
        with pytest.raises(AlreadyRefunded) as raised:
            await payments.refund(REFUND)
        assert app.calls == 1
    assert raised.value.details == {"provider_code": "charge_already_refunded"}


async def test_more_than_is_left_is_an_ordinary_refusal() -> None:
    async with answering((400, refusal("invalid_request_error", param="amount"))) as (payments, _):
        with pytest.raises(ProviderError) as raised:
            await payments.refund(REFUND)
    assert type(raised.value) is ProviderError


async def test_all_refunds_of_a_payment_are_found_whoever_made_them() -> None:
    first = page(refunded(), refunded(id="re_2", metadata={}, amount=100), more=True, url="/v1/refunds")
    second = page(refunded(id="re_3", metadata={"lastportion_refund": "no id", "lastportion_round": "x"}))
    async with answering(first, second) as (payments, app):
        refunds = await payments.look_up_refunds("pi_1")
    assert [(found.ref, found.amount_minor, found.marked_refund_id, found.marked_round) for found in refunds] == [
        ("re_1", 400, "rfd_1", 2),
        ("re_2", 100, None, None),
        ("re_3", 400, None, None),
    ]
    assert [asked.params for asked in app.all_asked()] == [
        {"payment_intent": "pi_1", "limit": "100"},
        {"payment_intent": "pi_1", "limit": "100", "starting_after": "re_2"},
    ]


async def test_a_payment_without_refunds_has_none() -> None:
    async with answering(page(url="/v1/refunds")) as (payments, _):
        assert await payments.look_up_refunds("pi_1") == []


# What was paid while nobody listened


async def test_paid_sessions_are_listed_to_the_end_with_our_marks() -> None:
    first = page(
        session(),
        session(id="cs_2", payment_status="unpaid"),
        session(id="cs_3", payment_status="no_payment_required", payment_intent=None, metadata={}),
        more=True,
    )
    async with answering(first, page(session(id="cs_4", amount_total=10050, currency="ugx"), session(id="cs_5"))) as (
        payments,
        app,
    ):
        with structlog.testing.capture_logs() as logs:
            found = await paid_since(payments)
    assert [one.id for one in found] == ["cs_test_1", "cs_3", "cs_5"]
    assert {one.state for one in found} == {SessionState.PAID}
    assert (found[0].marked_order_id, found[0].marked_tenant, found[0].marked_attempt) == ("ord-1", "demo", 1)
    assert (found[1].marked_order_id, found[1].payment_ref) == (None, "cs_3")
    assert [(entry["event"], entry["id"]) for entry in logs] == [("stripe_session_unreadable", "cs_4")]
    asked = {"created": {"gte": "1750000000"}, "status": "complete", "limit": "100"}
    assert [request.params for request in app.all_asked()] == [asked, asked | {"starting_after": "cs_3"}]


async def test_a_page_that_fails_ends_the_list_with_its_error() -> None:
    got: list[str] = []
    async with answering(page(session(), more=True), (502, b"<html>")) as (payments, _):

        async def read() -> None:
            async for found in payments.paid_since(1_750_000_000):
                got.append(found.id)

        with pytest.raises(ProviderTimeout):
            await read()
    assert got == ["cs_test_1"]


# Refusals and answers that leave it open

VERBS: dict[str, Callable[[StripePayments], Awaitable[object]]] = {
    "refund": lambda payments: payments.refund(REFUND),
    "look_up_refunds": lambda payments: payments.look_up_refunds("pi_1"),
    "paid_since": paid_since,
}


@pytest.mark.parametrize(
    "answer",
    [
        (400, refusal("invalid_request_error", code="resource_missing")),
        (401, refusal("invalid_request_error")),
        (429, refusal("invalid_request_error", code="rate_limit")),
        (500, refusal("api_error")),
    ],
)
async def test_an_error_of_stripes_own_is_a_refusal(answer: tuple[int, bytes]) -> None:
    with structlog.testing.capture_logs() as logs:
        async with answering(answer) as (payments, app):
            for calls, call in enumerate(VERBS.values(), 1):
                with pytest.raises(ProviderError) as raised:
                    await call(payments)
                assert (app.calls, type(raised.value)) == (calls, ProviderError)
    assert "sk_test" not in f"{raised.value.message} {raised.value.details} {logs}"


@pytest.mark.parametrize(
    "answer",
    [
        None,
        (409, refusal("idempotency_error", code="idempotency_key_in_use")),
        (400, refusal("idempotency_error")),
        (502, b"<html>Bad Gateway</html>"),
        (200, b"{"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"object":"list","data":7}'),
        (200, b'{"object":"list","data":[7]}'),
    ],
)
async def test_an_answer_that_leaves_it_open_is_a_time_out(answer: Answer) -> None:
    async with answering(answer) as (payments, app):
        for calls, call in enumerate(VERBS.values(), 1):
            with pytest.raises(ProviderTimeout):
                await call(payments)
            assert app.calls == calls


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "odd"},
        {"status": None},
        {"amount": 1.5},
        {"amount": 10050, "currency": "ugx"},
        {"currency": None},
        {"id": 7},
        {"metadata": "text"},
    ],
)
async def test_a_refund_that_can_not_be_read_leaves_it_open(wrong: dict[str, Any]) -> None:
    async with answering(as_json(200, refunded(**wrong)), page(refunded(**wrong))) as (payments, _):
        with pytest.raises(ProviderTimeout):
            await payments.refund(REFUND)
        with pytest.raises(ProviderTimeout):
            await payments.look_up_refunds("pi_1")


@pytest.mark.parametrize("verb", VERBS)
async def test_what_was_never_sent_was_certainly_not_done(verb: str) -> None:
    listener = listening_socket()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    payments = StripePayments("sk", "whsec", api_base=address, timeout_seconds=5)
    with pytest.raises(ProviderError):
        await VERBS[verb](payments)
    await payments.close()
