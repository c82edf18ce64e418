"""What the stand-in refuses, as Stripe does, and what our adapter makes of it."""

from __future__ import annotations

from uuid import uuid4

import httpx
import pytest
import stripe

from engine.errors import ProviderError
from engine.payments.stripe import StripePayments
from tests.loopback import listening_socket
from tests.stand_in import KEY, SECRET, StandIn, library, raw_create, raw_params


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bogus": "1"}, "Received unknown parameter: bogus"),
        (
            {"line_items[0][price_data][amount]": "5"},
            "Received unknown parameter: line_items[0][price_data][amount]",
        ),
        ({"mode": "gift"}, "Invalid mode"),
        ({"success_url": "javascript:alert(1)"}, "Not a valid URL"),
        ({"success_url": ""}, "You passed an empty string for 'success_url'."),
        ({"customer_email": "nobody"}, "Invalid customer_email"),
        ({"line_items[0][price_data][currency]": "xxx"}, "Invalid currency: xxx."),
        ({"line_items[0][price_data][unit_amount]": "12.5"}, "Invalid integer"),
        ({"line_items[0][price_data][unit_amount]": "-5"}, "Invalid line_items[0][price_data][unit_amount]"),
        ({"line_items[0][price_data][unit_amount]": "29"}, "at least 30 in gbp"),
        ({"line_items[0][price_data][unit_amount]": "100000000"}, "no more than 99999999"),
        ({"line_items[0][quantity]": "0"}, "Invalid line_items[0][quantity]"),
        ({"client_reference_id": "x" * 201}, "Invalid client_reference_id"),
        ({"metadata[k]": "x" * 501}, "up to 500 characters"),
        ({"metadata[" + "k" * 41 + "]": "x"}, "up to 40 characters"),
        ({f"metadata[k{number}]": "x" for number in range(51)}, "up to 50 keys"),
        ({"mode[a]": "x"}, "both a value and a group"),
        ({"[a]": "x"}, "name is malformed"),
        ({"metadata[k]": "a\0b"}, "NUL"),
    ],
)
async def test_what_stripe_refuses_is_refused(shared_stand_in: StandIn, changes: dict[str, str], message: str) -> None:
    key = uuid4().hex
    status, body, _ = await raw_create(shared_stand_in, raw_params(shared_stand_in, **changes), key)
    assert status == 400
    assert message in body["error"]["message"]
    assert body["error"]["type"] == "invalid_request_error"
    # Refused parameters are not saved under the key: the right ones may follow under it.
    status, body, _ = await raw_create(shared_stand_in, raw_params(shared_stand_in), key)
    assert (status, body["object"]) == (200, "checkout.session")


@pytest.mark.parametrize(("currency", "amount"), [("kwd", "18605"), ("ugx", "10050")])
async def test_amounts_off_the_currencys_step_are_refused(shared_stand_in: StandIn, currency: str, amount: str) -> None:
    changes = {"line_items[0][price_data][currency]": currency, "line_items[0][price_data][unit_amount]": amount}
    status, body, _ = await raw_create(shared_stand_in, raw_params(shared_stand_in, **changes))
    assert status == 400
    assert "must be a multiple of" in body["error"]["message"]


@pytest.mark.parametrize(
    ("seconds", "accepted"),
    [(0, False), (1799, False), (1800, False), (1830, True), (24 * 3600 - 30, True), (24 * 3600 + 30, False)],
)
async def test_a_session_lives_half_an_hour_to_a_day(shared_stand_in: StandIn, seconds: int, accepted: bool) -> None:
    attempt = shared_stand_in.attempt(f"ord{seconds}", expires_at_s=shared_stand_in.now_s() + seconds)
    if accepted:
        assert (await shared_stand_in.payments.open(attempt)).expires_at_s == attempt.expires_at_s
    else:
        with pytest.raises(ProviderError):
            await shared_stand_in.payments.open(attempt)


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer pk_test_1", 401),
        ("Basic !!", 401),
        ("Basic c2tfdGVzdF8xOg==", 200),
        ("Bearer rk_test_1", 200),
    ],
)
async def test_a_secret_key_is_needed(shared_stand_in: StandIn, authorization: str | None, status: int) -> None:
    assert (await raw_create(shared_stand_in, raw_params(shared_stand_in), None, authorization))[0] == status


async def test_what_is_not_there_is_refused(shared_stand_in: StandIn) -> None:
    with pytest.raises(ProviderError):
        await shared_stand_in.payments.look_up("cs_test_nothing")
    with pytest.raises(ProviderError):
        await shared_stand_in.payments.expire("cs_test_nothing")
    async with library(shared_stand_in) as client:
        with pytest.raises(stripe.InvalidRequestError, match="Unrecognized request URL"):
            await client.v1.customers.create_async({"email": "a@b.example"})


@pytest.mark.parametrize("path", ["checkout/sessions/a%00b", "payment_intents/a%00b", "a%00b"])
async def test_an_address_with_nul_is_not_there(shared_stand_in: StandIn, path: str) -> None:
    async with httpx.AsyncClient(base_url=shared_stand_in.url, headers={"authorization": f"Bearer {KEY}"}) as client:
        answer = await client.get(f"/sandbox/stripe/v1/{path}")
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")
        (call,) = (await client.get("/sandbox/calls?limit=1")).json()["calls"]
    assert (call["path"], call["status"]) == (f"/v1/{path.replace('%00', '')}", 404)


async def test_without_a_key_nothing_is_sent(shared_stand_in: StandIn) -> None:
    keyless = StripePayments("", SECRET, api_base=f"{shared_stand_in.url}/sandbox/stripe")
    with pytest.raises(ProviderError):
        await keyless.look_up("cs_test_1")
    await keyless.close()


async def test_nobody_listens_so_nothing_was_sent(shared_stand_in: StandIn) -> None:
    listener = listening_socket()
    port = listener.getsockname()[1]
    listener.close()
    payments = StripePayments(KEY, SECRET, api_base=f"http://127.0.0.1:{port}", timeout_seconds=5)
    with pytest.raises(ProviderError):
        await payments.open(shared_stand_in.attempt())
    await payments.close()
