"""Money that goes back at the stand-in Stripe, and its lists, through our adapter and the library alone."""

from __future__ import annotations

import pytest
import stripe

from engine.errors import AlreadyRefunded, ProviderError
from engine.payments.port import EventKind, ProviderRefundStatus
from tests.stand_in import StandIn, library

SUCCEEDED, FAILED, PENDING = ProviderRefundStatus.SUCCEEDED, ProviderRefundStatus.FAILED, ProviderRefundStatus.PENDING


async def paid(stand_in: StandIn, order: str = "ord-1", **changes: object) -> tuple[str, str]:
    """A paid session: its id, and what a refund names."""
    session = await stand_in.payments.open(stand_in.attempt(order, **changes))
    answer = await stand_in.act(session.id, "pay")
    return session.id, str(answer["payment_ref"])


async def test_a_refund_is_done_in_its_answer_and_told_of(still_stand_in: StandIn) -> None:
    session_id, payment_ref = await paid(still_stand_in)
    refund = await still_stand_in.payments.refund(still_stand_in.refund_of(payment_ref, 500))
    assert (refund.status, refund.amount_minor, refund.payment_ref) == (SUCCEEDED, 500, payment_ref)
    assert (refund.marked_refund_id, refund.marked_round) == ("rf-1", 1)
    await still_stand_in.payments.refund(still_stand_in.refund_of(payment_ref, 250, id="rf-2"))
    await still_stand_in.sandbox.catch_up()
    told = still_stand_in.received[1:]
    assert sorted(event.type for event in told) == ["charge.refunded"] * 2 + ["refund.created"] * 2
    assert {event.kind for event in told} == {EventKind.REFUND}
    totals = [event.refund_total.total_minor for event in told if event.refund_total is not None]
    assert sorted(totals) == [500, 750]
    shown = await still_stand_in.session(session_id)
    assert shown["provider"] == "stripe"
    assert (shown["amount_minor"], shown["amount_refunded_minor"]) == (1250, 750)
    assert [(found["amount_minor"], found["status"]) for found in shown["refunds"]] == [
        (500, "succeeded"),
        (250, "succeeded"),
    ]


async def test_one_key_is_one_refund(stand_in: StandIn) -> None:
    session_id, payment_ref = await paid(stand_in)
    wanted = stand_in.refund_of(payment_ref, 500)
    first, again = await stand_in.payments.refund(wanted), await stand_in.payments.refund(wanted)
    assert first.ref == again.ref
    assert len(await stand_in.refunds(session_id)) == 1
    await stand_in.payments.refund(stand_in.refund_of(payment_ref, 500, round=2))
    assert len(await stand_in.refunds(session_id)) == 2


async def test_no_more_goes_back_than_was_paid(stand_in: StandIn) -> None:
    session_id, payment_ref = await paid(stand_in)
    with pytest.raises(ProviderError) as refused:
        await stand_in.payments.refund(stand_in.refund_of(payment_ref, 1251))
    assert not isinstance(refused.value, AlreadyRefunded)
    await stand_in.payments.refund(stand_in.refund_of(payment_ref, 1250))
    with pytest.raises(AlreadyRefunded):
        await stand_in.payments.refund(stand_in.refund_of(payment_ref, 1, id="rf-2"))
    async with library(stand_in) as client:
        with pytest.raises(stripe.InvalidRequestError) as again:
            await client.v1.refunds.create_async({"payment_intent": payment_ref})
    assert (again.value.http_status, again.value.code) == (400, "charge_already_refunded")
    await stand_in.refund(session_id, 1, 409)


