"""Whatever a buyer does to a transaction, and odd requests, at the stand-in Paystack."""

from __future__ import annotations

from typing import Any

import pytest

from engine.payments.port import EventKind
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


async def test_an_amount_may_be_digits_in_a_text_and_the_reference_paystacks_own(stand_in: StandIn) -> None:
    started = await asked(stand_in, "POST", "/transaction/initialize", json=body(amount="5000"))
    found = await asked(stand_in, "GET", f"/transaction/verify/{started['data']['reference']}")
    assert found["data"]["amount"] == 5000


async def test_what_is_no_request_is_refused(shared_stand_in: StandIn) -> None:
    for content in (b"{", b"[]", b"\xff"):
        await asked(shared_stand_in, "POST", "/transaction/initialize", 400, content=content)
    for query in ({"perPage": "0"}, {"perPage": "101"}, {"page": "0"}, {"status": "paid"}, {"from": "soon"}):
        await asked(shared_stand_in, "GET", "/transaction", 400, params=query)
    for changes in ({"amount": True}, {"amount": -5}, {"reference": ""}, {"email": None}):
        await asked(shared_stand_in, "POST", "/transaction/initialize", 400, json=body(**changes))


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
