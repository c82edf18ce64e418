"""Refunds at Paystack: made, looked up, and refused because nothing is left."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import AlreadyRefunded, ProviderError, ProviderTimeout
from engine.payments.port import (
    ProviderRefund,
    ProviderRefundStatus,
)
from tests.answering import as_json
from tests.paystack_answering import REFUND, answering, listed, refund_row, refused, verified


async def test_a_refund_carries_our_mark() -> None:
    answer = as_json(
        200,
        {
            "status": True,
            "message": "Refund has been queued for processing",
            "data": refund_row(transaction={"id": 4099260516, "reference": "ord-1-2"}, amount="2500"),
        },
    )
    async with answering(answer) as (payments, app):
        made = await payments.refund(REFUND)
    assert app.all_asked()[0].params == {
        "transaction": "ord-1-2",
        "amount": 2500,
        "currency": "NGN",
        "merchant_note": "lastportion:rfd_1:1",
    }
    assert made == ProviderRefund(
        ref="3018284",
        payment_ref="ord-1-2",
        amount_minor=2500,
        currency="NGN",
        status=ProviderRefundStatus.PENDING,
        marked_refund_id="rfd_1",
        marked_round=1,
    )


@pytest.mark.parametrize(
    "answer",
    [
        refused(400, "Transaction has been fully reversed", type="api_error", code="transaction_reversed"),
        refused(400, "Transaction has been fully reversed"),
        refused(400, "Transaction has already been reversed"),
        refused(400, "Transaction already fully refunded"),
    ],
)
async def test_a_payment_that_went_back_whole_is_told_apart(answer: tuple[int, bytes]) -> None:
    async with answering(answer) as (payments, app):
        with pytest.raises(AlreadyRefunded):
            await payments.refund(REFUND)
        assert app.calls == 1


async def test_more_than_is_left_is_an_ordinary_refusal() -> None:
    answer = refused(400, "Total refund amount cannot exceed original transaction amount")
    async with answering(answer) as (payments, _):
        with pytest.raises(ProviderError) as raised:
            await payments.refund(REFUND)
    assert type(raised.value) is ProviderError


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("pending", ProviderRefundStatus.PENDING),
        ("processing", ProviderRefundStatus.PENDING),
        ("needs-attention", ProviderRefundStatus.PENDING),
        ("processed", ProviderRefundStatus.SUCCEEDED),
        ("failed", ProviderRefundStatus.FAILED),
    ],
)
async def test_a_refunds_status_is_reduced_to_what_matters(word: str, status: ProviderRefundStatus) -> None:
    async with answering(as_json(200, {"status": True, "data": refund_row(status=word)})) as (payments, _):
        assert (await payments.refund(REFUND)).status is status


@pytest.mark.parametrize("wrong", [{"status": "odd"}, {"id": None}, {"amount": "12.5"}, {"currency": ""}])
async def test_a_refund_that_can_not_be_read_leaves_it_open(wrong: dict[str, Any]) -> None:
    async with answering(as_json(200, {"status": True, "data": refund_row(**wrong)})) as (payments, _):
        with pytest.raises(ProviderTimeout):
            await payments.refund(REFUND)
    async with answering(verified(), listed(refund_row(**wrong))) as (payments, _):
        with pytest.raises(ProviderTimeout):
            await payments.look_up_refunds("ord-1-2")


async def test_refunds_are_listed_by_the_transactions_number_and_read_to_the_end() -> None:
    first = listed(
        refund_row(), refund_row(id=3018285, amount="1000", status="processed", merchant_note=None), pageCount=2
    )
    second = listed(
        refund_row(id=3018286, merchant_note="Refund for transaction ord-1-2 by staff@shop.example"),
        refund_row(id=3018287, merchant_note="lastportion:rfd@x:12"),
        pageCount=2,
    )
    async with answering(verified(), first, second) as (payments, app):
        refunds = await payments.look_up_refunds("ord-1-2")
    assert [asked.params for asked in app.all_asked()[1:]] == [
        {"transaction": "4099260516", "perPage": "100", "page": "1"},
        {"transaction": "4099260516", "perPage": "100", "page": "2"},
    ]
    assert [(refund.ref, refund.amount_minor, refund.marked_refund_id, refund.marked_round) for refund in refunds] == [
        ("3018284", 2500, "rfd_1", 1),
        ("3018285", 1000, None, None),
        ("3018286", 2500, None, None),
        ("3018287", 2500, "rfd@x", 12),
    ]
    assert {refund.payment_ref for refund in refunds} == {"ord-1-2"}


async def test_refunds_of_other_transactions_are_left_out() -> None:
    rows = [
        refund_row(id=1, transaction=7),
        refund_row(id=2, transaction={"id": 7, "reference": "other"}),
        refund_row(id=3, transaction=None, transaction_reference="other"),
        refund_row(id=4, transaction={"id": 4099260516, "reference": "ord-1-2"}),
        refund_row(id=5, transaction=None, transaction_reference="ord-1-2"),
    ]
    async with answering(verified(), listed(*rows)) as (payments, _):
        refunds = await payments.look_up_refunds("ord-1-2")
    assert [refund.ref for refund in refunds] == ["4", "5"]


async def test_a_refund_that_names_no_transaction_leaves_it_open() -> None:
    async with answering(verified(), listed(refund_row(transaction=None))) as (payments, _):
        with pytest.raises(ProviderTimeout):
            await payments.look_up_refunds("ord-1-2")
