"""Webhooks as providers, forgers and broken proxies send them, over HTTP: what is refused changes nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from engine.domain import Provider
from tests.deployment import eventually
from tests.running_site import BODY_LIMIT, Site, paid_body, running_site, signed_by

if TYPE_CHECKING:
    from tests.conftest import RedisBackend

PROVIDERS = (Provider.STRIPE, Provider.PAYSTACK)
SIGNATURE = {Provider.STRIPE: "stripe-signature", Provider.PAYSTACK: "x-paystack-signature"}
both = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.value)


@pytest.fixture
async def site(database_url: str, tmp_path: Any) -> AsyncIterator[Site]:
    """No persister and no job runs, so that nothing but the requests changes any row."""
    async with running_site(f"fakeredis://{tmp_path.name}", database_url) as running:
        yield running


@pytest.fixture
async def whole_site(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Site]:
    """With a persister, so that what is settled reaches Postgres."""
    async with running_site(redis_backend.url, database_url, persists=True) as running:
        yield running


RESULT_OF_CODE = {"bad_signature": "bad_signature", "malformed_body": "malformed"}


async def _refused(site: Site, provider: Provider, body: bytes, headers: dict[str, str], code: str) -> None:
    """Deliver, and see the refusal, its count, and that no row is another."""
    before, counted = await site.contents(), await site.counted()
    answer = await site.deliver(provider, body, headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code), answer.text
    assert await site.contents() == before
    after = await site.counted()
    assert {key: count - counted.get(key, 0) for key, count in after.items() if count != counted.get(key, 0)} == {
        (provider.value, RESULT_OF_CODE[code]): 1.0
    }


@both
async def test_what_is_not_signed_by_the_provider_changes_nothing(site: Site, provider: Provider) -> None:
    checkout = await site.check_out(provider)
    body, name = paid_body(provider, checkout), SIGNATURE[provider]
    good = signed_by(provider, body)[name]
    other = PROVIDERS[1 - PROVIDERS.index(provider)]
    forged = [
        {},
        {name: ""},
        {name: "0"},
        {name: "t=,v1="},
        {name: good[:-1]},
        {name: good.upper()},
        {name: good.replace("v1=", "v0=") if provider is Provider.STRIPE else f"sha512={good}"},
        signed_by(provider, body, secret="not the secret"),
        signed_by(provider, body + b" "),
        signed_by(other, body),
    ]
    for headers in forged:
        await _refused(site, provider, body, headers, "bad_signature")
    await _refused(site, provider, body + b"\n", {name: good}, "bad_signature")
    await _refused(site, provider, b"", {name: good}, "bad_signature")
    # The same bytes and header are believed as they came.
    assert (await site.deliver(provider, body, {name: good})).json() == {"received": True}
    assert await site.rows("select session_id, kind from settlements") == [(checkout["session_id"], "complete")]


@pytest.mark.parametrize("off_s", [-330, 330], ids=["old", "early"])
async def test_a_stamp_that_is_not_of_now_is_refused(site: Site, off_s: int) -> None:
    body = paid_body(Provider.STRIPE, await site.check_out(Provider.STRIPE))
    headers = signed_by(Provider.STRIPE, body, stamp_s=int(time.time()) + off_s)
    await _refused(site, Provider.STRIPE, body, headers, "bad_signature")


@both
async def test_what_is_signed_and_no_event_changes_nothing(site: Site, provider: Provider) -> None:
    checkout = await site.check_out(provider)
    body = paid_body(provider, checkout)
    event = json.loads(body)
    amount = "amount" if provider is Provider.PAYSTACK else "amount_total"
    identifier = "reference" if provider is Provider.PAYSTACK else "id"
    kind = "event" if provider is Provider.PAYSTACK else "type"
    broken = [
        b"",
        b"{",
        body[:-1],
        body[: len(body) // 2],
        b"[" + body + b"]",
        b'"text"',
        b"1",
        b"null",
        b"NaN",
        json.dumps({key: value for key, value in event.items() if key != "data"}).encode(),
        json.dumps({key: value for key, value in event.items() if key != kind}).encode(),
        json.dumps(event | {"data": []}).encode(),
        json.dumps(event | {kind: 1}).encode(),
        paid_body(provider, checkout, **{amount: 49.5}),
        paid_body(provider, checkout, **{amount: True}),
        paid_body(provider, checkout, **{amount: -1}),
        paid_body(provider, checkout, **{identifier: None}),
        paid_body(provider, checkout, **{identifier: {"id": "x"}}),
        paid_body(provider, checkout, currency=1),
    ]
    for bad in broken:
        await _refused(site, provider, bad, signed_by(provider, bad), "malformed_body")
    # Stripe signs text, so that bytes which are none can't be signed at all.
    code = "malformed_body" if provider is Provider.PAYSTACK else "bad_signature"
    for bad in (b"\xff" + body, body.replace(checkout["session_id"].encode(), b"\xc3\x28")):
        await _refused(site, provider, bad, signed_by(provider, bad), code)


@both
async def test_a_body_that_says_it_is_no_json_is_refused_however_it_is_signed(site: Site, provider: Provider) -> None:
    body = paid_body(provider, await site.check_out(provider))
    for wrong in (
        *("text/plain", "text/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
        *("application/octet-stream", "json", "", "application/jsonp", "text/html; x=application/json"),
    ):
        headers = signed_by(provider, body) | {"content-type": wrong}
        await _refused(site, provider, body, headers, "malformed_body")
    for index, right in enumerate(("application/json", "application/json; charset=utf-8", "Application/JSON")):
        answer = await site.deliver(provider, body, signed_by(provider, body) | {"content-type": right})
        assert (answer.status_code, answer.json()) == (200, {"received": True}), (index, answer.text)
    assert await site.rows("select count(*) from settlements") == [(1,)]


@both
async def test_a_body_past_the_limit_is_413_declared_or_not(site: Site, provider: Provider) -> None:
    before = await site.contents()
    body = b'{"id": "' + b"x" * BODY_LIMIT + b'"}'

    async def in_pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1000):
            yield body[start : start + 1000]

    for content in (body, in_pieces()):
        answer = await site.http.post(
            f"/v1/webhooks/{provider.value}", content=content, headers=signed_by(provider, body)
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert await site.contents() == before


@both
async def test_only_post_is_answered(site: Site, provider: Provider) -> None:
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        answer = await site.http.request(method, f"/v1/webhooks/{provider.value}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")


@both
async def test_a_replayed_body_has_one_effect(whole_site: Site, provider: Provider) -> None:
    site = whole_site
    checkout = await site.check_out(provider)
    body = paid_body(provider, checkout)
    counted = await site.counted()
    answers = await asyncio.gather(*(site.deliver(provider, body) for _ in range(5)))
    assert [(answer.status_code, answer.json()) for answer in answers] == [(200, {"received": True})] * 5

    async def is_paid() -> bool:
        return await site.rows("select status from orders") == [("paid",)]

    await eventually(is_paid)
    paid = await site.contents()
    for _ in range(3):
        assert (await site.deliver(provider, body)).status_code == 200
    assert await site.contents() == paid
    ref = checkout["session_id"] if provider is Provider.PAYSTACK else f"pi_{checkout['session_id']}"
    amount = {Provider.STRIPE: (4900, "GBP"), Provider.PAYSTACK: (250_000, "NGN")}[provider]
    assert await site.rows("select provider, ref, amount_minor, currency, status from payments") == [
        (provider.value, ref, *amount, "kept")
    ]
    after = await site.counted()
    key = (provider.value, "accepted")
    assert after[key] - counted.get(key, 0) == 8


def _refund_body(provider: Provider, ref: str) -> bytes:
    if provider is Provider.PAYSTACK:
        data = {
            "status": "processed",
            "transaction_reference": ref,
            "refund_reference": "TRF_1",
            "amount": "1000",
            "currency": "NGN",
        }
        return json.dumps({"event": "refund.processed", "data": data}).encode()
    refund = {
        "id": "re_1",
        "object": "refund",
        "status": "succeeded",
        "amount": 1000,
        "currency": "gbp",
        "payment_intent": ref,
        "metadata": {},
    }
    event = {"id": "evt_r", "object": "event", "type": "refund.created", "created": int(time.time())}
    return json.dumps(event | {"data": {"object": refund}}).encode()


@both
async def test_news_of_a_refund_reach_the_order_once_however_often_they_come(
    whole_site: Site, provider: Provider
) -> None:
    site = whole_site
    checkout = await site.check_out(provider)
    await site.deliver(provider, paid_body(provider, checkout))

    async def is_paid() -> bool:
        return await site.rows("select status from payments") == [("kept",)]

    await eventually(is_paid)
    ((ref,),) = await site.rows("select ref from payments")
    body = _refund_body(provider, ref)
    for _ in range(3):
        assert (await site.deliver(provider, body)).json() == {"received": True}
    assert await site.rows("select status, refunded_minor from orders") == [("paid", 1000)]
    assert await site.rows("select amount_minor, status from provider_refunds") == [(1000, "succeeded")]
    # Nothing of it is taken for a settlement.
    assert await site.rows("select count(*) from settlements") == [(1,)]


@both
async def test_foreign_events_are_taken_and_those_marked_as_ours_asked_for_again(
    site: Site, provider: Provider
) -> None:
    counted, before = await site.counted(), await site.contents()
    foreign = {"event": "transfer.success", "data": {}} if provider is Provider.PAYSTACK else {"id": "evt_f"}
    body = json.dumps({"type": "invoice.paid", "data": {"object": {}}} | foreign).encode()
    assert (await site.deliver(provider, body)).json() == {"received": True}
    nobodys = {"session_id": "cs_x", "amount_minor": 250_000, "currency": "NGN"}
    marked = paid_body(provider, nobodys, metadata={"lastportion_order": "nobody-knows"})
    refused = await site.deliver(provider, marked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_unavailable")
    assert refused.headers["retry-after"] == "2"
    assert await site.contents() == before
    after = await site.counted()
    for result in ("foreign", "unavailable"):
        key = (provider.value, result)
        assert after[key] - counted.get(key, 0) == 1


async def test_money_that_nothing_knows_and_refunds_that_are_owed_show_in_the_metrics(site: Site) -> None:
    stranger = {"session_id": "cs_of_somebody_else", "amount_minor": 100, "currency": "GBP"}
    assert (await site.deliver(Provider.STRIPE, paid_body(Provider.STRIPE, stranger))).status_code == 200
    checkout = await site.check_out(Provider.STRIPE)
    wrong = paid_body(Provider.STRIPE, checkout, "evt_wrong", amount_total=4800)
    assert (await site.deliver(Provider.STRIPE, wrong)).status_code == 200
    exposed = (await site.http.get("/metrics")).text.splitlines()
    assert "lastportion_unmatched_settlements 1.0" in exposed
    assert "lastportion_refunds_owed 1.0" in exposed
    assert any(line.startswith("lastportion_oldest_refund_owed_seconds 0.") for line in exposed)
