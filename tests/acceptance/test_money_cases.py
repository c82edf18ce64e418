"""Situations of money that broke other systems, against the sandbox, through the real libraries, over HTTP."""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.whole_site import WholeSite, charge_about, lines, naira, session_about, statuses, told, whole_site

if TYPE_CHECKING:
    from api.servers import RedisServer

# Paystack


async def test_one_reference_by_webhook_look_up_and_three_returns_of_the_buyer(site: WholeSite) -> None:
    await site.code("C", 5)
    checkout = await site.check_out("k1", **naira(code="C"))
    await site.fault("webhooks", "duplicate")
    await site.act(checkout["session_id"], "pay")
    for _ in range(3):
        assert (await site.check_out("k1", 200, **naira(code="C")))["order_id"] == checkout["order_id"]
        await site.from_paystack("charge.success", charge_about(checkout["session_id"], 225000))
    order = await site.order(checkout["order_id"], until="paid")
    assert statuses(order) == [("kept", 225000)]
    assert told(order).count("paid") == 1
    assert await site.usage("C") == (1, 0)


@pytest.mark.parametrize(("amount", "currency"), [(1000, "NGN"), (9999, "NGN"), (10001, "NGN"), (10000, "GHS")])
@pytest.mark.parametrize("policy", ["refund", "flag"])
async def test_another_amount_or_currency_never_completes(
    redis_server: RedisServer, database_url: str, amount: int, currency: str, policy: str
) -> None:
    async with whole_site(redis_server.url, database_url, mismatched_payment=policy) as site:
        await site.product("ngn", 10000, "NGN")
        checkout = await site.check_out("k1", **naira())
        await site.from_paystack("charge.success", charge_about(checkout["session_id"], amount, currency))
        order = await site.order(checkout["order_id"], until=lambda o: "amount_mismatch" in told(o))
        assert order["status"] == "pending"
        expected = "flagged" if policy == "flag" else "refund_owed"
        assert statuses(order) == [(expected, amount)]
        assert [refund["amount_minor"] for refund in order["refunds"]] == ([] if policy == "flag" else [amount])


@pytest.mark.parametrize(
    "metadata",
    [None, "", 0, '{"lastportion_order": "another"}', {"lastportion_order": 7}, {"cart": "x"}, "not json", "missing"],
)
async def test_a_reference_is_enough_whatever_the_metadata(site: WholeSite, metadata: object) -> None:
    checkout = await site.check_out("k1", **naira())
    about = charge_about(checkout["session_id"], 250000, metadata=metadata)
    if metadata == "missing":
        del about["metadata"]
    await site.from_paystack("charge.success", about)
    await site.order(checkout["order_id"], until="paid")


# Money


async def sent_amount(site: WholeSite) -> str:
    call = [call for call in await site.calls("stripe", "/v1/checkout/sessions") if call["method"] == "POST"][-1]
    return str(call["params"]["line_items"][0]["price_data"]["unit_amount"])


@pytest.mark.parametrize(
    ("currency", "minor", "sent"),
    [("JPY", 80, "80"), ("KWD", 18600, "18600"), ("BHD", 35200, "35200"), ("UGX", 100, "10000")],
)
async def test_currencies_without_and_with_three_decimals(
    site: WholeSite, currency: str, minor: int, sent: str
) -> None:
    await site.product("p", minor, currency)
    checkout = await site.check_out("k1", **lines("p"))
    assert (checkout["amount_minor"], checkout["currency"]) == (minor, currency)
    assert await sent_amount(site) == sent
    # A hundred times as much is another amount.
    wrong = session_about(checkout["session_id"], int(sent) * 100, currency.lower())
    await site.from_stripe("checkout.session.completed", wrong, "evt_wrong")
    order = await site.order(checkout["order_id"], until=lambda o: "amount_mismatch" in told(o))
    assert order["status"] == "pending"
    await site.act(checkout["session_id"], "pay")
    order = await site.order(checkout["order_id"], until="paid")
    assert ("kept", minor) in statuses(order)


async def test_an_unknown_currency_and_an_amount_below_the_least_are_refused(site: WholeSite) -> None:
    body = {"name": "Gold", "amount_minor": 100, "currency": "XAU"}
    assert (await site.call("PUT", "/v1/products/gold", 422, body))["error"]["code"] == "invalid"
    await site.product("cheap", 29, "GBP")
    assert "lines" in (await site.check_out("k1", 422, **lines("cheap")))["error"]["fields"]
    await site.product("cheap-ngn", 4999, "NGN")
    assert (await site.check_out("k2", 422, **naira(**lines("cheap-ngn"))))["error"]["code"] == "invalid"
    assert "provider" in (await site.check_out("k3", 422, provider="paystack"))["error"]["fields"]
    assert await site.rows("select count(*) from orders") == [(0,)]


async def test_a_total_of_zero_needs_no_provider(site: WholeSite) -> None:
    await site.code("FREE", 1, discount={"percent_off": 100})
    checkout = await site.check_out("k1", code="FREE")
    assert (checkout["amount_minor"], checkout["checkout_url"], checkout["session_id"]) == (0, None, None)
    order = await site.order(checkout["order_id"], until="paid")
    assert (order["payments"], await site.usage("FREE")) == ([], (1, 0))
    assert [call for call in await site.calls("stripe", "/v1") if call["method"] == "POST"] == []