async def test_what_stripe_does_not_take_is_refused(stand_in: StandIn) -> None:
    unpaid = await stand_in.payments.open(stand_in.attempt("ord-2"))
    await stand_in.act(unpaid.id, "pay_later")
    intent = str((await stand_in.session(unpaid.id))["payment_ref"])
    async with library(stand_in) as client:
        with pytest.raises(stripe.InvalidRequestError, match="successful charge"):
            await client.v1.refunds.create_async({"payment_intent": intent})
        with pytest.raises(stripe.InvalidRequestError, match="No such payment_intent"):
            await client.v1.refunds.create_async({"payment_intent": "pi_nothing"})
        with pytest.raises(stripe.InvalidRequestError, match="payment_intent or charge"):
            await client.v1.refunds.create_async({})
        with pytest.raises(stripe.InvalidRequestError, match="unknown parameter"):
            await client.v1.refunds.create_async({"payment_intent": intent, "instructions_email": "a@b.example"})
        with pytest.raises(stripe.InvalidRequestError, match="No such refund"):
            await client.v1.refunds.retrieve_async("re_nothing")


async def test_the_charge_of_an_intent_can_be_refunded_by_its_id(stand_in: StandIn) -> None:
    _, payment_ref = await paid(stand_in)
    async with library(stand_in) as client:
        intent = await client.v1.payment_intents.retrieve_async(payment_ref)
        assert isinstance(intent.latest_charge, str)
        assert intent.latest_charge.startswith("ch_")
        refund = await client.v1.refunds.create_async(
            {"charge": intent.latest_charge, "reason": "requested_by_customer", "metadata": {"why": "late"}}
        )
        again = await client.v1.refunds.retrieve_async(refund.id)
    assert (again.amount, again.status, again.reason) == (1250, "succeeded", "requested_by_customer")
    assert (again.payment_intent, again.charge) == (payment_ref, intent.latest_charge)
    assert again.metadata is not None
    assert again.metadata["why"] == "late"


async def test_the_dashboard_refunds_what_is_left(stand_in: StandIn) -> None:
    session_id, payment_ref = await paid(stand_in)
    first = await stand_in.refund(session_id, 250)
    assert [event["type"] for event in first["events"]] == ["refund.created", "charge.refunded"]
    assert all(event["delivered"] for event in first["events"])
    rest = await stand_in.refund(session_id)
    assert [refund["amount_minor"] for refund in rest["refunds"]] == [250, 1000]
    found = await stand_in.payments.look_up_refunds(payment_ref)
    assert sorted((refund.amount_minor, refund.marked_refund_id) for refund in found) == [(250, None), (1000, None)]


async def test_a_refund_fails_after_all_and_what_it_took_can_go_back_again(stand_in: StandIn) -> None:
    session_id, payment_ref = await paid(stand_in)
    refund = await stand_in.payments.refund(stand_in.refund_of(payment_ref, 1250))
    answer = await stand_in.post(f"/sandbox/refunds/{refund.ref}/fail", None)
    assert [event["type"] for event in answer["events"]] == ["refund.failed", "refund.updated"]
    assert answer["amount_refunded_minor"] == 0
    told = [event.refund for event in stand_in.received if event.type == "refund.failed"]
    assert [(found.ref, found.status, found.reason) for found in told if found is not None] == [
        (refund.ref, FAILED, "expired_or_canceled_card")
    ]
    await stand_in.post(f"/sandbox/refunds/{refund.ref}/fail", None, 409)
    await stand_in.post("/sandbox/refunds/re_nothing/fail", None, 404)
    again = await stand_in.payments.refund(stand_in.refund_of(payment_ref, 1250, round=2))
    assert again.status is SUCCEEDED
    assert (await stand_in.session(session_id))["amount_refunded_minor"] == 1250


