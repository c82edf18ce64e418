"""Situations of payment that broke other systems, against the sandbox, through the real libraries, over HTTP.

Each test is named after what happened; amounts are literals in minor units.
"""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest

from tests.whole_site import WholeSite, charge_about, lines, naira, session_about, statuses, told

DAY = 24 * 3600


# Reservation against a payment in flight


async def test_paid_in_time_and_heard_of_after_its_end(site: WholeSite) -> None:
    await site.code("C", 1)
    checkout = await site.check_out("k1", code="C")
    await site.fault("webhooks", "drop")
    await site.act(checkout["session_id"], "pay")
    await site.advance(2415)
    assert await site.usage("C") == (0, 0)
    await site.from_stripe("checkout.session.completed", session_about(checkout["session_id"], 4410), "evt_late")
    order = await site.order(checkout["order_id"], until="paid")
    assert (order["late"], order["refunds"], order["refunded_minor"]) == (True, [], 0)
    assert await site.usage("C") == (1, 0)


async def test_paid_through_one_provider_while_a_session_of_the_other_expires_a_day_later(site: WholeSite) -> None:
    await site.code("C", 5, per_customer=1)
    wish = {"customer": "ada", "code": "C", **lines("usd")}
    abandoned = await site.check_out("k1", **wish)
    paid = await site.check_out("k2", provider="paystack", **wish)
    assert paid["order_id"] == abandoned["order_id"]
    assert paid["reservation_id"] == abandoned["reservation_id"]
    assert paid["session_expires_at"] is None
    # What was held against the providers' documentation.
    for asked in ("stripe/v1/checkout/sessions", "paystack/transaction/initialize"):
        assert f"POST /sandbox/{asked}" in site.asked
    await site.act(paid["session_id"], "pay")
    await site.order(paid["order_id"], until="paid")
    await site.advance(DAY)
    about = session_about(abandoned["session_id"], 4500, "usd", status="expired", payment_status="unpaid")
    await site.from_stripe("checkout.session.expired", about, "evt_a_day_later")
    order = await site.order(paid["order_id"], until="paid")
    assert statuses(order) == [("kept", 4500)]
    assert await site.usage("C") == (1, 0)


@pytest.mark.parametrize("provider", ["stripe", "paystack"])
@pytest.mark.parametrize(
    ("policy", "others", "status"),
    [
        ("honour", True, "paid"),
        ("refund_if_full", True, "refunded"),
        ("refund_if_full", False, "paid"),
        ("refund", False, "refunded"),
    ],
)
async def test_heard_of_a_day_late_the_pools_policy_decides(
    site: WholeSite, provider: str, policy: str, others: bool, status: str
) -> None:
    refunded = 4500 if status == "refunded" else 0
    await site.code("C", 1, late_payment=policy)
    wish = {"code": "C", "provider": provider, **lines("usd")}
    checkout = await site.check_out("k1", **wish)
    await site.fault("webhooks", "drop")
    await site.act(checkout["session_id"], "pay")
    await site.advance(2401)
    if others:
        other = await site.check_out("k2", **wish)
        await site.act(other["session_id"], "pay")
        await site.order(other["order_id"], until="paid")
    session = checkout["session_id"]
    for _ in range(2):
        if provider == "stripe":
            intent = (await site.call("GET", f"/sandbox/sessions/{session}", 200))["payment_ref"]
            about = session_about(session, 4500, "usd", payment_intent=intent)
            await site.from_stripe("checkout.session.completed", about, "evt_day_later")
        else:
            await site.from_paystack("charge.success", charge_about(session, 4500, "USD"))
    order = await site.order(checkout["order_id"], until=status)
    assert (order["refunded_minor"], [r["amount_minor"] for r in order["refunds"]]) == (
        refunded,
        [refunded] if refunded else [],
    )
    assert order["late"] is (status == "paid")
    assert (await site.usage("C"))[0] == (1 if others else 0) + (1 if status == "paid" else 0)
    asked = await site.calls(provider, "/v1/refunds" if provider == "stripe" else "/refund")
    assert [call["method"] for call in asked] == (["POST"] if refunded else [])


async def test_closing_finds_the_session_complete_or_expired_already(site: WholeSite) -> None:
    await site.code("C", 5, per_customer=1)
    paid = await site.check_out("k1", customer="ada", code="C")
    await site.fault("webhooks", "drop")
    await site.act(paid["session_id"], "pay")
    refused = await site.check_out("k2", 409, customer="ada", code="C")
    assert refused["error"]["code"] == "limit_reached"
    await site.order(paid["order_id"], until="paid")

    expired = await site.check_out("k3", customer="bob", code="C")
    await site.fault("webhooks", "drop")
    await site.act(expired["session_id"], "expire")
    other = await site.check_out("k4", customer="bob", code="C", **lines("usd"))
    assert other["order_id"] != expired["order_id"]
    await site.order(expired["order_id"], until="cancelled")
    assert await site.usage("C") == (1, 1)


async def test_many_cancellations_give_units_back_once_while_the_provider_fails(site: WholeSite) -> None:
    await site.code("C", 3)
    checkout, other = await site.check_out("k1", code="C"), await site.check_out("k2", code="C")
    await site.fault("stripe", "error", 20)

    async def cancel() -> int:
        answer = await site.http.post(f"/v1/orders/{checkout['order_id']}/cancel", json={"restock": True})
        return answer.status_code

    answers = [await cancel() for _ in range(4)] + list(await asyncio.gather(*(cancel() for _ in range(40))))
    assert set(answers) <= {200, 502, 504}
    assert answers.count(200) >= 1
    await site.order(checkout["order_id"], until="cancelled")
    assert await site.usage("C") == (0, 1)
    await site.act(other["session_id"], "pay")
    await site.order(other["order_id"], until="paid")


