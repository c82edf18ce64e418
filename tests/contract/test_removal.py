"""What ended long ago leaves Redis, and comes back from Postgres when a settlement asks for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.domain import LatePayment, Outcome, PoolStatus, ReservationStatus
from engine.errors import NotReady, Unknown
from tests.admitted import TENANT
from tests.audit import snapshot
from tests.frozen import DAY, MINUTE, SECOND, Frozen

RETENTION = 7 * DAY
SETTLEMENT = "5c0a3f0c6b8e4d0e8f1d2a3b4c5d6e7f"


@pytest.mark.parametrize("end", ["released", "completed", "cancelled", "expired"])
async def test_a_record_stays_for_its_retention_after_its_end(frozen: Frozen, end: str) -> None:
    await frozen.define("soup", 9, per_customer=9)
    await frozen.take("r1", ("soup", 1), customer="ada")
    await frozen.pass_ms(10 * SECOND)
    if end == "released":
        await frozen.engine.release(TENANT, "r1")
    elif end != "expired":
        await frozen.engine.complete(TENANT, "r1")
    if end == "cancelled":
        await frozen.pass_ms(10 * SECOND)
        await frozen.engine.cancel(TENANT, "r1", restock=False)
    made = await frozen.engine.read(TENANT, "r1")
    ended_at = {"completed": made.completed_at_ms, "expired": made.expires_at_ms}.get(end, made.ended_at_ms)
    assert ended_at is not None
    await frozen.at(ended_at + RETENTION - 1)
    assert await frozen.engine.remove_reservations(TENANT, [("r1", made.version)]) == 0
    await frozen.at(ended_at + RETENTION)
    # What Postgres does not have in this version stays.
    assert await frozen.engine.remove_reservations(TENANT, [("r1", made.version - 1), ("r1", made.version + 1)]) == 0
    assert not (await frozen.reserve("r1", ("soup", 1), customer="ada")).created
    before = await frozen.counts("soup")
    assert await frozen.engine.remove_reservations(TENANT, [("r1", made.version), ("nobody", 1)]) == 1
    frozen.forgotten = True
    assert await frozen.record("r1") is None
    assert await frozen.counts("soup") == before
    seen = await snapshot(frozen.redis, frozen.keys, TENANT)
    assert seen.counters == ({"soup||ada": "1"} if end in {"completed", "cancelled"} else {})


async def test_many_records_go_in_one_call_and_the_living_stay(frozen: Frozen) -> None:
    await frozen.define("soup", None)
    for number in range(20):
        await frozen.take(f"r{number}", ("soup", 1))
    await frozen.engine.release(TENANT, "r0")
    await frozen.pass_ms(RETENTION + MINUTE)
    await frozen.take("alive", ("soup", 1))
    asked = [("r0", 2), *((f"r{number}", 1) for number in range(1, 20)), ("alive", 1)]
    assert await frozen.engine.remove_reservations(TENANT, asked) == 20
    frozen.forgotten = True
    assert await frozen.counts("soup") == (0, 1, None)


async def test_an_unswept_record_removed_gives_its_units_back_all_the_same(frozen: Frozen) -> None:
    await frozen.define("soup", 2, per_customer=2)
    await frozen.take("r1", ("soup", 2), customer="ada")
    await frozen.pass_ms(RETENTION + MINUTE)
    assert await frozen.engine.remove_reservations(TENANT, [("r1", 1)]) == 1
    frozen.forgotten = True
    await frozen.take("r2", ("soup", 2), customer="ada")
    assert await frozen.counts("soup") == (0, 2, 0)


async def remove(frozen: Frozen, identifier: str = "r1") -> None:
    """Take a record away after its time, with Postgres still holding it."""
    made = await frozen.engine.read(TENANT, identifier)
    frozen.lookup.reservations[TENANT, identifier] = made
    await frozen.pass_ms(RETENTION + MINUTE)
    assert await frozen.engine.remove_reservations(TENANT, [(identifier, made.version)]) == 1
    frozen.forgotten = True


@pytest.mark.parametrize("policy", list(LatePayment))
async def test_a_payment_weeks_later_restores_the_record_first(frozen: Frozen, policy: LatePayment) -> None:
    await frozen.define("soup", 1, late_payment=policy)
    await frozen.take("r1", ("soup", 1))
    await remove(frozen)
    settled = await frozen.engine.complete(TENANT, "r1", "pay-1", SETTLEMENT)
    honoured = policy is not LatePayment.REFUND
    assert settled.outcome is (Outcome.COMPLETED if honoured else Outcome.REFUND_DUE)
    assert settled.reservation.late is honoured
    assert await frozen.counts("soup") == ((1, 0, 0) if honoured else (0, 0, 1))
    fields = (await frozen.entries())[-1][1]
    assert (fields["s"], fields["o"]) == (SETTLEMENT, settled.outcome.value)
    assert await frozen.record("r1") == fields["r"]
    assert (await frozen.engine.complete(TENANT, "r1", "pay-1", SETTLEMENT)).reservation == settled.reservation


async def test_cancelling_weeks_later_restores_the_record_first(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await frozen.engine.complete(TENANT, "r1", "pay-1")
    await remove(frozen)
    settled = await frozen.engine.cancel(TENANT, "r1", restock=True)
    assert (settled.outcome, settled.reservation.payment_ref) == (Outcome.CANCELLED, "pay-1")
    assert await frozen.counts("soup") == (0, 0, 1)


@pytest.mark.parametrize(
    ("end", "outcome"), [("expired", Outcome.ALREADY_RELEASED), ("completed", Outcome.ALREADY_COMPLETED)]
)
async def test_reading_and_releasing_ask_postgres_and_restore_nothing(
    frozen: Frozen, end: str, outcome: Outcome
) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    if end == "completed":
        await frozen.engine.complete(TENANT, "r1")
    await remove(frozen)
    before = await frozen.counts("soup")
    assert not (await frozen.engine.read(TENANT, "r1")).alive
    assert (await frozen.engine.release(TENANT, "r1")).outcome is outcome
    assert await frozen.record("r1") is None
    assert await frozen.counts("soup") == before


async def test_reserving_restores_nothing(frozen: Frozen) -> None:
    """Checkouts ask Postgres; the primitive's second grant is found by the persister."""
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await remove(frozen)
    assert (await frozen.reserve("r1", ("soup", 1))).created
    # One id with two histories, which the audit of the outbox takes for the mistake that it is.
    frozen.audited = False


