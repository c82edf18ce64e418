"""What Paystack is asked about transactions, and what its answers say of them (case D4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import structlog

from engine.errors import ProviderTimeout, SessionLost
from engine.payments.paystack import PaystackPayments
from engine.payments.port import (
    ExpireOutcome,
    PaymentPort,
    Session,
    SessionState,
)
from tests.answering import as_json
from tests.paystack_answering import (
    ATTEMPT,
    DUPLICATE,
    KEY,
    STARTED,
    URL,
    answering,
    listed,
    look_up_all,
    refused,
    transaction,
    verified,
)

# What is asked


async def test_a_transaction_is_started_with_what_was_frozen() -> None:
    async with answering(STARTED) as (payments, app):
        session = await payments.open(ATTEMPT)
    asked = app.all_asked()[0]
    assert (asked.method, asked.path) == ("POST", "/transaction/initialize")
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.params == {
        "email": "pupil@school.example",
        "amount": 10000,
        "currency": "NGN",
        "reference": "ord-1-2",
        "callback_url": "https://shop.example/thanks",
        "metadata": {
            "lastportion_order": "ord-1",
            "lastportion_tenant": "demo",
            "lastportion_attempt": "2",
            "lastportion_reservation": "res-1",
            "cancel_action": "https://shop.example/basket",
        },
    }
    assert session == Session(
        "ord-1-2",
        SessionState.OPEN,
        url=URL,
        expires_at_s=None,
        amount_minor=10000,
        currency="NGN",
        payment_ref=None,
        marked_order_id="ord-1",
        marked_tenant="demo",
        marked_attempt=2,
    )


async def test_an_attempt_that_reserves_nothing_marks_no_reservation() -> None:
    async with answering(STARTED) as (payments, app):
        await payments.open(replace(ATTEMPT, reservation_id=None))
    assert "lastportion_reservation" not in app.all_asked()[0].params["metadata"]


async def test_an_attempt_without_its_reference_is_not_sent() -> None:
    async with answering(STARTED) as (payments, app):
        with pytest.raises(ValueError, match="no reference"):
            await payments.open(replace(ATTEMPT, reference=None))
    assert app.calls == 0


async def test_a_reference_is_looked_up_as_it_is_written() -> None:
    async with answering(verified(reference="a=40b.c-1")) as (payments, app):
        assert (await payments.look_up("a=40b.c-1")).id == "a=40b.c-1"
    assert app.all_asked()[0].params == {"reference": "a=40b.c-1"}
    async with answering(verified(reference="a/b?c")) as (payments, app):
        await payments.look_up("a/b?c")
    assert app.all_asked()[0].path == "/transaction/verify/a%2Fb%3Fc"


async def test_the_port_is_the_protocols() -> None:
    port: PaymentPort = PaystackPayments(KEY)
    assert not port.sessions_end
    await port.close()


# A transaction's states


@pytest.mark.parametrize(
    ("status", "state", "payment_ref"),
    [
        ("success", SessionState.PAID, "ord-1-2"),
        ("reversed", SessionState.EXPIRED, None),
        ("failed", SessionState.OPEN, None),
        ("abandoned", SessionState.OPEN, None),
        ("ongoing", SessionState.OPEN, None),
        ("pending", SessionState.OPEN, None),
        ("processing", SessionState.OPEN, None),
        ("queued", SessionState.OPEN, None),
        ("something new", SessionState.OPEN, None),
    ],
)
async def test_a_call_that_worked_says_nothing_of_the_payment(
    status: str, state: SessionState, payment_ref: str | None
) -> None:
    async with answering(verified(status=status)) as (payments, _):
        session = await payments.look_up("ord-1-2")
    assert (session.state, session.payment_ref, session.expires_at_s) == (state, payment_ref, None)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("success", ExpireOutcome.COMPLETE),
        ("reversed", ExpireOutcome.EXPIRED),
        ("abandoned", ExpireOutcome.LAPSES),
        ("failed", ExpireOutcome.LAPSES),
        ("pending", ExpireOutcome.LAPSES),
    ],
)
async def test_no_transaction_is_closed(status: str, outcome: ExpireOutcome) -> None:
    async with answering(verified(status=status)) as (payments, app):
        assert await payments.expire("ord-1-2") is outcome
    assert [asked.method for asked in app.all_asked()] == ["GET"]


@pytest.mark.parametrize("metadata", [None, "", 0, "not json", "[1]", {}, []])
async def test_metadata_of_any_shape_is_a_help_and_no_need(metadata: object) -> None:
    async with answering(verified(metadata=metadata)) as (payments, _):
        session = await payments.look_up("ord-1-2")
    assert (session.state, session.amount_minor, session.marked_order_id) == (SessionState.PAID, 10000, None)


async def test_metadata_may_be_missing_or_text_and_amounts_text() -> None:
    missing = transaction(amount="10000")
    del missing["metadata"]
    text = transaction(metadata='{"lastportion_order":"ord-1","lastportion_tenant":"demo","lastportion_attempt":"2"}')
    answers = [as_json(200, {"status": True, "message": "", "data": found}) for found in (missing, text)]
    async with answering(*answers) as (payments, _):
        first, second = await payments.look_up("ord-1-2"), await payments.look_up("ord-1-2")
    assert (first.amount_minor, first.marked_order_id) == (10000, None)
    assert (second.marked_order_id, second.marked_tenant, second.marked_attempt) == ("ord-1", "demo", 2)


# The same attempt again


async def test_a_repeat_of_a_paid_attempt_is_answered_as_paid() -> None:
    async with answering(DUPLICATE, verified()) as (payments, app):
        session = await payments.open(ATTEMPT)
    assert (session.state, session.payment_ref, session.url) == (SessionState.PAID, "ord-1-2", None)
    assert [asked.method for asked in app.all_asked()] == ["POST", "GET"]


@pytest.mark.parametrize(
    "duplicate", [DUPLICATE, refused(400, "Reference taken", type="validation_error", code="duplicate_reference")]
)
async def test_a_repeat_of_an_unpaid_attempt_has_lost_its_address(duplicate: tuple[int, bytes]) -> None:
    async with answering(duplicate, verified(status="abandoned")) as (payments, _):
        with pytest.raises(SessionLost):
            await payments.open(ATTEMPT)


async def test_a_repeat_whose_look_up_is_refused_leaves_it_open() -> None:
    async with answering(DUPLICATE, refused(429, code="rate_limited")) as (payments, _):
        with pytest.raises(ProviderTimeout):
            await payments.open(ATTEMPT)


# What was paid while nobody listened


async def test_paid_transactions_are_listed_to_the_end() -> None:
    first = listed(*(transaction(reference=f"a-{number}") for number in range(100)))
    second = listed(transaction(reference="b-1", metadata=""), transaction(reference="b-2", status="abandoned"))
    async with answering(first, second) as (payments, app):
        sessions = await look_up_all(payments)
    assert [session.id for session in sessions] == [f"a-{number}" for number in range(100)] + ["b-1"]
    assert {session.state for session in sessions} == {SessionState.PAID}
    assert (sessions[0].marked_order_id, sessions[-1].marked_order_id) == ("ord-1", None)
    query = {"status": "success", "from": "2025-06-15T15:06:40.000Z", "perPage": "100"}
    assert [asked.params for asked in app.all_asked()] == [query | {"page": "1"}, query | {"page": "2"}]


async def test_a_transaction_that_can_not_be_read_hides_none() -> None:
    odd = transaction(amount=None, reference="odd-1")
    with structlog.testing.capture_logs() as logs:
        async with answering(listed(odd, transaction())) as (payments, _):
            sessions = await look_up_all(payments)
    assert [session.id for session in sessions] == ["ord-1-2"]
    assert [(entry["event"], entry["reference"]) for entry in logs] == [("paystack_transaction_unreadable", "odd-1")]


async def test_a_page_that_fails_ends_the_list_with_its_error() -> None:
    first = listed(transaction(), pageCount=2)
    got: list[str] = []
    async with answering(first, refused(500)) as (payments, _):

        async def read() -> None:
            async for session in payments.paid_since(1_750_000_000):
                got.append(session.id)

        with pytest.raises(ProviderTimeout):
            await read()
    assert got == ["ord-1-2"]


# References


@pytest.mark.parametrize(
    ("order", "number", "reference"),
    [
        ("ord01hx5", 1, "ord01hx5-1"),
        ("a.b-c", 12, "a.b-c-12"),
        ("a_b@c+d", 1, "a=5Fb=40c=2Bd-1"),
    ],
)
async def test_references_have_the_characters_that_paystack_takes(order: str, number: int, reference: str) -> None:
    payments = PaystackPayments(KEY)
    assert payments.reference_of(order, number) == reference
    await payments.close()


async def test_no_two_attempts_share_a_reference() -> None:
    payments = PaystackPayments(KEY)
    orders = ["a", "a-1", "a_1", "a=1", "a-1-1", "a5F", "a_", "a@", "a+", "A", "a."]
    attempts = [(order, number) for order in orders for number in (1, 11)]
    assert len({payments.reference_of(*attempt) for attempt in attempts}) == len(attempts)
    await payments.close()
