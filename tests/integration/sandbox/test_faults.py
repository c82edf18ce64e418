"""What goes wrong on request: with calls to the stand-in, and with its webhooks."""

from __future__ import annotations

from typing import Any

import pytest

from api.sandbox import calls
from engine.errors import ProviderError, ProviderTimeout
from engine.payments.port import EventKind, SessionState
from tests.stand_in import StandIn


async def created_sessions(stand_in: StandIn) -> int:
    """How many sessions there are: what a lost answer must not double."""
    async with stand_in.sandbox._store.transaction() as repository:
        return len(await repository.due_sessions(2**40, 1000))


# Calls


async def test_an_error_answer_did_nothing_and_is_replayed_under_its_key(stand_in: StandIn) -> None:
    attempt = stand_in.attempt()
    await stand_in.fault("stripe", "error")
    for _ in range(2):
        with pytest.raises(ProviderError):
            await stand_in.payments.open(attempt)
    assert await created_sessions(stand_in) == 0
    assert [(call["status"], call["fault"]) for call in await stand_in.calls()] == [(500, "error"), (500, None)]
    session = await stand_in.payments.open(stand_in.attempt(number=2, idempotency_key="ord-1:2"))
    assert session.state is SessionState.OPEN


async def test_a_lost_answer_leaves_a_session_that_the_same_attempt_finds(stand_in: StandIn) -> None:
    attempt = stand_in.attempt()
    await stand_in.fault("stripe", "timeout_after_success")
    with pytest.raises(ProviderTimeout):
        await stand_in.payments.open(attempt)
    assert await created_sessions(stand_in) == 1
    session = await stand_in.payments.open(attempt)
    assert await created_sessions(stand_in) == 1
    assert (await stand_in.payments.look_up(session.id)).state is SessionState.OPEN
    assert [call["status"] for call in await stand_in.calls()] == [None, 200, 200]


async def test_a_dropped_call_did_nothing(stand_in: StandIn) -> None:
    attempt = stand_in.attempt()
    await stand_in.fault("stripe", "drop")
    with pytest.raises(ProviderTimeout):
        await stand_in.payments.open(attempt)
    assert await created_sessions(stand_in) == 0
    assert (await stand_in.payments.open(attempt)).state is SessionState.OPEN


async def test_a_delayed_call_is_answered_all_the_same(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "DELAY_SECONDS", 0.0)
    await stand_in.fault("stripe", "delay")
    assert (await stand_in.payments.open(stand_in.attempt())).state is SessionState.OPEN
    assert [call["fault"] for call in await stand_in.calls()] == ["delay"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"target": "paystack", "kind": "forget_keys", "count": 1}, "kind"),
        ({"target": "paystack", "kind": "duplicate", "count": 1}, "kind"),
        ({"target": "post", "kind": "error", "count": 1}, "target"),
        ({"target": "stripe", "kind": "duplicate", "count": 1}, "kind"),
        ({"target": "stripe", "kind": "reorder", "count": 1}, "kind"),
        ({"target": "webhooks", "kind": "forget_keys", "count": 1}, "kind"),
        ({"target": "stripe", "kind": "burn", "count": 1}, "kind"),
        ({"target": "stripe", "kind": "error", "count": 0}, "count"),
        ({"target": "stripe", "kind": "error", "count": True}, "count"),
        ({"target": "stripe", "kind": "error", "count": 10_001}, "count"),
        ({"target": "stripe", "kind": "error", "count": 1, "more": 1}, "more"),
        ({"kind": "error"}, "target"),
    ],
)
async def test_a_fault_that_can_not_be_is_refused(shared_stand_in: StandIn, body: dict[str, Any], field: str) -> None:
    refused = await shared_stand_in.post("/sandbox/faults", body, 422)
    assert refused["error"]["code"] == "invalid"
    assert field in refused["error"]["fields"]


@pytest.mark.parametrize("seconds", [0, -1, "5", True, None, 1e300, 200_000_000, []])
async def test_the_clock_only_goes_forward_and_not_for_ever(shared_stand_in: StandIn, seconds: Any) -> None:
    refused = await shared_stand_in.post("/sandbox/clock", {"advance_seconds": seconds}, 422)
    assert "advance_seconds" in refused["error"]["fields"]
    assert (await shared_stand_in.http.get("/sandbox/clock")).json()["offset_seconds"] == 0
    assert shared_stand_in.offsets == []


