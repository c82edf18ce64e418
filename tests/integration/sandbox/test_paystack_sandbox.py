"""The stand-in Paystack, spoken to by our adapter, and by httpx where only the wire shows it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from typing import Any

import httpx
import pytest

from engine.errors import AlreadyRefunded, ProviderError, SessionLost
from engine.payments.port import EventKind, ExpireOutcome, ProviderRefundStatus, SessionState
from tests.stand_in import PAYSTACK_KEY, StandIn

PENDING, SUCCEEDED, FAILED = ProviderRefundStatus.PENDING, ProviderRefundStatus.SUCCEEDED, ProviderRefundStatus.FAILED


async def call(
    stand_in: StandIn, method: str, path: str, key: str | None = PAYSTACK_KEY, **asked: Any
) -> tuple[int, dict[str, Any]]:
    """Call the stand-in without our adapter: status and body."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    answer = await stand_in.http.request(method, f"/sandbox/paystack{path}", headers=headers, **asked)
    return answer.status_code, answer.json()


def transaction(reference: str, **changes: Any) -> dict[str, Any]:
    body = {"email": "pupil@school.example", "amount": 125_000, "currency": "NGN", "reference": reference}
    return body | changes


async def initialized(stand_in: StandIn, reference: str, **changes: Any) -> None:
    status, body = await call(stand_in, "POST", "/transaction/initialize", json=transaction(reference, **changes))
    assert status == 200, body


async def test_a_transaction_is_paid_and_the_signed_event_tells_of_it(stand_in: StandIn) -> None:
    opened = await stand_in.paystack.open(stand_in.transaction())
    assert (opened.id, opened.url) == ("ord-1-1", f"{stand_in.url}/sandbox/pay/ord-1-1")
    before = await stand_in.paystack.look_up("ord-1-1")
    assert (before.state, before.payment_ref) == (SessionState.OPEN, None)
    answer = await stand_in.act("ord-1-1", "pay")
    assert answer["event"]["delivered"] is True
    assert (answer["provider"], answer["state"], answer["status"]) == ("paystack", "paid", "success")
    assert (answer["amount_minor"], answer["currency"], answer["expires_at"]) == (125_000, "NGN", None)
    (event,) = stand_in.received
    assert (event.kind, event.type, event.session_id) == (EventKind.PAID, "charge.success", "ord-1-1")
    assert (event.amount_minor, event.currency) == (125_000, "NGN")
    assert (event.marked_order_id, event.marked_tenant, event.marked_attempt) == ("ord-1", "demo", 1)
    after = await stand_in.paystack.look_up("ord-1-1")
    assert (after.state, after.payment_ref, after.amount_minor) == (SessionState.PAID, "ord-1-1", 125_000)
    assert await stand_in.paystack.expire("ord-1-1") is ExpireOutcome.COMPLETE
    assert (await stand_in.act("ord-1-1", "pay", 409))["error"]["status"] == "paid"


