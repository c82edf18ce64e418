"""Rules 1, 2 and 4: all claims or none, the id is the idempotency key, expiry to the whole second."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.domain import Claim, Outcome, PoolStatus, ReservationStatus
from engine.errors import BacklogFull, IdConflict, Invalid, NotReady, Refused
from tests.admitted import TENANT
from tests.frozen import MINUTE, SECOND, T0, Frozen, request


async def test_the_last_portion_goes_to_one_of_two_hundred(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    outcomes = await frozen.engine.reserve_many([request(f"r{n}", ("soup", 1)) for n in range(200)])
    refusals = [outcome.refusal for outcome in outcomes if isinstance(outcome, Refused)]
    assert len(refusals) == 199
    assert {(refusal.outcome, refusal.available, refusal.retry_at_ms) for refusal in refusals} == {
        (Outcome.ALL_RESERVED, 0, T0 + MINUTE)
    }
    assert await frozen.counts("soup") == (0, 1, 0)
    assert sorted(await frozen.redis.keys("*")) == sorted(
        [
            frozen.keys.mark,
            frozen.keys.outbox,
            frozen.keys.tenant(TENANT),
            frozen.keys.expiries(TENANT),
            frozen.keys.records(TENANT, "r0"),
        ]
    )


async def test_a_reservation_reads_as_it_was_granted(frozen: Frozen) -> None:
    await frozen.define("soup", 5)
    granted = await frozen.take("r1", ("soup", 2), customer="Ada, née Byron", metadata={"table": "4|5"})
    assert granted.status is ReservationStatus.RESERVED
    assert (granted.created_at_ms, granted.expires_at_ms) == (T0, T0 + MINUTE)
    assert granted.claims == (Claim("soup", 2),)
    assert (granted.alive, granted.epoch) == (True, 1)
    assert replace(await frozen.engine.read(TENANT, "r1"), epoch=granted.epoch) == granted
    assert await frozen.counts("soup") == (0, 2, 3)


@pytest.mark.parametrize(
    ("cap", "used", "outcome"),
    [
        (None, 0, None),
        (None, 1, None),
        (0, 0, Outcome.SOLD_OUT),
        (1, 0, None),
        (1, 1, Outcome.SOLD_OUT),
    ],
)
async def test_absent_zero_and_one_are_three_caps(
    frozen: Frozen, cap: int | None, used: int, outcome: Outcome | None
) -> None:
    await frozen.define("soup", cap)
    if used:
        await frozen.take("used", ("soup", used))
        await frozen.engine.complete(TENANT, "used")
    if outcome is None:
        await frozen.take("r1", ("soup", 1))
        assert await frozen.counts("soup") == (used, 1, None if cap is None else 0)
    else:
        assert (await frozen.refused("r1", ("soup", 1))).outcome is outcome
        assert await frozen.counts("soup") == (used, 0, 0)


async def test_zero_cap_under_used_units_stays_at_nothing_available(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("used", ("soup", 1))
    await frozen.engine.complete(TENANT, "used")
    await frozen.define("soup", 0)
    refusal = await frozen.refused("r1", ("soup", 1))
    assert (refusal.outcome, refusal.available) == (Outcome.SOLD_OUT, 0)


async def test_reserved_and_unpaid_refuses_a_second_buyer_until_it_ends(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("first", ("soup", 1))
    refusal = await frozen.refused("second", ("soup", 1))
    assert (refusal.outcome, refusal.pool, refusal.retry_at_ms) == (Outcome.ALL_RESERVED, "soup", T0 + MINUTE)
    await frozen.engine.release(TENANT, "first")
    await frozen.take("second", ("soup", 1))
    await frozen.pass_ms(MINUTE)
    await frozen.take("third", ("soup", 1))
    # Settling does not count the reservation against itself: cap 1, and the one unit is its own.
    settled = await frozen.engine.complete(TENANT, "third")
    assert (settled.outcome, settled.reservation.late, settled.reservation.over_cap) == (Outcome.COMPLETED, False, 0)
    assert await frozen.counts("soup") == (1, 0, 0)


@pytest.mark.parametrize("failing", [0, 1, 2])
async def test_all_claims_or_none(frozen: Frozen, failing: int) -> None:
    pools = ["gate", "dish", "extra"]
    for number, pool in enumerate(pools):
        await frozen.define(pool, 0 if number == failing else 5)
    before = await frozen.redis.hgetall(frozen.keys.tenant(TENANT))
    refusal = await frozen.refused("r1", *((pool, 1) for pool in pools))
    assert (refusal.outcome, refusal.pool) == (Outcome.SOLD_OUT, pools[failing])
    assert await frozen.redis.hgetall(frozen.keys.tenant(TENANT)) == before
    assert await frozen.redis.exists(frozen.keys.expiries(TENANT), frozen.keys.records(TENANT, "r1")) == 0


async def test_claims_on_one_pool_are_summed(frozen: Frozen) -> None:
    await frozen.define("dish", 3)
    await frozen.define("extra", 3)
    reservation = await frozen.take("r1", ("dish", 1), ("extra", 1), ("dish", 2))
    assert reservation.claims == (Claim("dish", 3), Claim("extra", 1))
    assert await frozen.counts("dish") == (0, 3, 0)
    refusal = await frozen.refused("r2", ("extra", 1), ("dish", 2), ("extra", 2))
    assert (refusal.outcome, refusal.pool) == (Outcome.ALL_RESERVED, "extra")


async def test_thirty_two_claims_are_taken_and_thirty_three_refused(frozen: Frozen) -> None:
    names = [f"pool-{number}" for number in range(33)]
    for name in names:
        await frozen.define(name, 1)
    reservation = await frozen.take("r1", *((name, 1) for name in names[:32]))
    assert len(reservation.claims) == 32
    assert [await frozen.counts(name) for name in names] == [(0, 1, 0)] * 32 + [(0, 0, 1)]
    with pytest.raises(Invalid):
        await frozen.reserve("r2", *((name, 1) for name in names))


async def test_pools_whose_names_begin_alike_do_not_mix(frozen: Frozen) -> None:
    names = ["a", "a/b", "a-b", "a@b", "ab", "A", "a."]
    for number, name in enumerate(names):
        await frozen.define(name, 10)
        await frozen.take(f"r{number}", (name, number + 1), ttl_ms=(number + 1) * SECOND)
    for number, name in enumerate(names):
        assert (await frozen.counts(name))[1] == number + 1
    await frozen.pass_ms(SECOND)
    assert [(await frozen.counts(name))[1] for name in names] == [0, 2, 3, 4, 5, 6, 7]


async def test_the_largest_numbers_stay_exact(frozen: Frozen) -> None:
    await frozen.define("grain", 1_000_000_000_000)
    for number in range(3):
        await frozen.take(f"r{number}", ("grain", 1_000_000))
    await frozen.engine.complete(TENANT, "r0")
    assert await frozen.counts("grain") == (1_000_000, 2_000_000, 999_997_000_000)


@pytest.mark.parametrize(
    ("now_ms", "ttl_ms", "expires_at_ms"),
    [
        (T0, 1000, T0 + 1000),
        (T0 + 1, 1000, T0 + 2000),
        (T0 + 999, 1000, T0 + 2000),
        (T0 + 1, 1999, T0 + 2000),
        (T0, 604_800_000, T0 + 604_800_000),
    ],
)
async def test_the_end_is_rounded_up_to_a_whole_second(
    frozen: Frozen, now_ms: int, ttl_ms: int, expires_at_ms: int
) -> None:
    await frozen.at(now_ms)
    await frozen.define("soup", 1)
    assert (await frozen.take("r1", ("soup", 1), ttl_ms=ttl_ms)).expires_at_ms == expires_at_ms
    await frozen.at(expires_at_ms - 1)
    assert (await frozen.engine.read(TENANT, "r1")).alive
    assert (await frozen.refused("r2", ("soup", 1))).retry_at_ms == expires_at_ms
    await frozen.at(expires_at_ms)
    ended = await frozen.engine.read(TENANT, "r1")
    assert (ended.status, ended.alive, ended.expired) == (ReservationStatus.RESERVED, False, True)
    await frozen.take("r2", ("soup", 1))


async def test_the_same_request_again_gets_the_present_state(frozen: Frozen) -> None:
    await frozen.define("soup", 2)
    first = await frozen.reserve("r1", ("soup", 1), customer="ada", metadata={"n": "1"})
    again = await frozen.reserve("r1", ("soup", 1), customer="ada", metadata={"n": "2"})
    assert (first.created, again.created) == (True, False)
    assert again.reservation == first.reservation
    await frozen.engine.complete(TENANT, "r1", "pay-1")
    after = (await frozen.reserve("r1", ("soup", 1), customer="ada")).reservation
    assert (after.status, after.payment_ref, after.version) == (ReservationStatus.COMPLETED, "pay-1", 2)
    assert await frozen.counts("soup") == (1, 0, 1)
    assert len(await frozen.entries()) == 3


@pytest.mark.parametrize("end", ["release", "expiry", "complete"])
async def test_an_id_is_not_granted_twice_after_its_end(frozen: Frozen, end: str) -> None:
    await frozen.define("soup", 2)
    await frozen.take("r1", ("soup", 1))
    if end == "expiry":
        await frozen.pass_ms(MINUTE)
    else:
        await getattr(frozen.engine, end)(TENANT, "r1")
    again = await frozen.reserve("r1", ("soup", 1))
    assert not again.created
    assert not again.reservation.alive
    assert (await frozen.counts("soup"))[1] == 0


async def test_other_content_under_the_same_id_is_a_conflict(frozen: Frozen) -> None:
    await frozen.define("soup", 9)
    await frozen.define("bread", 9)
    await frozen.take("r1", ("soup", 1), customer="ada")
    entries = len(await frozen.entries())
    for other in (
        request("r1", ("soup", 2), customer="ada"),
        request("r1", ("bread", 1), customer="ada"),
        request("r1", ("soup", 1), ("bread", 1), customer="ada"),
        request("r1", ("soup", 1), customer="bob"),
        request("r1", ("soup", 1)),
        request("r1", ("soup", 1), customer="ada", ttl_ms=MINUTE + 1),
    ):
        with pytest.raises(IdConflict):
            await frozen.engine.reserve(other)
    assert await frozen.counts("soup") == (0, 1, 8)
    assert await frozen.counts("bread") == (0, 0, 9)
    assert len(await frozen.entries()) == entries


async def test_a_refusal_is_not_remembered(frozen: Frozen) -> None:
    await frozen.define("soup", 1)
    await frozen.take("r1", ("soup", 1))
    await frozen.refused("r2", ("soup", 1))
    await frozen.engine.release(TENANT, "r1")
    # Under the same id, even with other content: nothing was kept of it.
    await frozen.take("r2", ("soup", 1), ttl_ms=2 * MINUTE)


async def test_one_id_many_times_at_once_is_one_reservation(frozen: Frozen) -> None:
    await frozen.define("soup", 5)
    answers = await asyncio.gather(*(frozen.reserve("r1", ("soup", 1)) for _ in range(50)))
    assert [answer.created for answer in answers].count(True) == 1
    assert {answer.reservation.created_at_ms for answer in answers} == {T0}
    assert await frozen.counts("soup") == (0, 1, 4)


async def test_a_tenant_without_pools_has_no_such_pool(frozen: Frozen) -> None:
    frozen.lookup.tenants.clear()
    refusal = await frozen.refused("r1", ("soup", 1))
    assert (refusal.outcome, refusal.pool) == (Outcome.UNKNOWN_POOL, "soup")
    assert not frozen.admitted.state.lost.is_set()


async def test_a_tenant_that_postgres_knows_and_redis_does_not_is_not_ready(frozen: Frozen) -> None:
    with pytest.raises(NotReady):
        await frozen.reserve("r1", ("soup", 1))
    assert frozen.admitted.state.lost.is_set()
    assert len(await frozen.entries()) == 1


async def test_a_definition_that_moved_on_is_stale(frozen: Frozen) -> None:
    await frozen.define("soup", 5)
    await frozen.define("soup", 6, status=PoolStatus.PAUSED)
    for rev in (1, 3):
        assert (await frozen.refused("r1", Claim("soup", 1, rev))).outcome is Outcome.STALE  # type: ignore[arg-type]
    assert (await frozen.refused("r1", Claim("soup", 1, 2))).outcome is Outcome.PAUSED  # type: ignore[arg-type]
    await frozen.define("soup", 6)
    await frozen.engine.reserve(request("r1", Claim("soup", 1, 3)))
    assert await frozen.counts("soup") == (0, 1, 5)


async def test_tenants_share_a_partition_and_nothing_else(frozen: Frozen) -> None:
    """The same pool, id and customer, on keys of the same slot and in one outbox."""
    await frozen.define("soup", 1, per_customer=1)
    frozen.lookup.tenants.add("kitchen")
    rules = replace((await frozen.engine.read_pool(TENANT, "soup")).definition, tenant="kitchen")
    await frozen.engine.define_pool(rules, first_of_tenant=True)
    mine = request("r1", ("soup", 1), customer="ada")
    for each in (mine, replace(mine, tenant="kitchen")):
        assert (await frozen.engine.reserve(each)).created
    await frozen.engine.complete("kitchen", "r1", "pay-1")
    assert await frozen.counts("soup") == (0, 1, 0)
    assert (await frozen.engine.read_pool("kitchen", "soup")).completed == 1
    assert (await frozen.engine.read(TENANT, "r1")).status is ReservationStatus.RESERVED
    assert [fields["t"] for _, fields in (await frozen.entries())[1:]] == [TENANT, "kitchen", "kitchen"]
    frozen.audited = False


async def test_a_full_outbox_takes_no_more_reservations_but_settles(frozen: Frozen) -> None:
    await frozen.define("soup", 3)
    await frozen.take("r1", ("soup", 1))
    await frozen.take("r2", ("soup", 1))
    frozen.admitted.state.full_partitions = frozenset({0})
    with pytest.raises(BacklogFull) as caught:
        await frozen.reserve("r3", ("soup", 1))
    assert caught.value.code == "backlog_full"
    await frozen.engine.complete(TENANT, "r1", "pay-1")
    await frozen.engine.release(TENANT, "r2")
    assert await frozen.counts("soup") == (1, 0, 2)
    frozen.admitted.state.full_partitions = frozenset({1})
    await frozen.take("r3", ("soup", 1))
