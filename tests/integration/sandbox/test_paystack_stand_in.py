"""Paystack's transactions at the stand-in, through our adapter, by hand, and by buyers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.sandbox import calls
from engine.errors import ProviderError, ProviderTimeout, SessionLost
from engine.payments.port import EventKind, ExpireOutcome, SessionState
from tests.paystack_fields import check_paystack_request
from tests.stand_in import PAYSTACK_KEY, StandIn

KEY = {"Authorization": f"Bearer {PAYSTACK_KEY}"}


async def asked(stand_in: StandIn, method: str, path: str, status: int = 200, **what: Any) -> dict[str, Any]:
    """A call without the adapter."""
    answer = await stand_in.http.request(method, f"/sandbox/paystack{path}", headers=KEY, **what)
    assert answer.status_code == status, answer.text
    content: dict[str, Any] = answer.json()
    assert content["status"] is (status == 200)
    return content


def body(**changes: Any) -> dict[str, Any]:
    """The least that starts a transaction."""
    return {"email": "pupil@school.example", "amount": 125_000, "currency": "NGN"} | changes


async def test_a_transaction_is_opened_paid_once_and_told_of(stand_in: StandIn) -> None:
    session = await stand_in.paystack.open(stand_in.transaction())
    assert session.id == "ord-1-1"
    assert session.url == f"{stand_in.url}/sandbox/pay/ord-1-1"
    assert (session.state, session.amount_minor, session.currency) == (SessionState.OPEN, 125_000, "NGN")
    assert (await asked(stand_in, "GET", "/transaction/verify/ord-1-1"))["data"]["status"] == "abandoned"
    answer = await stand_in.act(session.id, "pay")
    assert (answer["provider"], answer["state"], answer["status"]) == ("paystack", "paid", "success")
    assert (answer["amount_minor"], answer["payment_ref"], answer["expires_at"]) == (125_000, "ord-1-1", None)
    assert (answer["event"]["type"], answer["event"]["delivered"]) == ("charge.success", True)
    (event,) = stand_in.received
    assert (event.kind, event.session_id, event.payment_ref) == (EventKind.PAID, "ord-1-1", "ord-1-1")
    assert (event.amount_minor, event.currency, event.marked_order_id) == (125_000, "NGN", "ord-1")
    assert (await stand_in.paystack.look_up(session.id)).state is SessionState.PAID
    assert await stand_in.paystack.expire(session.id) is ExpireOutcome.COMPLETE
    assert (await stand_in.act(session.id, "pay", 409))["error"]["status"] == "paid"
    noted = [call for call in await stand_in.calls() if call["path"] == "/transaction/initialize"]
    assert [(call["target"], call["status"], call["params"]["reference"]) for call in noted] == [
        ("paystack", 200, "ord-1-1")
    ]
    assert PAYSTACK_KEY not in str(await stand_in.calls())


async def test_metadata_comes_back_as_it_was_given(stand_in: StandIn) -> None:
    for number, metadata in enumerate(({"a": [1, {"b": None}]}, '{"a": 1}', "")):
        reference = f"ref.{number}="
        await asked(stand_in, "POST", "/transaction/initialize", json=body(reference=reference, metadata=metadata))
        await stand_in.act(reference, "pay")
        found = (await asked(stand_in, "GET", f"/transaction/verify/{reference}"))["data"]
        assert found["metadata"] == metadata
        data = stand_in.received[-1].body["data"]
        assert isinstance(data, dict)
        assert data["metadata"] == metadata


async def test_a_reference_is_taken_once(stand_in: StandIn) -> None:
    attempt = stand_in.transaction()
    answers = await asyncio.gather(*(stand_in.paystack.open(attempt) for _ in range(8)), return_exceptions=True)
    opened = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert len(opened) == 1
    assert all(isinstance(a, SessionLost | ProviderTimeout) for a in answers if isinstance(a, BaseException))
    refused = await asked(stand_in, "POST", "/transaction/initialize", 400, json=body(reference="ord-1-1"))
    assert (refused["message"], refused["code"]) == ("Duplicate Transaction Reference", "duplicate_reference")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bogus": 1}, '"bogus" is not allowed'),
        ({"reference": "a_b"}, 'Invalid "reference"'),
        ({"reference": ""}, 'Invalid "reference"'),
        ({"amount": 4999}, "Amount is less than 5000"),
        ({"amount": 199, "currency": "USD"}, "Amount is less than 200"),
        ({"amount": 12.5}, 'Invalid "amount"'),
        ({"amount": True}, 'Invalid "amount"'),
        ({"amount": -5}, 'Invalid "amount"'),
        ({"currency": "GBP"}, 'Invalid "currency"'),
        ({"email": "nobody"}, 'Invalid "email"'),
        ({"callback_url": "javascript:alert(1)"}, 'Invalid "callback_url"'),
        ({"metadata": {"a": "\0"}}, "NUL"),
    ],
)
async def test_what_paystack_refuses_is_refused(
    shared_stand_in: StandIn, changes: dict[str, Any], message: str
) -> None:
    refused = await asked(shared_stand_in, "POST", "/transaction/initialize", 400, json=body(**changes))
    assert message in refused["message"]


async def test_an_amount_may_be_digits_in_a_text_and_the_reference_paystacks_own(stand_in: StandIn) -> None:
    started = await asked(stand_in, "POST", "/transaction/initialize", json=body(amount="5000"))
    found = await asked(stand_in, "GET", f"/transaction/verify/{started['data']['reference']}")
    assert found["data"]["amount"] == 5000


async def test_strangers_nonsense_and_the_unknown_are_refused(shared_stand_in: StandIn) -> None:
    http = shared_stand_in.http
    for headers in ({}, {"Authorization": "Bearer pk_test_1"}, {"Authorization": "Basic c2tfMTo="}):
        assert (await http.get("/sandbox/paystack/refund", headers=headers)).status_code == 401
    for content in (b"{", b"[]", b"\xff"):
        await asked(shared_stand_in, "POST", "/transaction/initialize", 400, content=content)
    missing = await asked(shared_stand_in, "GET", "/transaction/verify/nothing", 400)
    assert (missing["message"], missing["code"]) == ("Transaction reference not found.", "transaction_not_found")
    await asked(shared_stand_in, "GET", "/plan", 404)
    await asked(shared_stand_in, "GET", "/refund/7", 404)
    await asked(shared_stand_in, "GET", "/transaction", 400, params={"perPage": "0"})
    await asked(shared_stand_in, "GET", "/transaction", 400, params={"sort": "up"})
    with pytest.raises(ProviderError) as raised:
        await shared_stand_in.paystack.look_up("nothing")
    assert raised.value.details["provider_code"] == "not_found"


async def test_a_stripe_session_is_no_transaction_and_the_other_way_round(stand_in: StandIn) -> None:
    session = await stand_in.payments.open(stand_in.attempt())
    await stand_in.paystack.open(stand_in.transaction())
    await asked(stand_in, "GET", f"/transaction/verify/{session.id}", 400)
    with pytest.raises(ProviderError):
        await stand_in.payments.look_up("ord-1-1")
    assert await asked(stand_in, "GET", "/transaction", params={"status": "success"}) == {
        "status": True,
        "message": "Transactions retrieved",
        "data": [],
        "meta": {"total": 0, "skipped": 0, "perPage": 50, "page": 1, "pageCount": 0},
    }


@pytest.mark.parametrize(
    ("acts", "status", "kinds"),
    [
        (["decline"], "failed", []),
        (["decline", "decline", "pay"], "success", [EventKind.PAID]),
        (["expire"], "abandoned", []),
        (["expire", "pay"], "success", [EventKind.PAID]),
        (["pay_later"], "pending", []),
        (["pay_later", "pay"], "success", [EventKind.PAID]),
        (["pay_later", "fail_later"], "failed", []),
        (["pay_later", "fail_later", "pay"], "success", [EventKind.PAID]),
    ],
)
async def test_nothing_but_a_payment_is_told_of_and_nothing_ends_a_transaction(
    stand_in: StandIn, acts: list[str], status: str, kinds: list[EventKind]
) -> None:
    session = await stand_in.paystack.open(stand_in.transaction())
    for act in acts:
        answer = await stand_in.act(session.id, act)
        assert (answer["event"] is not None) is (act == "pay")
    assert answer["status"] == status
    assert answer["declines"] == acts.count("decline")
    assert (await asked(stand_in, "GET", f"/transaction/verify/{session.id}"))["data"]["status"] == status
    await stand_in.advance(30 * 24 * 3600)
    assert [event.kind for event in stand_in.received] == kinds
    assert (await stand_in.session(session.id))["status"] == status


async def test_what_can_not_happen_to_a_transaction_is_refused(stand_in: StandIn) -> None:
    session = await stand_in.paystack.open(stand_in.transaction())
    await stand_in.act(session.id, "fail_later", 409)
    await stand_in.act(session.id, "dispute", 409)
    await stand_in.act(session.id, "pay_later")
    await stand_in.act(session.id, "decline", 409)
    await stand_in.act(session.id, "pay")
    await stand_in.act(session.id, "expire", 409)


async def test_paid_transactions_are_listed_page_by_page(stand_in: StandIn) -> None:
    since_s = stand_in.now_s()
    for number in range(5):
        session = await stand_in.paystack.open(stand_in.transaction(f"ord-{number}"))
        if number != 2:
            await stand_in.act(session.id, "pay")
    page = await asked(stand_in, "GET", "/transaction", params={"status": "success", "perPage": "3", "page": "2"})
    assert [row["reference"] for row in page["data"]] == ["ord-0-1"]
    assert page["meta"] == {"total": 4, "skipped": 3, "perPage": 3, "page": 2, "pageCount": 2}
    found = [session.id async for session in stand_in.paystack.paid_since(since_s)]
    assert found == ["ord-4-1", "ord-3-1", "ord-1-1", "ord-0-1"]
    await stand_in.advance(100)
    assert [session.id async for session in stand_in.paystack.paid_since(stand_in.now_s())] == []


async def test_every_call_of_the_adapter_is_in_paystacks_words(stand_in: StandIn) -> None:
    seen: list[tuple[str, str]] = []

    async def check(request: Any) -> None:
        path = request.url.raw_path.decode().partition("?")[0].removeprefix("/sandbox/paystack")
        check_paystack_request(request.method, path, request.url.query.decode(), request.content)
        seen.append((request.method, path))

    stand_in.paystack._http.event_hooks["request"].append(check)
    session = await stand_in.paystack.open(stand_in.transaction())
    await stand_in.act(session.id, "pay")
    await stand_in.paystack.refund(stand_in.refund_of(session.id, 5000, currency="NGN"))
    assert len(await stand_in.paystack.look_up_refunds(session.id)) == 1
    assert [found.id async for found in stand_in.paystack.paid_since(0)] == [session.id]
    assert [method for method, _ in seen] == ["POST", "POST", "GET", "GET", "GET"]


# Faults


async def test_an_error_or_a_dropped_call_did_nothing(stand_in: StandIn) -> None:
    for kind in ("error", "drop"):
        await stand_in.fault("paystack", kind)
        with pytest.raises(ProviderTimeout):
            await stand_in.paystack.open(stand_in.transaction())
    assert (await stand_in.paystack.open(stand_in.transaction())).state is SessionState.OPEN
    assert [(call["status"], call["fault"]) for call in await stand_in.calls()] == [
        (500, "error"),
        (None, "drop"),
        (200, None),
    ]


async def test_a_lost_answer_leaves_a_transaction_whose_address_nobody_knows(stand_in: StandIn) -> None:
    await stand_in.fault("paystack", "timeout_after_success")
    with pytest.raises(ProviderTimeout):
        await stand_in.paystack.open(stand_in.transaction())
    assert (await stand_in.paystack.look_up("ord-1-1")).state is SessionState.OPEN
    with pytest.raises(SessionLost):
        await stand_in.paystack.open(stand_in.transaction())


async def test_a_delayed_call_is_answered_all_the_same(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "DELAY_SECONDS", 0.0)
    await stand_in.fault("paystack", "delay")
    assert (await stand_in.paystack.open(stand_in.transaction())).state is SessionState.OPEN
    assert [call["fault"] for call in await stand_in.calls()] == ["delay"]


async def test_only_200_itself_is_a_receipt_for_paystack(still_stand_in: StandIn) -> None:
    still_stand_in.answers[:] = [201, 204, 200]
    session = await still_stand_in.paystack.open(still_stand_in.transaction())
    assert (await still_stand_in.act(session.id, "pay"))["event"]["delivered"] is False
    for seconds in (1, 2, 3600):
        await still_stand_in.advance(seconds)
    assert len(still_stand_in.received) == 3
    assert len({event.dedup_key for event in still_stand_in.received}) == 1


async def test_webhook_faults_strike_paystacks_events_too(still_stand_in: StandIn) -> None:
    await still_stand_in.fault("webhooks", "duplicate")
    await still_stand_in.fault("webhooks", "drop")
    for order in ("ord-1", "ord-2"):
        session = await still_stand_in.paystack.open(still_stand_in.transaction(order))
        await still_stand_in.act(session.id, "pay")
    await still_stand_in.advance(3600)
    assert [event.session_id for event in still_stand_in.received] == ["ord-1-1", "ord-1-1"]