async def test_one_that_is_alive_in_postgres_is_not_restored(frozen: Frozen) -> None:
    """Its units are in no pool; only a rebuild can count them."""
    await frozen.define("soup", 1)
    made = await frozen.take("r1", ("soup", 1))
    await frozen.redis.delete(frozen.keys.records(TENANT, "r1"))
    frozen.audited = False
    with pytest.raises(NotReady):
        await frozen.engine.restore(made)
    assert frozen.admitted.state.lost.is_set()
    assert await frozen.record("r1") is None


async def test_restoring_one_that_is_there_changes_nothing(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    made = await frozen.take("r1", ("soup", 1))
    await frozen.engine.complete(TENANT, "r1")
    before = await frozen.record("r1")
    await frozen.pass_ms(2 * MINUTE)
    await frozen.engine.restore(made)
    assert await frozen.record("r1") == before


async def test_restoring_gives_back_what_it_still_held(frozen: Frozen) -> None:
    """Others ended in the very same second, and nobody had looked since."""
    await frozen.define("soup", 5)
    made = await frozen.take("r1", ("soup", 2))
    await frozen.take("r2", ("soup", 3))
    await frozen.pass_ms(MINUTE)
    await frozen.redis.delete(frozen.keys.records(TENANT, "r1"))
    frozen.forgotten = True
    await frozen.engine.restore(made)
    await frozen.pass_ms(-5 * SECOND)
    assert (await frozen.engine.read(TENANT, "r1")).expired
    await frozen.engine.release(TENANT, "r1")
    assert await frozen.counts("soup") == (0, 0, 5)


async def test_a_restored_one_is_never_taken_for_another_that_ends_in_its_second(frozen: Frozen) -> None:
    """The pool never counted it, being new here; then the clock steps back, and somebody reserves to that second."""
    await frozen.define("soup", 5)
    other = await frozen.take("r1", ("soup", 2))
    made = replace(other, id="from postgres")
    await frozen.engine.release(TENANT, "r1")
    await frozen.pass_ms(MINUTE)
    await frozen.engine.restore(made)
    frozen.forgotten = True
    await frozen.pass_ms(-5 * SECOND)
    await frozen.take("r2", ("soup", 5), ttl_ms=5 * SECOND)
    assert (await frozen.engine.read(TENANT, "from postgres")).expired
    assert (await frozen.engine.release(TENANT, "from postgres")).outcome is Outcome.RELEASED
    assert await frozen.counts("soup") == (0, 5, 0)


async def test_a_closed_pool_leaves_with_its_counters(frozen: Frozen) -> None:
    await frozen.define("soup", 5, per_customer=5)
    await frozen.define("soup-2", 5, per_customer=5)
    for number, customer in enumerate(["ada", "b|ob", "cy"]):
        await frozen.take(f"r{number}", ("soup", 1), ("soup-2", 1), customer=customer)
        await frozen.engine.complete(TENANT, f"r{number}")
    await frozen.define("soup", 5, per_customer=5, status=PoolStatus.CLOSED)
    rev = frozen.admitted.revision
    assert not await frozen.engine.remove_pool(TENANT, "soup", rev - 1, ["ada", "b|ob", "cy"])
    assert await frozen.engine.remove_pool(TENANT, "soup", rev, ["ada", "b|ob", "cy"])
    frozen.forgotten = True
    with pytest.raises(Unknown):
        await frozen.engine.read_pool(TENANT, "soup")
    seen = await snapshot(frozen.redis, frozen.keys, TENANT)
    assert set(seen.counters) == {"soup-2||ada", "soup-2||b%7Cob", "soup-2||cy"}
    assert await frozen.counts("soup-2") == (3, 0, 2)
    assert await frozen.engine.remove_pool(TENANT, "soup", rev)


async def test_a_pool_with_live_units_stays(frozen: Frozen) -> None:
    await frozen.define("soup", 5, status=PoolStatus.ACTIVE)
    await frozen.take("r1", ("soup", 1))
    rev = frozen.admitted.revision
    assert not await frozen.engine.remove_pool(TENANT, "soup", rev)
    assert await frozen.counts("soup") == (0, 1, 4)
    await frozen.engine.release(TENANT, "r1")
    assert await frozen.engine.remove_pool(TENANT, "soup", rev)
    frozen.forgotten = True


@pytest.mark.parametrize("act", ["complete", "cancel", "release"])
async def test_settling_after_a_pool_has_gone(frozen: Frozen, act: str) -> None:
    """The other pools of the reservation still get what is right."""
    await frozen.define("gone", 5)
    await frozen.define("stays", 5)
    await frozen.take("r1", ("gone", 1), ("stays", 1))
    if act == "cancel":
        await frozen.engine.complete(TENANT, "r1", "pay-1")
    else:
        await frozen.pass_ms(MINUTE)
        await frozen.counts("gone")
    assert await frozen.engine.remove_pool(TENANT, "gone", 1)
    frozen.forgotten = True
    if act == "complete":
        assert (await frozen.engine.complete(TENANT, "r1", "pay-1")).outcome is Outcome.COMPLETED
    elif act == "cancel":
        assert (await frozen.engine.cancel(TENANT, "r1", restock=True)).outcome is Outcome.CANCELLED
    else:
        assert (await frozen.engine.release(TENANT, "r1")).outcome is Outcome.RELEASED
    assert await frozen.counts("stays") == ((1, 0, 4) if act == "complete" else (0, 0, 5))
    made = await frozen.engine.read(TENANT, "r1")
    assert made.status is not ReservationStatus.RESERVED
    assert "gone" not in await frozen.redis.hkeys(frozen.keys.tenant(TENANT))
