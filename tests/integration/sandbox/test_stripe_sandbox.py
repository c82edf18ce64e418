"""The real Stripe library, through our adapter, against the sandbox over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import stripe
from pydantic import ValidationError

from engine.errors import ProviderTimeout
from engine.payments.port import EventKind, ExpireOutcome, PricedLine, SessionState
from engine.payments.stripe import session_params
from persistence.repositories.sandbox import SandboxStore
from tests.stand_in import KEY, StandIn, library, library_parameters, raw_create, raw_params


async def test_a_session_is_opened_with_all_that_the_attempt_froze(stand_in: StandIn) -> None:
    attempt = stand_in.attempt(amount_minor=1875, lines=(PricedLine("Practice pack", 1250), PricedLine("Pencils", 625)))
    session = await stand_in.payments.open(attempt)
    assert session.id.startswith("cs_test_")
    assert session.url == f"{stand_in.url}/sandbox/pay/{session.id}"
    assert (session.state, session.amount_minor, session.currency) == (SessionState.OPEN, 1875, "GBP")
    assert session.expires_at_s == attempt.expires_at_s
    assert session.payment_ref is None
    assert await stand_in.payments.look_up(session.id) == session
    created, looked_up = await stand_in.calls()
    marks = {
        "lastportion_order": "ord-1",
        "lastportion_tenant": "demo",
        "lastportion_attempt": "1",
        "lastportion_reservation": "res-ord-1",
    }
    assert created["params"] == {
        "mode": "payment",
        "line_items": [
            {
                "price_data": {
                    "currency": "gbp",
                    "product_data": {"name": "Practice pack"},
                    "unit_amount": "1250",
                },
                "quantity": "1",
            },
            {
                "price_data": {"currency": "gbp", "product_data": {"name": "Pencils"}, "unit_amount": "625"},
                "quantity": "1",
            },
        ],
        "success_url": "https://shop.example/thanks?session={CHECKOUT_SESSION_ID}",
        "cancel_url": "https://shop.example/basket",
        "customer_email": "pupil@school.example",
        "client_reference_id": "ord-1",
        "metadata": marks,
        "payment_intent_data": {"metadata": marks},
        "expires_at": str(attempt.expires_at_s),
    }
    assert (created["method"], created["path"], created["status"]) == ("POST", "/v1/checkout/sessions", 200)
    assert created["idempotency_key"] == "ord-1:1"
    assert (looked_up["method"], looked_up["path"]) == ("GET", f"/v1/checkout/sessions/{session.id}")
    assert KEY not in str([created, looked_up])


async def test_without_a_reservation_the_providers_own_expiry_stands(stand_in: StandIn) -> None:
    attempt = stand_in.attempt(reservation_id=None, expires_at_s=None)
    session = await stand_in.payments.open(attempt)
    assert session.expires_at_s is not None
    assert abs(session.expires_at_s - stand_in.now_s() - 24 * 3600) <= 5
    params = (await stand_in.calls())[0]["params"]
    assert "expires_at" not in params
    assert "lastportion_reservation" not in params["metadata"]


def test_an_attempt_gives_the_same_parameters_whenever_it_is_asked(stand_in: StandIn) -> None:
    attempt = stand_in.attempt()
    assert session_params(attempt) == session_params(attempt)


@pytest.mark.parametrize(
    "wrong",
    [{"coupon": "x"}, {"line_items": [{"amount": 5}]}, {"payment_intent_data": {"meta": {}}}, {"expires_at": "soon"}],
)
def test_a_parameter_that_the_library_does_not_know_would_show(stand_in: StandIn, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        library_parameters().validate_python({**session_params(stand_in.attempt()), **wrong})


@pytest.mark.parametrize(
    ("currency", "amount", "sent"),
    [("JPY", 80, "80"), ("KWD", 18600, "18600"), ("BHD", 35200, "35200"), ("UGX", 100, "10000")],
)
async def test_amounts_are_sent_in_stripes_unit_and_read_in_ours(
    stand_in: StandIn, currency: str, amount: int, sent: str
) -> None:
    session = await stand_in.payments.open(stand_in.attempt(amount_minor=amount, currency=currency))
    assert (session.amount_minor, session.currency) == (amount, currency)
    params = (await stand_in.calls())[-1]["params"]
    assert params["line_items"][0]["price_data"]["unit_amount"] == sent
    await stand_in.act(session.id, "pay")
    event = stand_in.received[-1]
    assert (event.kind, event.amount_minor, event.currency) == (EventKind.PAID, amount, currency)


async def test_lines_that_do_not_add_up_never_reach_stripe(stand_in: StandIn) -> None:
    with pytest.raises(ValueError, match="add up"):
        await stand_in.payments.open(stand_in.attempt(lines=(PricedLine("Practice pack", 1249),)))
    assert await stand_in.calls() == []


# Idempotency


async def test_the_same_attempt_gets_the_same_session(stand_in: StandIn) -> None:
    attempt = stand_in.attempt()
    first = await stand_in.payments.open(attempt)
    await stand_in.act(first.id, "pay")
    again = await stand_in.payments.open(attempt)
    # The saved answer is replayed as it was, though the session is paid by now.
    assert again == first
    assert (await stand_in.payments.look_up(first.id)).state is SessionState.PAID


async def test_a_replay_says_that_it_is_one(shared_stand_in: StandIn) -> None:
    params = raw_params(shared_stand_in)
    _, first, first_headers = await raw_create(shared_stand_in, params, "key-1")
    _, again, headers = await raw_create(shared_stand_in, params, "key-1")
    assert again == first
    assert "idempotent-replayed" not in first_headers
    assert headers["idempotent-replayed"] == "true"
    _, other, _ = await raw_create(shared_stand_in, params, "key-2")
    assert other["id"] != first["id"]


async def test_other_parameters_under_one_key_are_an_error_and_units_stay_held(stand_in: StandIn) -> None:
    await stand_in.payments.open(stand_in.attempt())
    with pytest.raises(ProviderTimeout) as raised:
        await stand_in.payments.open(stand_in.attempt(amount_minor=1251))
    cause = raised.value.__cause__
    assert isinstance(cause, stripe.IdempotencyError)
    assert "can only be used with the same parameters" in (cause.user_message or "")


async def test_a_call_under_a_key_in_use_is_told_so(stand_in: StandIn) -> None:
    attempt = stand_in.attempt()
    async with SandboxStore(stand_in.engine).transaction() as repository:
        assert await repository.occupy_key(attempt.idempotency_key)
        with pytest.raises(ProviderTimeout) as raised:
            await stand_in.payments.open(attempt)
    assert isinstance(raised.value.__cause__, stripe.StripeError)
    assert raised.value.__cause__.http_status == 409
    assert (await stand_in.payments.open(attempt)).state is SessionState.OPEN


async def test_parallel_calls_under_one_key_make_one_session(stand_in: StandIn) -> None:
    attempt = stand_in.attempt()
    answers = await asyncio.gather(*(stand_in.payments.open(attempt) for _ in range(12)), return_exceptions=True)
    opened = {answer.id for answer in answers if not isinstance(answer, BaseException)}
    assert all(isinstance(answer, ProviderTimeout) for answer in answers if isinstance(answer, BaseException))
    assert len(opened) == 1
    assert (await stand_in.payments.open(attempt)).id in opened


async def test_keys_are_forgotten_after_a_day_and_when_told_to(stand_in: StandIn) -> None:
    attempt = stand_in.attempt(expires_at_s=None)
    first = await stand_in.payments.open(attempt)
    await stand_in.advance(23 * 3600)
    assert (await stand_in.payments.open(attempt)).id == first.id
    await stand_in.advance(2 * 3600)
    second = await stand_in.payments.open(attempt)
    assert second.id != first.id
    await stand_in.fault("stripe", "forget_keys")
    assert (await stand_in.payments.open(attempt)).id not in (first.id, second.id)


# Outcomes of a session


async def test_a_paid_session_is_paid_once(stand_in: StandIn) -> None:
    session = await stand_in.payments.open(stand_in.attempt())
    answer = await stand_in.act(session.id, "pay")
    assert (answer["state"], answer["status"], answer["payment_status"]) == ("paid", "complete", "paid")
    assert answer["event"]["delivered"] is True
    (event,) = stand_in.received
    assert (event.kind, event.session_id, event.dedup_key) == (EventKind.PAID, session.id, answer["event"]["id"])
    assert (event.amount_minor, event.currency) == (1250, "GBP")
    assert (event.marked_order_id, event.marked_tenant) == ("ord-1", "demo")
    now = await stand_in.payments.look_up(session.id)
    assert (now.state, now.url, now.payment_ref) == (SessionState.PAID, None, event.payment_ref)
    assert event.payment_ref is not None
    assert event.payment_ref.startswith("pi_")
    refused = await stand_in.act(session.id, "pay", 409)
    assert refused["error"]["code"] == "illegal_transition"
    assert refused["error"]["status"] == "paid"
    assert await stand_in.payments.expire(session.id) is ExpireOutcome.COMPLETE
    assert len(stand_in.received) == 1


async def test_the_intent_of_a_payment_carries_our_mark(stand_in: StandIn) -> None:
    session = await stand_in.payments.open(stand_in.attempt())
    await stand_in.act(session.id, "pay")
    async with library(stand_in) as client:
        intent = await client.v1.payment_intents.retrieve_async(str(stand_in.received[0].payment_ref))
        with pytest.raises(stripe.InvalidRequestError, match="No such payment_intent"):
            await client.v1.payment_intents.retrieve_async("pi_nothing")
    assert (intent.status, intent.amount_received) == ("succeeded", 1250)
    assert intent.metadata is not None
    assert intent.metadata["lastportion_order"] == "ord-1"


async def test_a_closed_session_can_not_be_paid(stand_in: StandIn) -> None:
    session = await stand_in.payments.open(stand_in.attempt())
    assert await stand_in.payments.expire(session.id) is ExpireOutcome.EXPIRED
    assert await stand_in.payments.expire(session.id) is ExpireOutcome.EXPIRED
    assert (await stand_in.act(session.id, "pay", 409))["error"]["status"] == "expired"
    await stand_in.receipts(1)
    assert [event.kind for event in stand_in.received] == [EventKind.EXPIRED]


async def test_a_session_expires_by_itself(stand_in: StandIn) -> None:
    session = await stand_in.payments.open(stand_in.attempt())
    before = await stand_in.advance(1855)
    assert before["offset_seconds"] == 1855
    assert (await stand_in.payments.look_up(session.id)).state is SessionState.OPEN
    await stand_in.advance(6)
    assert stand_in.offsets == [1_855_000, 1_861_000]
    assert [event.kind for event in await stand_in.receipts(1)] == [EventKind.EXPIRED]
    assert (await stand_in.payments.look_up(session.id)).state is SessionState.EXPIRED
    assert (await stand_in.act(session.id, "pay", 409))["error"]["status"] == "expired"


async def test_a_delayed_payment_succeeds_later(stand_in: StandIn) -> None:
    session = await stand_in.payments.open(stand_in.attempt())
    answer = await stand_in.act(session.id, "pay_later")
    assert (answer["status"], answer["payment_status"]) == ("complete", "unpaid")
    assert (await stand_in.payments.look_up(session.id)).state is SessionState.UNPAID
    assert await stand_in.payments.expire(session.id) is ExpireOutcome.COMPLETE
    await stand_in.advance(3 * 24 * 3600)
    await stand_in.act(session.id, "pay")
    assert (await stand_in.payments.look_up(session.id)).state is SessionState.PAID
    assert [(event.kind, event.type) for event in stand_in.received] == [
        (EventKind.UNPAID, "checkout.session.completed"),
        (EventKind.PAID, "checkout.session.async_payment_succeeded"),
    ]
    assert stand_in.received[0].payment_ref == stand_in.received[1].payment_ref


async def test_a_delayed_payment_fails_later(stand_in: StandIn) -> None:
    session = await stand_in.payments.open(stand_in.attempt())
    await stand_in.act(session.id, "fail_later", 409)
    await stand_in.act(session.id, "pay_later")
    assert (await stand_in.act(session.id, "fail_later"))["state"] == "failed"
    assert [event.kind for event in stand_in.received] == [EventKind.UNPAID, EventKind.EXPIRED]
    await stand_in.act(session.id, "pay", 409)


async def test_a_total_of_zero_needs_no_payment(stand_in: StandIn) -> None:
    session = await stand_in.payments.open(stand_in.attempt(amount_minor=0))
    assert (await stand_in.act(session.id, "pay"))["payment_status"] == "no_payment_required"
    assert (stand_in.received[0].kind, stand_in.received[0].payment_ref) == (EventKind.PAID, session.id)
