"""From the curl line to the ledger: API, persister and jobs as they run, the real stripe library, the sandbox."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import stripe
from sqlalchemy import text

from persistence.database import create_engine_from
from tests.whole_site import STRIPE_SECRET as SECRET
from tests.whole_site import WholeSite, whole_site

if TYPE_CHECKING:
    from tests.conftest import RedisBackend

CODE_BODY = {
    "cap": 2,
    "period": {"kind": "academic_year", "timezone": "Europe/London"},
    "discount": {"percent_off": 10},
    "products": ["practice-pack"],
}
PRODUCT_BODY = {"name": "Practice pack", "amount_minor": 4999, "currency": "GBP"}


class School(WholeSite):
    """The whole deployment, with a code for one product."""

    async def check_out(self, key: str, status: int = 201, **changes: Any) -> Any:
        wish = {
            "customer": "student-1",
            "lines": [{"product": "practice-pack", "quantity": 1}],
            "code": "school10",
            "success_url": "https://shop.example/thanks?s={CHECKOUT_SESSION_ID}",
        }
        return await super().check_out(key, status, **wish | changes)

    async def deliver(self, event: dict[str, Any], stamp_s: int | None = None, secret: str = SECRET) -> httpx.Response:
        """Send an event signed by ourselves."""
        payload = json.dumps(event)
        header = stripe.WebhookSignature.generate_signature_header(payload, secret, stamp_s or int(time.time()))
        return await self.http.post("/v1/webhooks/stripe", content=payload, headers={"Stripe-Signature": header})


def paid_event(session_id: str, event_id: str, amount: int = 4500, **changes: Any) -> dict[str, Any]:
    """What Stripe sends when a session was paid; without metadata, which is a help and not a need."""
    session = {
        "id": session_id,
        "object": "checkout.session",
        "status": "complete",
        "payment_status": "paid",
        "amount_total": amount,
        "currency": "gbp",
        "payment_intent": f"pi_{session_id}",
        "metadata": {},
    }
    return {
        "id": event_id,
        "object": "event",
        "type": "checkout.session.completed",
        "created": int(time.time()),
        "data": {"object": session | changes},
    }


@pytest.fixture
async def site(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[School]:
    async with whole_site(redis_backend.url, database_url, School) as running:
        await running.call("PUT", "/v1/products/practice-pack", 200, PRODUCT_BODY)
        await running.call("PUT", "/v1/codes/SCHOOL10", 200, CODE_BODY)
        yield running


async def test_a_school_code_is_redeemed_for_real(site: School) -> None:
    checkout = await site.check_out("k1")
    assert (checkout["amount_minor"], checkout["discount_minor"], checkout["currency"]) == (4500, 499, "GBP")
    assert checkout["session_expires_at"] < checkout["expires_at"]
    assert checkout["checkout_url"].startswith(str(site.http.base_url).rstrip("/"))
    assert await site.check_out("k1", 200) == checkout
    order = await site.call("GET", f"/v1/orders/{checkout['order_id']}", 200)
    assert (order["status"], order["period"], order["code"]) == ("pending", checkout["period"], "SCHOOL10")
    await site.call("POST", f"/sandbox/sessions/{checkout['session_id']}/pay", 200)
    order = await site.order(checkout["order_id"], until="paid")
    assert [(p["provider"], p["amount_minor"], p["status"]) for p in order["payments"]] == [("stripe", 4500, "kept")]
    assert [entry["event"] for entry in order["history"]] == ["created", "session_opened", "paid"]
    usage = (await site.call("GET", "/v1/codes/school10", 200))["usage"]
    assert usage == {"period": checkout["period"], "completed": 1, "reserved": 0, "available": 1}
    database = create_engine_from(site.settings)
    async with database.connect() as connection:
        rows = await connection.execute(text("select tenant, code, period, customer, order_id from redemptions"))
        assert [tuple(row) for row in rows] == [
            ("demo", "SCHOOL10", checkout["period"], "student-1", checkout["order_id"])
        ]
    await database.dispose()


async def test_the_last_place_goes_to_one_and_comes_back_when_it_is_left(site: School) -> None:
    first, second = await site.check_out("k1"), await site.check_out("k2", customer="student-2")
    refused = await site.check_out("k3", 409, customer="student-3")
    assert refused["error"]["code"] == "all_reserved"
    assert refused["error"]["available"] == 0
    assert refused["error"]["retry_at"] == min(first["expires_at"], second["expires_at"])
    assert refused["error"]["promotion_code"] == "SCHOOL10"
    await site.call("POST", f"/sandbox/sessions/{first['session_id']}/expire", 200)
    assert (await site.order(first["order_id"], until="cancelled"))["payments"] == []
    third = await site.check_out("k3", customer="student-3")
    for checkout in (second, third):
        await site.call("POST", f"/sandbox/sessions/{checkout['session_id']}/pay", 200)
        await site.order(checkout["order_id"], until="paid")
    assert (await site.check_out("k4", 409, customer="student-4"))["error"]["code"] == "sold_out"


async def test_a_provider_error_is_502_with_the_units_back_and_a_time_out_504_with_them_held(site: School) -> None:
    await site.call("POST", "/sandbox/faults", 200, {"target": "stripe", "kind": "error", "count": 1})
    assert (await site.check_out("k1", 502))["error"]["code"] == "payment_provider_error"
    assert (await site.call("GET", "/v1/codes/SCHOOL10/usage", 200))["reserved"] == 0
    await site.call("POST", "/sandbox/faults", 200, {"target": "stripe", "kind": "timeout_after_success", "count": 1})
    assert (await site.check_out("k1", 504))["error"]["code"] == "payment_provider_timeout"
    assert (await site.call("GET", "/v1/codes/SCHOOL10/usage", 200))["reserved"] == 1
    checkout = await site.check_out("k1", 200)
    calls = [c for c in (await site.call("GET", "/sandbox/calls", 200))["calls"] if c["method"] == "POST"]
    assert calls[-1]["idempotency_key"] == calls[-2]["idempotency_key"] != calls[-3]["idempotency_key"]
    assert calls[-1]["params"] == calls[-2]["params"]
    await site.call("POST", f"/sandbox/sessions/{checkout['session_id']}/pay", 200)
    await site.order(checkout["order_id"], until="paid")


async def test_an_outside_program_signs_events_itself(site: School) -> None:
    checkout = await site.check_out("k1")
    paid = paid_event(checkout["session_id"], "evt_1")
    now_s = int(time.time())
    for stamp_s in (now_s - 330, now_s + 330):
        assert (await site.deliver(paid, stamp_s)).json()["error"]["code"] == "bad_signature"
    assert (await site.deliver(paid, secret="whsec_wrong")).status_code == 400
    assert (await site.http.post("/v1/webhooks/stripe", content=b"{}")).status_code == 400
    unsigned = await site.call("GET", f"/v1/orders/{checkout['order_id']}", 200)
    assert unsigned["status"] == "pending"
    answers = await asyncio.gather(*(site.deliver(paid, now_s + shift) for shift in (-270, 0, 270)))
    assert [(answer.status_code, answer.json()) for answer in answers] == [(200, {"received": True})] * 3
    order = await site.order(checkout["order_id"], until="paid")
    assert len(order["payments"]) == 1
    foreign = {"id": "evt_2", "object": "event", "type": "invoice.paid", "data": {"object": {"id": "in_1"}}}
    assert (await site.deliver(foreign)).status_code == 200
    assert (await site.deliver(paid_event("cs_unknown", "evt_3"))).status_code == 200
    ours_unseen = paid_event("cs_x", "evt_4", metadata={"lastportion_order": "nobody-knows"})
    refused = await site.deliver(ours_unseen)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")


async def test_a_free_checkout_needs_no_provider_and_a_full_price_one_no_reservation(site: School) -> None:
    await site.call("PUT", "/v1/codes/FREE", 200, CODE_BODY | {"discount": {"percent_off": 100}})
    free = await site.check_out("k1", code="FREE")
    assert (free["amount_minor"], free["discount_minor"], free["checkout_url"]) == (0, 4999, None)
    assert (free["session_id"], free["session_expires_at"]) == (None, None)
    await site.order(free["order_id"], until="paid")
    full = await site.check_out("k2", code=None)
    assert (full["amount_minor"], full["reservation_id"], full["expires_at"]) == (4999, None, None)
    assert (full["period"], full["session_expires_at"]) == (None, None)
    await site.call("POST", f"/sandbox/sessions/{full['session_id']}/pay", 200)
    order = await site.order(full["order_id"], until="paid")
    assert (order["lines"][0]["name"], order["reservation_id"]) == ("Practice pack", None)
    listed = await site.call("GET", "/v1/orders?status=paid&customer=student-1", 200)
    assert [o["id"] for o in listed["orders"]] == [free["order_id"], full["order_id"]]


async def test_the_test_clock_carries_everything_over_the_turn_of_a_period(site: School) -> None:
    before = await site.check_out("k1")
    await site.call("POST", "/sandbox/clock", 200, {"advance_seconds": 366 * 24 * 3600})
    assert (await site.order(before["order_id"], until="cancelled"))["late"] is False
    after = await site.check_out("k2")
    assert int(after["period"][:4]) == int(before["period"][:4]) + 1
    assert after["session_expires_at"] > before["expires_at"]
    # Signed by the machine's clock, as an outside program would, or by the sandbox's: both are taken.
    assert (await site.deliver(paid_event(after["session_id"], "evt_1"))).status_code == 200
    assert (await site.order(after["order_id"], until="paid"))["period"] == after["period"]
    past = await site.call("GET", f"/v1/codes/SCHOOL10/usage?period={before['period']}", 200)
    assert (past["completed"], past["reserved"]) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"lines": []}, 422, "invalid"),
        ({"lines": [{"product": "practice-pack", "quantity": 0}]}, 422, "invalid"),
        ({"lines": [{"product": "practice-pack", "quantity": 1.5}]}, 422, "invalid"),
        ({"lines": [{"product": "practice-pack", "quantity": True}]}, 422, "invalid"),
        ({"lines": [{"product": "practice-pack", "quantity": 1, "amount_minor": 1}]}, 422, "invalid"),
        ({"lines": [{"product": "nothing", "quantity": 1}]}, 404, "unknown_product"),
        ({"code": "NOSUCH"}, 404, "unknown_code"),
        ({"code": "a{b}"}, 422, "invalid"),
        ({"code": "x\0"}, 422, "invalid"),
        ({"customer": ""}, 422, "invalid"),
        ({"email": "nobody"}, 422, "invalid"),
        ({"email": "a b@c"}, 422, "invalid"),
        ({"success_url": "javascript:alert(1)"}, 422, "invalid"),
        ({"success_url": "https://"}, 422, "invalid"),
        ({"success_url": "http://[::1"}, 422, "invalid"),
        ({"cancel_url": "/cart"}, 422, "invalid"),
        ({"provider": "paystack"}, 422, "invalid"),
        ({"provider": "cash"}, 422, "invalid"),
        ({"use_rewards": True}, 422, "invalid"),
        ({"use_rewards": 0}, 422, "invalid"),
        ({"unknown": 1}, 422, "invalid"),
    ],
)
async def test_bad_checkouts_get_the_contracts_error_and_hold_nothing(
    shared_site: School, changes: dict[str, Any], status: int, code: str
) -> None:
    refused = await shared_site.check_out("bad", status, **changes)
    assert refused["error"]["code"] == code
    assert (await shared_site.call("GET", "/v1/codes/SCHOOL10/usage", 200))["reserved"] == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/codes/BAD", CODE_BODY | {"cap": -1}),
        ("/v1/codes/BAD", CODE_BODY | {"cap": "5"}),
        ("/v1/codes/BAD", CODE_BODY | {"period": {"kind": "academic_year"}}),
        ("/v1/codes/BAD", CODE_BODY | {"period": {"kind": "academic_year", "timezone": "Nowhere"}}),
        ("/v1/codes/BAD", CODE_BODY | {"period": {"kind": "academic_year", "timezone": "UTC", "starts": "02-30"}}),
        ("/v1/codes/BAD", CODE_BODY | {"period": {"kind": "week", "timezone": "UTC"}}),
        ("/v1/codes/BAD", CODE_BODY | {"period": {"kind": "month", "timezone": ""}}),
        ("/v1/codes/BAD", CODE_BODY | {"period": {"kind": "none", "timezone": ""}}),
        ("/v1/codes/BAD", CODE_BODY | {"discount": {}}),
        ("/v1/codes/BAD", CODE_BODY | {"discount": {"percent_off": 0}}),
        ("/v1/codes/BAD", CODE_BODY | {"discount": {"percent_off": 100.5}}),
        ("/v1/codes/BAD", CODE_BODY | {"discount": {"percent_off": 10, "amount_off_minor": 1, "currency": "GBP"}}),
        ("/v1/codes/BAD", CODE_BODY | {"discount": {"amount_off_minor": 100, "currency": "ZZZ"}}),
        ("/v1/codes/BAD", CODE_BODY | {"per_customer": 0}),
        ("/v1/codes/BAD", CODE_BODY | {"opens_at": "2026-09-01T00:00:00"}),
        ("/v1/codes/BAD", CODE_BODY | {"opens_at": "2026-09-02T00:00:00Z", "closes_at": "2026-09-01T00:00:00Z"}),
        ("/v1/codes/a%20b", CODE_BODY),
        ("/v1/products/bad", PRODUCT_BODY | {"amount_minor": -1}),
        ("/v1/products/bad", PRODUCT_BODY | {"amount_minor": 1.5}),
        ("/v1/products/bad", PRODUCT_BODY | {"amount_minor": 100_000_000}),
        ("/v1/products/bad", PRODUCT_BODY | {"currency": "ZZZ"}),
        ("/v1/products/bad", PRODUCT_BODY | {"currency": "KWD", "amount_minor": 18601}),
        ("/v1/products/bad", PRODUCT_BODY | {"recurring": {"interval": "week"}}),
    ],
)
async def test_bad_definitions_get_the_contracts_error_and_define_nothing(
    shared_site: School, path: str, body: dict[str, Any]
) -> None:
    refused = await shared_site.call("PUT", path, 422, body)
    assert refused["error"]["code"] == "invalid"
    assert refused["error"]["fields"]
    if path == "/v1/codes/BAD":
        assert (await shared_site.call("GET", path, 404))["error"]["code"] == "unknown_code"


@pytest.fixture(scope="module")
async def shared_site(
    postgres_server: Any, database_template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[School]:
    """One site for the tests that change nothing."""
    name = "shared_site"
    with postgres_server.connect() as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {database_template}")
    url = f"fakeredis://{tmp_path_factory.mktemp('shared').name}"
    async with whole_site(url, postgres_server.url_of(name), School) as running:
        await running.call("PUT", "/v1/products/practice-pack", 200, PRODUCT_BODY)
        await running.call("PUT", "/v1/codes/SCHOOL10", 200, CODE_BODY)
        yield running
    with postgres_server.connect() as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
