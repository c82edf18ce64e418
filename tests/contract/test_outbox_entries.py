"""What Postgres hears of: one entry a transition, without a gap, with the whole state, and none for a refusal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from engine.domain import LatePayment, Outcome, Reservation, Settled
from engine.errors import IllegalTransition
from engine.records import decode_reservation, encode_reservation
from tests.admitted import TENANT
from tests.frozen import MINUTE, Frozen, request

SETTLEMENT = "0d3f5f2e9c8b4a7f9d2f1c3b5a697887"
Act = Callable[[Frozen], Awaitable[Settled | Reservation]]


def told(fields: dict[str, str]) -> Reservation:
    return decode_reservation(fields["t"], fields["i"], fields["r"])


def stored(reservation: Reservation) -> Reservation:
    """Without what only an answer knows: the clock, and whether the units count at this moment."""
    return decode_reservation(TENANT, reservation.id, encode_reservation(reservation))


async def test_one_entry_a_transition_with_the_whole_state(frozen: Frozen) -> None:
    await frozen.define("soup", 9, per_customer=5)
    await frozen.define("gate", None)
    states = []
    for identifier in ("r1", "r2"):
        granted = await frozen.take(
            identifier,
            ("gate", 1),
            ("soup", 1),
            customer="a|b",
            metadata={"k": "v,|%"},
            order_id="o1",
            code="C",
            period="2026-27",
        )
        states.append(granted)
    states.append(await frozen.engine.extend(TENANT, "r1", 2 * MINUTE))
    states.append((await frozen.engine.complete(TENANT, "r1", "pay|1")).reservation)
    states.append((await frozen.engine.cancel(TENANT, "r1", restock=True)).reservation)
    states.append((await frozen.engine.release(TENANT, "r2")).reservation)
    entries = await frozen.entries()
    assert [entry for entry, _ in entries] == [f"1-{sequence}" for sequence in range(7)]
    assert entries[0][1] == {"k": "e", "b": "1"}
    for state, (_, fields) in zip(states, entries[1:], strict=True):
        assert set(fields) == {"k", "t", "i", "r"}
        assert (fields["k"], fields["t"], fields["i"]) == ("r", TENANT, state.id)
        assert told(fields) == stored(state)
    assert told(entries[1][1]).metadata == {"k": "v,|%"}
    assert [told(fields).version for _, fields in entries[1:]] == [1, 1, 2, 3, 4, 2]


async def test_a_batch_writes_its_entries_in_order(frozen: Frozen) -> None:
    await frozen.define("soup", 50)
    await frozen.engine.reserve_many([request(f"r{n}", ("soup", 1)) for n in range(60)])
    entries = await frozen.entries()
    assert [fields["i"] for _, fields in entries[1:]] == [f"r{n}" for n in range(50)]


async def test_what_changes_nothing_writes_nothing(frozen: Frozen) -> None:
    await frozen.define("soup", 2)
    await frozen.take("r1", ("soup", 2))
    await frozen.refused("r2", ("soup", 1))
    await frozen.reserve("r1", ("soup", 2))
    await frozen.engine.complete(TENANT, "r1", "pay-1")
    await frozen.engine.complete(TENANT, "r1", "pay-1")
    await frozen.engine.complete(TENANT, "r1", "pay-2")
    await frozen.engine.release(TENANT, "r1")
    await frozen.engine.read(TENANT, "r1")
    await frozen.counts("soup")
    assert len(await frozen.entries()) == 3


async def _reserved(frozen: Frozen) -> None:
    await frozen.define("soup", 1, late_payment=LatePayment.REFUND)
    await frozen.take("r1", ("soup", 1))


async def _completed(frozen: Frozen) -> None:
    await _reserved(frozen)
    await frozen.engine.complete(TENANT, "r1", "pay-1")


async def _cancelled(frozen: Frozen) -> None:
    await _completed(frozen)
    await frozen.engine.cancel(TENANT, "r1", restock=True)


async def _released(frozen: Frozen) -> None:
    await _reserved(frozen)
    await frozen.engine.release(TENANT, "r1")


async def _refused(frozen: Frozen) -> None:
    await _released(frozen)
    await frozen.engine.complete(TENANT, "r1", "pay-1")


async def _held(frozen: Frozen) -> None:
    await _reserved(frozen)
    await frozen.engine.hold(TENANT, "r1", 2 * MINUTE)


async def _expired(frozen: Frozen) -> None:
    await _reserved(frozen)
    await frozen.pass_ms(MINUTE)


async def _sold_out(frozen: Frozen) -> None:
    await _expired(frozen)
    await frozen.take("r2", ("soup", 1))


def _complete(payment: str) -> Act:
    return lambda frozen: frozen.engine.complete(TENANT, "r1", payment, SETTLEMENT)


def _release(frozen: Frozen) -> Awaitable[Settled]:
    return frozen.engine.release(TENANT, "r1", SETTLEMENT)


def _hold(frozen: Frozen) -> Awaitable[Settled]:
    return frozen.engine.hold(TENANT, "r1", 2 * MINUTE, SETTLEMENT)


def _cancel(frozen: Frozen) -> Awaitable[Settled]:
    return frozen.engine.cancel(TENANT, "r1", restock=False, settlement=SETTLEMENT)


class Case(NamedTuple):
    """A settlement applied to a reservation in some state, and what its entry must say."""

    prepare: Callable[[Frozen], Awaitable[None]]
    act: Act
    outcome: Outcome
    payment: str
    changes: bool


CASES = [
    Case(_reserved, _complete("p|1"), Outcome.COMPLETED, "p%7C1", True),
    Case(_completed, _complete("pay-1"), Outcome.ALREADY_COMPLETED, "pay-1", False),
    Case(_completed, _complete("pay-2"), Outcome.DUPLICATE_PAYMENT, "pay-2", False),
    Case(_cancelled, _complete("pay-1"), Outcome.ALREADY_COMPLETED, "pay-1", False),
    Case(_cancelled, _complete("pay-2"), Outcome.REFUND_DUE, "pay-2", True),
    Case(_released, _complete("pay-1"), Outcome.REFUND_DUE, "pay-1", True),
    Case(_refused, _complete("pay-1"), Outcome.REFUND_DUE, "pay-1", False),
    Case(_reserved, _release, Outcome.RELEASED, "", True),
    Case(_released, _release, Outcome.ALREADY_RELEASED, "", False),
    Case(_completed, _release, Outcome.ALREADY_COMPLETED, "", False),
    Case(_reserved, _hold, Outcome.HELD, "", True),
    Case(_held, _hold, Outcome.HELD, "", False),
    Case(_expired, _hold, Outcome.HELD, "", True),
    Case(_sold_out, _hold, Outcome.NOT_HELD, "", False),
    Case(_completed, _hold, Outcome.ALREADY_COMPLETED, "", False),
    Case(_cancelled, _hold, Outcome.NOT_HELD, "", False),
    Case(_released, _hold, Outcome.NOT_HELD, "", False),
    Case(_refused, _hold, Outcome.NOT_HELD, "", False),
    Case(_completed, _cancel, Outcome.CANCELLED, "pay-1", True),
    Case(_cancelled, _cancel, Outcome.ALREADY_CANCELLED, "pay-1", False),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{case.outcome}" for n, case in enumerate(CASES)])
async def test_a_settlement_always_gets_an_entry(frozen: Frozen, case: Case) -> None:
    """Only the persister may call it applied, and it hears of it here, also where nothing changes."""
    await case.prepare(frozen)
    before = await frozen.entries()
    settled = await case.act(frozen)
    assert isinstance(settled, Settled)
    assert settled.outcome is case.outcome
    entries = await frozen.entries()
    assert len(entries) == len(before) + 1
    fields = entries[-1][1]
    assert (fields["s"], fields["o"], fields["p"]) == (SETTLEMENT, case.outcome.value, case.payment)
    assert told(fields) == stored(settled.reservation)
    latest = [told(each) for _, each in before[1:] if each["i"] == "r1"][-1]
    assert told(fields).version == latest.version + (1 if case.changes else 0)
    # Applied twice, as the job does after a lost answer: a second entry, and nothing else.
    again = await case.act(frozen)
    assert isinstance(again, Settled)
    assert again.reservation == settled.reservation
    assert len(await frozen.entries()) == len(entries) + 1


@pytest.mark.parametrize("act", [_cancel, _release, _complete("")])
async def test_a_settlement_that_is_not_allowed_gets_an_entry_too(frozen: Frozen, act: Act) -> None:
    """Otherwise it would be tried for ever."""
    await (_reserved if act is _cancel else _cancelled)(frozen)
    before = await frozen.record("r1")
    with pytest.raises(IllegalTransition):
        await act(frozen)
    fields = (await frozen.entries())[-1][1]
    assert (fields["s"], fields["o"]) == (SETTLEMENT, Outcome.ILLEGAL_TRANSITION.value)
    assert await frozen.record("r1") == before == fields["r"]