@pytest.mark.parametrize("order", list(permutations((1000, 1500, 1500))))
async def test_totals_of_refunds_in_any_order(site: WholeSite, order: tuple[int, ...]) -> None:
    checkout = await site.check_out("k1")
    await site.act(checkout["session_id"], "pay")
    paid = await site.order(checkout["order_id"], until="paid")
    intent = paid["payments"][0]["ref"]
    for number, total in enumerate(order):
        about = {
            "id": "ch_1",
            "object": "charge",
            "payment_intent": intent,
            "amount": 4900,
            "amount_refunded": total,
            "currency": "gbp",
            "metadata": {},
        }
        await site.from_stripe("charge.refunded", about, f"evt_total_{number}")
    order_now = await site.order(checkout["order_id"], until=lambda o: o["refunded_minor"] == 1500)
    assert (order_now["status"], statuses(order_now)) == ("paid", [("kept", 4900)])


@pytest.mark.parametrize("checkout_changes", [{}, naira()], ids=["stripe", "paystack"])
async def test_refunded_already_is_final(site: WholeSite, checkout_changes: dict[str, Any]) -> None:
    checkout = await site.check_out("k1", **checkout_changes)
    await site.act(checkout["session_id"], "pay")
    await site.order(checkout["order_id"], until="paid")
    await site.fault("webhooks", "drop", 10)
    await site.act(checkout["session_id"], "refund")
    amount = checkout["amount_minor"]
    body = {"id": "r1", "reason": "asked"}
    order = await site.call("POST", f"/v1/orders/{checkout['order_id']}/refund", 200, body)
    assert (order["status"], order["refunded_minor"]) == ("refunded", amount)
    is_stripe = not checkout_changes
    target, path = ("stripe", "/v1/refunds") if is_stripe else ("paystack", "/refund")
    asked = [call["method"] for call in await site.calls(target, path)]
    assert sorted(asked) == ["GET", "POST"]


async def test_one_refund_per_id_and_one_after_a_lost_answer(site: WholeSite) -> None:
    checkout = await site.check_out("k1")
    await site.act(checkout["session_id"], "pay")
    await site.order(checkout["order_id"], until="paid")
    address = f"/v1/orders/{checkout['order_id']}/refund"
    for _ in range(3):
        order = await site.call("POST", address, 200, {"id": "r1", "amount_minor": 500, "reason": "late"})
    assert order["refunded_minor"] == 500
    order = await site.call("POST", address, 200, {"id": "r2", "amount_minor": 500, "reason": "late"})
    assert order["refunded_minor"] == 1000
    conflict = await site.call("POST", address, 409, {"id": "r1", "amount_minor": 501, "reason": "late"})
    assert conflict["error"]["code"] == "id_conflict"
    too_much = await site.call("POST", address, 422, {"id": "r3", "amount_minor": 3901, "reason": "late"})
    assert "amount_minor" in too_much["error"]["fields"]

    await site.fault("stripe", "timeout_after_success")
    order = await site.call("POST", address, 200, {"id": "r4", "amount_minor": 900, "reason": "lost"})
    async with asyncio.timeout(30):
        while order["refunded_minor"] != 1900:
            # Not to wait for the minute after which it is looked up.
            await site.execute("update refunds set next_try_at = now() where status = 'owed'")
            await asyncio.sleep(0.2)
            order = await site.call("GET", f"/v1/orders/{checkout['order_id']}", 200)
    session = await site.call("GET", f"/sandbox/sessions/{checkout['session_id']}", 200)
    assert (session["amount_refunded_minor"], len(session["refunds"])) == (1900, 3)
    assert (order["status"], {r["status"] for r in order["refunds"]}) == ("paid", {"refunded"})


# Provider calls, and clients


async def test_declined_then_paid_with_another_card_and_a_retry_says_the_same(site: WholeSite) -> None:
    await site.fault("stripe", "timeout_after_success")
    await site.check_out("k1", 504)
    checkout = await site.check_out("k1", 200)
    calls = await site.calls("stripe", "/v1/checkout/sessions")
    first, second = [call for call in calls if call["method"] == "POST"]
    assert first["idempotency_key"] == second["idempotency_key"] == f"{checkout['order_id']}:1"
    assert first["params"] == second["params"]
    await site.act(checkout["session_id"], "decline")
    await site.act(checkout["session_id"], "pay")
    await site.order(checkout["order_id"], until="paid")


async def test_a_client_that_hangs_up_finds_the_whole_with_the_same_key(site: WholeSite) -> None:
    await site.code("C", 5)
    body = {
        "customer": "ada",
        "email": "ada@example.com",
        "code": "C",
        **lines("gbp"),
        "success_url": "https://shop.example/thanks",
        "cancel_url": "https://shop.example/cart",
    }
    for number, patience in enumerate((0.001, 0.01, 0.05, 0.3)):
        await site.fault("stripe", "delay")
        headers = {"Idempotency-Key": f"k{number}"}
        wish = body | {"customer": f"c{number}"}
        with pytest.raises(httpx.TimeoutException):
            await site.http.post("/v1/checkouts", json=wish, headers=headers, timeout=patience)
        checkout = await site.http.post("/v1/checkouts", json=wish, headers=headers)
        assert checkout.status_code in (200, 201), checkout.text
        await site.act(checkout.json()["session_id"], "pay")
        await site.order(checkout.json()["order_id"], until="paid")
    assert await site.usage("C") == (4, 0)