async def test_thirty_students_buy_although_the_provider_fails_ten_calls(site: WholeSite) -> None:
    await site.code("C", 30)
    await site.fault("stripe", "error", 10)

    async def buy(number: int) -> str:
        for _ in range(12):
            body = {
                "customer": f"student-{number}",
                "email": "student@example.com",
                "code": "C",
                **lines("gbp"),
                "success_url": "https://shop.example/thanks",
                "cancel_url": "https://shop.example/cart",
            }
            answer = await site.http.post("/v1/checkouts", json=body, headers={"Idempotency-Key": f"s{number}"})
            if answer.status_code in (200, 201):
                return str(answer.json()["session_id"])
            assert answer.status_code in (502, 504, 409), answer.text
        raise AssertionError("could not buy")

    sessions = await asyncio.gather(*(buy(number) for number in range(30)))
    assert len(set(sessions)) == 30
    for session in sessions:
        await site.act(session, "pay")
    async with asyncio.timeout(30):
        while await site.usage("C") != (30, 0):  # noqa: ASYNC110  (what the persister does sets no event here)
            await asyncio.sleep(0.05)


async def test_two_payments_for_one_reservation_are_one_completion_and_one_refund(site: WholeSite) -> None:
    await site.code("C", 5, per_customer=1)
    first = await site.check_out("k1", **naira(customer="ada", code="C"))
    second = await site.check_out("k2", **naira(customer="ada", code="C"))
    assert (second["order_id"], second["reservation_id"]) == (first["order_id"], first["reservation_id"])
    for session in (first["session_id"], second["session_id"]):
        await site.act(session, "pay")
    order = await site.order(first["order_id"], until=lambda o: o["refunded_minor"] == 225000)
    assert order["status"] == "paid"
    assert statuses(order) == [("kept", 225000), ("refunded", 225000)]
    assert [refund["amount_minor"] for refund in order["refunds"]] == [225000]
    assert "duplicate_payment" in told(order)
    assert await site.usage("C") == (1, 0)


# Webhooks


@pytest.mark.parametrize("order", list(permutations((0, 1, 2))))
async def test_stamps_and_arrival_in_any_order_end_alike(site: WholeSite, order: tuple[int, ...]) -> None:
    await site.code("C", 5)
    checkout = await site.check_out("k1", code="C")
    session = checkout["session_id"]
    events = [
        ("checkout.session.completed", session_about(session, 4410, payment_status="unpaid"), "evt_1623979265"),
        ("checkout.session.async_payment_succeeded", session_about(session, 4410), "evt_1623979265_too"),
        ("checkout.session.async_payment_succeeded", session_about(session, 4410), "evt_1623979266"),
    ]
    for index in order:
        await site.from_stripe(*events[index])
    paid = await site.order(checkout["order_id"], until="paid")
    assert statuses(paid) == [("kept", 4410)]
    assert await site.usage("C") == (1, 0)


async def test_one_event_twice_at_one_moment_is_taken_twice_and_has_one_effect(site: WholeSite) -> None:
    checkout = await site.check_out("k1", **naira())
    about = charge_about(checkout["session_id"], 250000)
    await asyncio.gather(*(site.from_paystack("charge.success", about) for _ in range(4)))
    order = await site.order(checkout["order_id"], until="paid")
    assert statuses(order) == [("kept", 250000)]
    assert told(order).count("paid") == 1


async def test_a_session_that_is_not_visible_yet(site: WholeSite) -> None:
    marked = session_about(
        "cs_unknown", 4900, metadata={"lastportion_order": "not-there", "lastportion_tenant": "demo"}
    )
    await site.from_stripe("checkout.session.completed", marked, "evt_marked", status=503)
    await site.from_stripe("checkout.session.completed", session_about("cs_foreign", 1), "evt_foreign")
    assert await site.rows("select session_id, state from settlements") == [("cs_foreign", "unmatched")]

    await site.fault("stripe", "timeout_after_success")
    assert (await site.check_out("k1", 504))["error"]["code"] == "payment_provider_timeout"
    ((session,),) = await site.rows("select id from sandbox_sessions")
    # Nobody here knows the session: paid all the same, it is found by our mark.
    await site.act(session, "pay")
    checkout = await site.check_out("k1", 200)
    assert checkout["session_id"] == session
    assert statuses(await site.order(checkout["order_id"], until="paid")) == [("kept", 4900)]


async def test_what_is_unmatched_is_matched_once_its_session_is_known(site: WholeSite) -> None:
    await site.fault("stripe", "timeout_after_success")
    await site.check_out("k1", 504)
    ((session,),) = await site.rows("select id from sandbox_sessions")
    await site.from_stripe("checkout.session.completed", session_about(session, 4900), "evt_without_mark")
    assert await site.rows("select state from settlements") == [("unmatched",)]
    checkout = await site.check_out("k1", 200)
    await site.order(checkout["order_id"], until="paid")
    assert await site.rows("select state, outcome from settlements") == [("applied", "completed")]


@pytest.mark.parametrize("act", ["pay", "fail_later"])
async def test_money_that_takes_three_days(site: WholeSite, act: str) -> None:
    await site.code("C", 1)
    checkout = await site.check_out("k1", code="C")
    await site.act(checkout["session_id"], "pay_later")
    order = await site.order(checkout["order_id"], until=lambda o: "payment_pending" in told(o))
    assert order["status"] == "pending"
    await site.advance(3 * DAY)
    assert await site.usage("C") == (0, 1)
    await site.act(checkout["session_id"], act)
    await site.order(checkout["order_id"], until="paid" if act == "pay" else "cancelled")
    assert await site.usage("C") == ((1, 0) if act == "pay" else (0, 0))
