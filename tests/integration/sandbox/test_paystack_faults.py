"""What goes wrong on request with calls to the stand-in Paystack, and with its webhooks."""

from __future__ import annotations

import pytest

from api.sandbox import calls
from engine.errors import ProviderTimeout, SessionLost
from engine.payments.port import SessionState
from tests.stand_in import StandIn


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