async def test_the_signature_is_over_the_raw_body_with_the_secret_key(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[httpx.Request] = []
    post = httpx.AsyncClient.send

    async def send(client: httpx.AsyncClient, request: httpx.Request, **options: Any) -> httpx.Response:
        if request.url.path == "/v1/webhooks/paystack":
            sent.append(request)
        return await post(client, request, **options)

    monkeypatch.setattr(httpx.AsyncClient, "send", send)
    await initialized(stand_in, "ref-1")
    await stand_in.act("ref-1", "pay")
    (request,) = sent
    expected = hmac.new(PAYSTACK_KEY.encode(), request.content, hashlib.sha512).hexdigest()
    assert request.headers["x-paystack-signature"] == expected
    assert json.loads(request.content)["event"] == "charge.success"


async def test_walking_away_ends_nothing(stand_in: StandIn) -> None:
    await stand_in.paystack.open(stand_in.transaction())
    answer = await stand_in.act("ord-1-1", "expire")
    assert (answer["state"], answer["status"], answer["event"]) == ("abandoned", "abandoned", None)
    assert await stand_in.paystack.expire("ord-1-1") is ExpireOutcome.LAPSES
    await stand_in.advance(40 * 24 * 3600)
    assert (await stand_in.act("ord-1-1", "pay"))["status"] == "success"
    assert [event.type for event in stand_in.received] == ["charge.success"]


async def test_a_declined_transaction_can_be_paid_on_the_same_page(stand_in: StandIn) -> None:
    await stand_in.paystack.open(stand_in.transaction())
    answer = await stand_in.act("ord-1-1", "decline")
    assert (answer["status"], answer["declines"], answer["event"]) == ("failed", 1, None)
    assert (await stand_in.act("ord-1-1", "pay"))["status"] == "success"
    assert [event.kind for event in stand_in.received] == [EventKind.PAID]


async def test_a_delayed_payment_is_pending_without_an_event(stand_in: StandIn) -> None:
    for reference in ("ref-1", "ref-2"):
        await initialized(stand_in, reference)
        assert (await stand_in.act(reference, "fail_later", 409))["error"]["code"] == "illegal_transition"
        answer = await stand_in.act(reference, "pay_later")
        assert (answer["status"], answer["event"]) == ("pending", None)
    assert (await stand_in.act("ref-1", "pay"))["event"]["type"] == "charge.success"
    failed = await stand_in.act("ref-2", "fail_later")
    assert (failed["status"], failed["event"]) == ("failed", None)
    assert [event.session_id for event in stand_in.received] == ["ref-1"]


async def test_a_reference_is_used_once(stand_in: StandIn) -> None:
    await stand_in.paystack.open(stand_in.transaction())
    status, body = await call(stand_in, "POST", "/transaction/initialize", json=transaction("ord-1-1"))
    assert (status, body["status"], body["message"]) == (400, False, "Duplicate Transaction Reference")
    with pytest.raises(SessionLost):
        await stand_in.paystack.open(stand_in.transaction())
    await stand_in.act("ord-1-1", "pay")
    assert (await stand_in.paystack.open(stand_in.transaction())).state is SessionState.PAID


async def test_of_two_calls_with_one_reference_at_once_one_is_a_duplicate(stand_in: StandIn) -> None:
    answers = await asyncio.gather(
        *(call(stand_in, "POST", "/transaction/initialize", json=transaction("ref-1")) for _ in range(4))
    )
    assert sorted(status for status, _ in answers) == [200, 400, 400, 400]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expires_at": 1}, '"expires_at" is not allowed'),
        ({"email": "nobody"}, 'Invalid "email"'),
        ({"amount": 4_999}, "Amount is less than 5000"),
        ({"amount": 199, "currency": "USD"}, "Amount is less than 200"),
        ({"amount": 12.5}, 'Invalid "amount"'),
        ({"currency": "GBP"}, 'Invalid "currency"'),
        ({"reference": "with_underscore"}, 'Invalid "reference"'),
        ({"callback_url": "javascript:alert(1)"}, 'Invalid "callback_url"'),
        ({"metadata": {"note": "\0"}}, "A NUL character is not allowed"),
    ],
)
async def test_what_paystack_does_not_document_is_refused(
    shared_stand_in: StandIn, changes: dict[str, Any], message: str
) -> None:
    body = transaction("refused-1") | changes
    status, answer = await call(shared_stand_in, "POST", "/transaction/initialize", json=body)
    assert (status, answer["status"]) == (400, False)
    assert answer["message"].startswith(message)


@pytest.mark.parametrize("key", [None, "pk_test_public"])
async def test_a_secret_key_is_needed(shared_stand_in: StandIn, key: str | None) -> None:
    status, answer = await call(shared_stand_in, "GET", "/transaction", key)
    assert (status, answer["status"], answer["message"]) == (401, False, "Invalid key")