async def test_all_moves_of_the_clock_together_are_bounded(stand_in: StandIn) -> None:
    for _ in range(10):
        await stand_in.advance(158_112_000)
    await stand_in.post("/sandbox/clock", {"advance_seconds": 1}, 422)
    assert (await stand_in.http.get("/sandbox/clock")).json()["offset_seconds"] == 1_581_120_000
    assert len(stand_in.offsets) == 10


async def test_the_clock_moves_by_fractions_too(stand_in: StandIn) -> None:
    assert (await stand_in.advance(0.25))["offset_seconds"] == 0.25
    assert (await stand_in.advance(0.75))["offset_seconds"] == 1
    assert stand_in.offsets == [250, 1000]


# Webhooks


async def paid(stand_in: StandIn, order: str) -> dict[str, Any]:
    """A session opened and paid; the answer of paying."""
    session = await stand_in.payments.open(stand_in.attempt(order))
    return await stand_in.act(session.id, "pay")


async def test_a_duplicate_arrives_twice_with_one_id(still_stand_in: StandIn) -> None:
    await still_stand_in.fault("webhooks", "duplicate")
    await paid(still_stand_in, "ord-1")
    assert len(still_stand_in.received) == 2
    assert len({event.dedup_key for event in still_stand_in.received}) == 1
    await paid(still_stand_in, "ord-2")
    assert len(still_stand_in.received) == 3


async def test_a_dropped_event_never_arrives(still_stand_in: StandIn) -> None:
    await still_stand_in.fault("webhooks", "drop")
    answer = await paid(still_stand_in, "ord-1")
    assert answer["event"]["delivered"] is False
    await still_stand_in.advance(4 * 24 * 3600)
    assert still_stand_in.received == []
    assert (await still_stand_in.payments.look_up(answer["id"])).state is SessionState.PAID


async def test_a_delayed_event_arrives_later(still_stand_in: StandIn) -> None:
    await still_stand_in.fault("webhooks", "delay")
    assert (await paid(still_stand_in, "ord-1"))["event"]["delivered"] is False
    await still_stand_in.sandbox.catch_up()
    assert still_stand_in.received == []
    await still_stand_in.advance(5)
    assert len(still_stand_in.received) == 1


async def test_a_reordered_event_is_overtaken_by_the_next(still_stand_in: StandIn) -> None:
    await still_stand_in.fault("webhooks", "reorder")
    first = await paid(still_stand_in, "ord-1")
    assert still_stand_in.received == []
    second = await paid(still_stand_in, "ord-2")
    await still_stand_in.sandbox.catch_up()
    assert [event.session_id for event in still_stand_in.received] == [second["id"], first["id"]]


async def test_a_reordered_event_with_no_other_behind_it_arrives_in_the_end(still_stand_in: StandIn) -> None:
    await still_stand_in.fault("webhooks", "reorder")
    await paid(still_stand_in, "ord-1")
    await still_stand_in.advance(30)
    assert len(still_stand_in.received) == 1


async def test_an_event_that_failed_on_the_way_is_sent_again(still_stand_in: StandIn) -> None:
    await still_stand_in.fault("webhooks", "error")
    await paid(still_stand_in, "ord-1")
    assert still_stand_in.received == []
    await still_stand_in.advance(1)
    assert len(still_stand_in.received) == 1


async def test_an_event_whose_answer_was_lost_is_sent_again(still_stand_in: StandIn) -> None:
    await still_stand_in.fault("webhooks", "timeout_after_success")
    assert (await paid(still_stand_in, "ord-1"))["event"]["delivered"] is False
    assert len(still_stand_in.received) == 1
    await still_stand_in.advance(1)
    assert len({event.dedup_key for event in still_stand_in.received}) == 1
    assert len(still_stand_in.received) == 2
    await still_stand_in.advance(3600)
    assert len(still_stand_in.received) == 2


async def test_a_refused_event_is_tried_again_with_longer_and_longer_pauses(still_stand_in: StandIn) -> None:
    still_stand_in.answers[:] = [503, 500, 302, 503, 503, 503, 503, 200]
    await paid(still_stand_in, "ord-1")
    for seconds in (1, 2, 4, 8, 16, 32):
        await still_stand_in.advance(seconds)
    assert len(still_stand_in.received) == 7
    counts = []
    # A minute passes, in halves: the pause never grows beyond it, and is not over before.
    for seconds in (30, 30, 3600):
        await still_stand_in.advance(seconds)
        counts.append(len(still_stand_in.received))
    assert counts == [7, 8, 8]
    assert all(event.kind is EventKind.PAID for event in still_stand_in.received)
