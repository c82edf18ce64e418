"""What each kind of error from Paystack, or no answer, means for the units: given back, or still held."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog

from engine.errors import ProviderError, ProviderTimeout
from engine.payments.paystack import PaystackPayments
from tests.answering import Answer, Answers, as_json
from tests.loopback import listening_socket, served
from tests.paystack_answering import ATTEMPT, KEY, REFUND, STARTED, URL, answering, look_up_all, refused, verified
from tests.paystack_fields import check_paystack_request

VERBS: dict[str, Callable[[PaystackPayments], Awaitable[object]]] = {
    "open": lambda payments: payments.open(ATTEMPT),
    "look_up": lambda payments: payments.look_up("ord-1-2"),
    "expire": lambda payments: payments.expire("ord-1-2"),
    "refund": lambda payments: payments.refund(REFUND),
    "look_up_refunds": lambda payments: payments.look_up_refunds("ord-1-2"),
    "paid_since": look_up_all,
}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (refused(400), "http_400"),
        (refused(400, code="invalid_params"), "invalid_params"),
        (refused(401, "Invalid key sk_test_of_the_tests", code="invalid_Key"), "invalid_Key"),
        (refused(403, code="a code with pupil@school.example"), "http_403"),
        (refused(429), "http_429"),
        (refused(200), "http_200"),
    ],
)
async def test_an_error_of_paystacks_own_is_a_refusal(answer: tuple[int, bytes], code: str) -> None:
    with structlog.testing.capture_logs() as logs:
        async with answering(answer) as (payments, app):
            for calls, (verb, call) in enumerate(VERBS.items(), 1):
                with pytest.raises(ProviderError) as raised:
                    await call(payments)
                assert (app.calls, raised.value.details) == (calls, {"provider_code": code}), verb
    told = f"{raised.value.message} {logs}"
    assert KEY not in told
    assert "pupil@" not in told
    assert {entry["event"] for entry in logs} == {"paystack_refused"}


@pytest.mark.parametrize(
    "answer",
    [
        None,
        refused(500),
        refused(503),
        refused(408),
        refused(409),
        (502, b"<html>Bad Gateway</html>"),
        (504, b""),
        (429, b"<html>Slow down</html>"),
        (404, b"[]"),
        (302, b""),
        (200, b"{"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"status":"true","data":{}}'),
        (200, b'{"status":true}'),
        (200, b'{"status":true,"data":7}'),
        (200, b'{"status":true,"data":[7]}'),
        (500, b'{"status":true,"data":{}}'),
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
        {"reference": "ord-1-3"},
        {"reference": None},
        {"amount": None},
        {"amount": 1.5},
        {"currency": 5},
        {"status": None},
    ],
)
async def test_a_transaction_with_a_wrong_field_leaves_it_open(wrong: dict[str, Any]) -> None:
    async with answering(verified(**wrong)) as (payments, _):
        with pytest.raises(ProviderTimeout):
            await payments.look_up("ord-1-2")


@pytest.mark.parametrize("wrong", [{"authorization_url": None}, {"reference": "other"}, {"reference": None}])
async def test_a_start_that_can_not_be_read_leaves_it_open(wrong: dict[str, Any]) -> None:
    data = {"authorization_url": URL, "access_code": "x", "reference": "ord-1-2"} | wrong
    async with answering(as_json(200, {"status": True, "message": "", "data": data})) as (payments, _):
        with pytest.raises(ProviderTimeout):
            await payments.open(ATTEMPT)


async def test_no_answer_in_time_leaves_it_open() -> None:
    listener = listening_socket()
    payments = PaystackPayments(KEY, api_base=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_seconds=0.2)
    with pytest.raises(ProviderTimeout):
        await payments.open(ATTEMPT)
    await payments.close()
    listener.close()


@pytest.mark.parametrize("verb", VERBS)
async def test_what_was_never_sent_was_certainly_not_done(verb: str) -> None:
    listener = listening_socket()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    payments = PaystackPayments(KEY, api_base=address, timeout_seconds=5)
    with pytest.raises(ProviderError):
        await VERBS[verb](payments)
    await payments.close()


async def test_without_a_key_nothing_is_sent() -> None:
    async with served(app := Answers(check_paystack_request, STARTED), listening_socket()) as url:
        payments = PaystackPayments("", api_base=url)
        with pytest.raises(ProviderError):
            await payments.open(ATTEMPT)
        await payments.close()
    assert app.calls == 0


async def test_a_redirect_is_not_followed_with_the_key() -> None:
    async with answering((307, b"")) as (payments, app):
        with pytest.raises(ProviderTimeout):
            await payments.look_up("ord-1-2")
        assert app.calls == 1


@pytest.mark.parametrize(
    "answer",
    [
        refused(400, "Transaction reference not found."),
        refused(404, "Transaction reference not found"),
        refused(400, "Nothing here", type="validation_error", code="transaction_not_found"),
    ],
)
@pytest.mark.parametrize("verb", ["look_up", "expire", "look_up_refunds"])
async def test_a_reference_that_is_not_there_is_told_apart(answer: tuple[int, bytes], verb: str) -> None:
    async with answering(answer) as (payments, _):
        with pytest.raises(ProviderError) as raised:
            await VERBS[verb](payments)
    assert raised.value.details == {"provider_code": "not_found"}