async def test_what_is_not_there_is_refused(shared_stand_in: StandIn) -> None:
    status, answer = await call(shared_stand_in, "GET", "/transaction/verify/nothing")
    assert (status, answer["message"]) == (400, "Transaction reference not found.")
    with pytest.raises(ProviderError) as refused:
        await shared_stand_in.paystack.look_up("nothing")
    assert refused.value.details["provider_code"] == "not_found"
    assert (await call(shared_stand_in, "GET", "/refund/999999999"))[0] == 404
    assert (await call(shared_stand_in, "GET", "/charge"))[0] == 404
    session = await shared_stand_in.payments.open(shared_stand_in.attempt())
    assert (await call(shared_stand_in, "GET", f"/transaction/verify/{session.id}"))[0] == 400


@pytest.mark.parametrize("metadata", [{"a": [1, {"b": None}]}, '{"a": "1"}', ""])
async def test_metadata_come_back_as_they_were_given(stand_in: StandIn, metadata: Any) -> None:
    await initialized(stand_in, "ref-1", metadata=metadata)
    await stand_in.act("ref-1", "pay")
    _, body = await call(stand_in, "GET", "/transaction/verify/ref-1")
    assert body["data"]["metadata"] == metadata
    told = stand_in.received[0].body["data"]
    assert isinstance(told, dict)
    assert told["metadata"] == metadata


async def test_transactions_are_listed_by_status_time_and_page(stand_in: StandIn) -> None:
    for number in range(3):
        await initialized(stand_in, f"ref-{number}")
        await stand_in.act(f"ref-{number}", "pay")
    await initialized(stand_in, "unpaid")
    between = stand_in.now_s() + 50
    await stand_in.advance(100)
    await stand_in.paystack.open(stand_in.transaction("late"))
    await stand_in.act("late-1", "pay")
    assert [found.id async for found in stand_in.paystack.paid_since(between)] == ["late-1"]
    everything = [found.id async for found in stand_in.paystack.paid_since(between - 3600)]
    assert everything == ["late-1", "ref-2", "ref-1", "ref-0"]
    _, body = await call(stand_in, "GET", "/transaction", params={"status": "success", "perPage": 3, "page": 2})
    assert [row["reference"] for row in body["data"]] == ["ref-0"]
    assert body["meta"] == {"total": 4, "skipped": 3, "perPage": 3, "page": 2, "pageCount": 2}
    _, body = await call(stand_in, "GET", "/transaction", params={"status": "abandoned"})
    assert [row["reference"] for row in body["data"]] == ["unpaid"]
    assert (await call(stand_in, "GET", "/transaction", params={"since": "1"}))[0] == 400


async def test_a_refund_is_queued_and_processed_at_once(still_stand_in: StandIn) -> None:
    await still_stand_in.paystack.open(still_stand_in.transaction())
    await still_stand_in.act("ord-1-1", "pay")
    wanted = still_stand_in.refund_of("ord-1-1", 25_000, currency="NGN")
    asked = await still_stand_in.paystack.refund(wanted)
    assert (asked.status, asked.amount_minor) == (PENDING, 25_000)
    assert (asked.marked_refund_id, asked.marked_round) == ("rf-1", 1)
    (found,) = await still_stand_in.paystack.look_up_refunds("ord-1-1")
    assert (found.ref, found.status, found.marked_refund_id) == (asked.ref, SUCCEEDED, "rf-1")
    await still_stand_in.sandbox.catch_up()
    news = {event.type: event for event in still_stand_in.received[1:]}
    assert set(news) == {"refund.pending", "refund.processing", "refund.processed"}
    done = news["refund.processed"]
    assert done.refund is not None
    assert (done.refund.status, done.refund.payment_ref, done.refund.amount_minor) == (SUCCEEDED, "ord-1-1", 25_000)
    assert done.refund.alias is not None
    told = done.body["data"]
    assert isinstance(told, dict)
    assert told["amount"] == "25000"
    shown = await still_stand_in.session("ord-1-1")
    assert (shown["amount_refunded_minor"], shown["status"]) == (25_000, "success")
    assert shown["refunds"] == [{"id": found.ref, "amount_minor": 25_000, "status": "succeeded"}]