async def test_a_dispute_is_opened_and_closed(stand_in: StandIn) -> None:
    session_id, payment_ref = await paid(stand_in)
    answer = await stand_in.post(f"/sandbox/sessions/{session_id}/dispute", None)
    assert (answer["event"]["type"], answer["event"]["delivered"]) == ("charge.dispute.created", True)
    (dispute,) = answer["disputes"]
    await stand_in.post(f"/sandbox/sessions/{session_id}/dispute", None, 409)
    async with library(stand_in) as client:
        with pytest.raises(stripe.InvalidRequestError) as refused:
            await client.v1.refunds.create_async({"payment_intent": payment_ref})
    assert refused.value.code == "charge_disputed"
    closed = await stand_in.post(f"/sandbox/disputes/{dispute['id']}/won", None)
    assert closed["disputes"] == [{"id": dispute["id"], "status": "won"}]
    told = [event.dispute for event in stand_in.received if event.kind is EventKind.DISPUTE]
    assert [(found.payment_ref, found.amount_minor, found.is_closed) for found in told if found is not None] == [
        (payment_ref, 1250, False),
        (payment_ref, 1250, True),
    ]
    await stand_in.post(f"/sandbox/disputes/{dispute['id']}/lost", None, 409)
    await stand_in.payments.refund(stand_in.refund_of(payment_ref, 100))


async def test_only_what_was_paid_is_disputed(stand_in: StandIn) -> None:
    session = await stand_in.payments.open(stand_in.attempt())
    await stand_in.post(f"/sandbox/sessions/{session.id}/dispute", None, 409)
    await stand_in.refund(session.id, status=409)
    await stand_in.post("/sandbox/sessions/cs_nothing/dispute", None, 404)
    await stand_in.refund("cs_nothing", status=404)


async def test_the_library_pages_through_sessions_and_refunds(stand_in: StandIn) -> None:
    ids, payment_ref = [], ""
    for number in range(5):
        session_id, payment_ref = await paid(stand_in, f"ord-{number}")
        ids.append(session_id)
    unpaid = await stand_in.payments.open(stand_in.attempt("unpaid"))
    for _ in range(3):
        await stand_in.refund(ids[-1], 100)
    await stand_in.refund(ids[0], 100)
    async with library(stand_in) as client:
        listed = await client.v1.checkout.sessions.list_async({"limit": 2, "status": "complete"})
        assert [session.id async for session in listed.auto_paging_iter()] == ids[::-1]
        everything = await client.v1.checkout.sessions.list_async({"limit": 100})
        assert everything.data[0].id == unpaid.id
        assert everything.has_more is False
        refunds = await client.v1.refunds.list_async({"payment_intent": payment_ref, "limit": 2})
        assert refunds.has_more is True
        assert len([refund async for refund in refunds.auto_paging_iter()]) == 3
        with pytest.raises(stripe.InvalidRequestError, match=r"No such checkout\.session"):
            await client.v1.checkout.sessions.list_async({"starting_after": "cs_nothing"})
        with pytest.raises(stripe.InvalidRequestError, match="between 1 and 100"):
            await client.v1.checkout.sessions.list_async({"limit": 101})


async def test_sessions_are_listed_from_a_second_on(stand_in: StandIn) -> None:
    early, _ = await paid(stand_in, "early")
    between = stand_in.now_s() + 50
    await stand_in.advance(100)
    late, _ = await paid(stand_in, "late")
    assert [session.id async for session in stand_in.payments.paid_since(between)] == [late]
    assert [session.id async for session in stand_in.payments.paid_since(between - 3600)] == [late, early]


@pytest.mark.parametrize(("currency", "amount", "sent"), [("JPY", 1200, 1200), ("KWD", 12_340, 12_340)])
async def test_amounts_are_shown_in_our_minor_units(stand_in: StandIn, currency: str, amount: int, sent: int) -> None:
    session_id, payment_ref = await paid(stand_in, currency=currency, amount_minor=amount)
    await stand_in.refund(session_id, amount // 2)
    shown = await stand_in.session(session_id)
    assert (shown["amount_minor"], shown["amount_refunded_minor"]) == (amount, amount // 2)
    async with library(stand_in) as client:
        intent = await client.v1.payment_intents.retrieve_async(payment_ref)
    assert intent.amount == sent
