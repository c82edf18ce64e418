"""Webhooks outlive the process that wrote them, and go to one deliverer each."""

from __future__ import annotations

import asyncio

import pytest

from api.sandbox.deliveries import Deliveries
from api.sandbox.mount import Sandbox
from engine.errors import StorageUnavailable
from engine.payments.port import EventKind
from persistence.database import create_engine_from
from persistence.repositories.sandbox import SandboxStore
from tests.stand_in import StandIn


async def another_process(stand_in: StandIn) -> tuple[Sandbox, list[int]]:
    """A second sandbox on the same database, as another API process would have it."""
    offsets: list[int] = []

    async def clock_moved(offset_ms: int) -> None:
        offsets.append(offset_ms)

    return Sandbox(stand_in.settings, create_engine_from(stand_in.settings), clock_moved), offsets


async def put_away(sandbox: Sandbox) -> None:
    await sandbox.stop()
    await sandbox._store._engine.dispose()


async def test_another_process_delivers_what_one_left_behind(still_stand_in: StandIn) -> None:
    still_stand_in.answers[:] = [503]
    session = await still_stand_in.payments.open(still_stand_in.attempt())
    await still_stand_in.act(session.id, "pay")
    await still_stand_in.fault("webhooks", "delay")
    other, _ = await another_process(still_stand_in)
    async with still_stand_in.sandbox._store.transaction() as repository:
        await repository.advance(60_000)
    await other.catch_up()
    assert [event.kind for event in still_stand_in.received] == [EventKind.PAID, EventKind.PAID]
    assert await other.offset_ms() == 60_000
    await put_away(other)


async def test_a_deliverer_that_died_is_replaced_when_its_lease_ends(still_stand_in: StandIn) -> None:
    session = await still_stand_in.payments.open(still_stand_in.attempt())
    async with still_stand_in.sandbox._store.transaction() as repository:
        # Written down as taken by a caller that never delivers.
        await still_stand_in.sandbox._deliveries.add(
            repository, "checkout.session.expired", session.id, {"id": session.id}, taken=True
        )
    await still_stand_in.sandbox.catch_up()
    assert still_stand_in.received == []
    async with still_stand_in.sandbox._store.transaction() as repository:
        await repository.advance(30_000)
    await still_stand_in.sandbox.catch_up()
    assert len(still_stand_in.received) == 1


async def test_two_processes_deliver_each_event_once(still_stand_in: StandIn) -> None:
    count = 60
    for number in range(count):
        await still_stand_in.payments.open(still_stand_in.attempt(f"ord-{number}"))
    async with still_stand_in.sandbox._store.transaction() as repository:
        await repository.advance(1_900_000)
    other, _ = await another_process(still_stand_in)
    await asyncio.gather(still_stand_in.sandbox.catch_up(), other.catch_up())
    assert len(still_stand_in.received) == count
    assert len({event.session_id for event in still_stand_in.received}) == count
    assert {event.kind for event in still_stand_in.received} == {EventKind.EXPIRED}
    await put_away(other)


async def test_what_one_process_has_in_hand_the_next_passes_over(still_stand_in: StandIn) -> None:
    store = still_stand_in.sandbox._store
    async with store.transaction() as repository:
        for number in range(6):
            session_id = f"cs_test_{number}"
            await still_stand_in.sandbox._deliveries.add(
                repository, "checkout.session.expired", session_id, {"id": session_id}
            )
    later_ms = 2**45
    async with store.transaction() as one, asyncio.timeout(5):
        first = await one.claim_events(later_ms, 1000, 4)
        async with store.transaction() as other:
            second = await other.claim_events(later_ms, 1000, 4)
    assert [event.session_id for event in first] == ["cs_test_0", "cs_test_1", "cs_test_2", "cs_test_3"]
    assert [event.session_id for event in second] == ["cs_test_4", "cs_test_5"]


async def test_the_background_task_outlives_a_lost_database(
    still_stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = asyncio.Event()
    claim = Deliveries.deliver_due

    async def once_unavailable(self: Deliveries, limit: int = 50) -> int:
        if not failed.is_set():
            failed.set()
            raise StorageUnavailable
        return await claim(self, limit)

    monkeypatch.setattr(Deliveries, "deliver_due", once_unavailable)
    session = await still_stand_in.payments.open(still_stand_in.attempt())
    await still_stand_in.sandbox.start()
    await failed.wait()
    assert (await still_stand_in.payments.expire(session.id)).value == "expired"
    await still_stand_in.receipts(1)
    assert still_stand_in.received[0].kind is EventKind.EXPIRED


async def test_a_thousand_calls_are_remembered(still_stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.repositories.sandbox.CALLS_KEPT", 3)
    for number in range(5):
        await still_stand_in.payments.open(still_stand_in.attempt(f"ord-{number}"))
    assert [call["idempotency_key"] for call in await still_stand_in.calls()] == ["ord-2:1", "ord-3:1", "ord-4:1"]
    newest = await still_stand_in.http.get("/sandbox/calls", params={"limit": 1})
    assert [call["idempotency_key"] for call in newest.json()["calls"]] == ["ord-4:1"]


async def test_the_state_is_in_postgres(still_stand_in: StandIn) -> None:
    session = await still_stand_in.payments.open(still_stand_in.attempt())
    await still_stand_in.advance(100)
    other, offsets = await another_process(still_stand_in)
    assert await other.offset_ms() == 100_000
    assert (await other._sessions.find(session.id)).state == "open"
    assert offsets == []
    assert isinstance(other._store, SandboxStore)
    await put_away(other)