async def test_two_calls_are_two_refunds_until_nothing_is_left(stand_in: StandIn) -> None:
    await stand_in.paystack.open(stand_in.transaction())
    status, body = await call(stand_in, "POST", "/refund", json={"transaction": "ord-1-1"})
    assert (status, body["status"]) == (400, False)
    await stand_in.act("ord-1-1", "pay")
    half = stand_in.refund_of("ord-1-1", 50_000, currency="NGN")
    await stand_in.paystack.refund(half)
    await stand_in.paystack.refund(half)
    assert [refund["amount_minor"] for refund in await stand_in.refunds("ord-1-1")] == [50_000, 50_000]
    with pytest.raises(ProviderError) as refused:
        await stand_in.paystack.refund(half)
    assert not isinstance(refused.value, AlreadyRefunded)
    _, body = await call(stand_in, "POST", "/refund", json={"transaction": "ord-1-1", "customer_note": "The rest"})
    assert (body["data"]["amount"], body["data"]["status"]) == (25_000, "pending")
    with pytest.raises(AlreadyRefunded):
        await stand_in.paystack.refund(half)
    assert (await stand_in.session("ord-1-1"))["status"] == "reversed"


async def test_refunds_are_fetched_and_listed_by_transaction(stand_in: StandIn) -> None:
    for reference in ("ref-1", "ref-2"):
        await initialized(stand_in, reference)
        await stand_in.act(reference, "pay")
        await stand_in.refund(reference, 25_000)
    _, verified = await call(stand_in, "GET", "/transaction/verify/ref-1")
    (row,) = (await call(stand_in, "GET", "/refund", params={"reference": "ref-1"}))[1]["data"]
    assert (row["transaction"], row["amount"], row["status"]) == (verified["data"]["id"], 25_000, "processed")
    by_id = (await call(stand_in, "GET", "/refund", params={"transaction": row["transaction"]}))[1]["data"]
    assert by_id == [row]
    _, fetched = await call(stand_in, "GET", f"/refund/{row['id']}")
    assert fetched["data"] == row
    assert len((await call(stand_in, "GET", "/refund"))[1]["data"]) == 2


async def test_a_refund_fails_after_all(stand_in: StandIn) -> None:
    await initialized(stand_in, "ref-1")
    await stand_in.act("ref-1", "pay")
    (refund,) = (await stand_in.refund("ref-1"))["refunds"]
    answer = await stand_in.post(f"/sandbox/refunds/{refund['id']}/fail", None)
    assert [(event["type"], event["delivered"]) for event in answer["events"]] == [("refund.failed", True)]
    assert (answer["amount_refunded_minor"], answer["status"]) == (0, "success")
    event = stand_in.received[-1]
    assert event.refund is not None
    assert (event.refund.status, event.refund.payment_ref) == (FAILED, "ref-1")
    await stand_in.post(f"/sandbox/refunds/{refund['id']}/fail", None, 409)
    await stand_in.post("/sandbox/refunds/999999999/fail", None, 404)
    assert (await stand_in.refund("ref-1"))["amount_refunded_minor"] == 125_000


async def test_paystack_has_no_disputes_here(stand_in: StandIn) -> None:
    await initialized(stand_in, "ref-1")
    await stand_in.act("ref-1", "pay")
    await stand_in.post("/sandbox/sessions/ref-1/dispute", None, 409)


async def test_calls_are_noted_without_the_key(stand_in: StandIn) -> None:
    await stand_in.paystack.open(stand_in.transaction())
    (noted,) = await stand_in.calls()
    assert (noted["target"], noted["method"], noted["path"]) == ("paystack", "POST", "/transaction/initialize")
    assert (noted["status"], noted["params"]["reference"], noted["idempotency_key"]) == (200, "ord-1-1", None)
    assert PAYSTACK_KEY not in str(noted)
