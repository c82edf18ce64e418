"""A rebuild writes what the scripts had written, field by field."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.admission import Admitted
from engine.domain import LatePayment, Outcome, PoolStatus, ReservationStatus
from engine.errors import NotReady, Refused
from engine.keys import BUILD_FIELD, CLOCK_FIELD
from persistence import rebuild
from tests.audit import Snapshot, audit, snapshot
from tests.conftest import RedisBackend
from tests.deployment import TENANT, Deployment, deployed
from tests.fuse import Fuse, Interrupted

HOUR_MS = 3_600_000


@pytest.fixture
async def process(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Deployment]:
    """In a sandbox, so that its clock can be moved past the end of reservations."""
    async with deployed(redis_backend.url, database_url, sandbox=True) as made:
        await made.define("seats", 100)
        await made.define("meals", 40, per_customer=6, late_payment=LatePayment.REFUND_IF_FULL)
        await made.define("hall/gate", None, closes_at_ms=4_000_000_000_000, status=PoolStatus.ACTIVE)
        yield made


async def _advance(process: Deployment, offset_ms: int) -> None:
    await process.change(
        "insert into sandbox_clock (id, offset_ms) values (1, :offset)"
        " on conflict (id) do update set offset_ms = :offset",
        offset=offset_ms,
    )
    await process.engine.move_clock(TENANT, offset_ms)


async def _busy_day(process: Deployment) -> None:
    """Something of everything: all states, limits, several claims, ends at several seconds, expired, late, refused."""
    engine = process.engine
    ann = {"customer": "ann|of, the % village", "metadata": {"z": "ä|,", "a": '"'}}
    await process.reserve("expired", ("seats", 3), ("meals", 2), ttl_ms=1000, **ann)
    await process.reserve("late", ("seats", 2), ("meals", 1), ttl_ms=2000, customer="bob")
    await _advance(process, 10_000)
    await engine.complete(TENANT, "late", "pay-late")
    claims = (("seats", 4), ("meals", 2), ("hall/gate", 1))
    await process.reserve("held", *claims, order_id="o1", code="A|B", period="2026-27", **ann)
    await process.reserve("held-too", ("seats", 1), ttl_ms=900_000)
    # Of one second with the one before, so that they share a bucket.
    await process.reserve("held-as-well", ("seats", 2), ttl_ms=900_000)
    await process.reserve("extended", ("seats", 1), ("meals", 1), customer="eve")
    await engine.extend(TENANT, "extended", 2 * HOUR_MS)
    await process.reserve("paid", ("seats", 7), ("meals", 3), **ann)
    await engine.complete(TENANT, "paid", "pay|1,%")
    await engine.complete(TENANT, "paid", "pay-2")
    await process.reserve("gone", ("seats", 5), ("meals", 2), customer="bob")
    await engine.release(TENANT, "gone")
    for identifier, restock in (("back", True), ("kept", False)):
        await process.reserve(identifier, ("seats", 6), ("meals", 2), customer="cat")
        await engine.complete(TENANT, identifier, f"pay-{identifier}")
        await engine.cancel(TENANT, identifier, restock=restock)
    await process.define("meals", 8, per_customer=6, late_payment=LatePayment.REFUND_IF_FULL)


def _seen(before: Snapshot) -> dict[str, object]:
    """What must be equal: everything but how far pools were swept, and holdings that count no more."""
    now_live = set(before.buckets)
    counters = {}
    for name, text in before.counters.items():
        units, *holdings = text.split(";")
        pool = name.partition("||")[0]
        live = sorted(one for one in holdings if (pool, int(one.rpartition(":")[2])) in now_live)
        if units != "0" or live:
            counters[name] = (units, live)
    return {
        "pools": {name: (pool.state, pool.first_s) for name, pool in before.pools.items()},
        "buckets": before.buckets,
        "members": before.members,
        "counters": counters,
        "records": before.records,
    }


async def test_equals_what_the_scripts_had_written(process: Deployment) -> None:
    await _busy_day(process)
    # Whoever reads a pool sweeps it, so that nothing due is left in what is compared.
    await process.engine.read_pools(TENANT, ["seats", "meals", "hall/gate"])
    await process.persister.drain()
    before = await snapshot(process.redis, process.keys(), TENANT)
    statuses = {reservation.status for reservation in before.records.values()}
    assert statuses == set(ReservationStatus)
    pools = await process.engine.read_pools(TENANT, ["seats", "meals", "hall/gate"])

    await process.redis.flushall()
    await process.admission.ensure()

    assert process.admitted == Admitted(2, 2)
    after = await snapshot(process.redis, process.keys(), TENANT)
    assert _seen(after) == _seen(before)
    audit(after)
    fields = await process.redis.hgetall(process.keys().tenant(TENANT))
    assert (fields[BUILD_FIELD], fields[CLOCK_FIELD]) == ("2", "10000")
    assert await process.engine.read_pools(TENANT, ["seats", "meals", "hall/gate"]) == pools


async def test_everything_goes_on_from_there(process: Deployment) -> None:
    """Transitions on what was rebuilt count as on what was never lost."""
    await _busy_day(process)
    await process.persister.drain()
    await process.redis.flushall()
    await process.admission.ensure()
    engine = process.engine

    assert not (await process.reserve("held-too", ("seats", 1), ttl_ms=900_000)).created
    with pytest.raises(Refused, match="limit_reached"):
        await process.reserve("more", ("meals", 2), customer="ann|of, the % village")
    assert (await engine.complete(TENANT, "paid", "pay|1,%")).outcome is Outcome.ALREADY_COMPLETED
    assert (await engine.complete(TENANT, "held", "pay-held")).outcome is Outcome.COMPLETED
    assert (await engine.release(TENANT, "extended")).outcome is Outcome.RELEASED
    # The meals are all sold, and their owner wants late payments back then.
    assert (await engine.complete(TENANT, "expired", "pay-expired")).outcome is Outcome.REFUND_DUE
    await _advance(process, HOUR_MS)
    await engine.read_pools(TENANT, ["seats", "meals", "hall/gate"])
    audit(await snapshot(process.redis, process.keys(), TENANT))
    assert await process.persister.drain() > 0


async def test_many_tenants_and_more_than_one_send(process: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "FIELDS_IN_ONE_SEND", 7)
    tenants = [f"shop-{number}" for number in range(5)]
    for tenant in tenants:
        await process.define("table", 50, tenant=tenant)
        await asyncio.gather(
            *(process.reserve(f"r{n}", ("table", 1), tenant=tenant, ttl_ms=(n + 60) * 1000) for n in range(20))
        )
    await process.persister.drain()
    await process.redis.flushall()
    await process.admission.ensure()
    for tenant in tenants:
        seen = await snapshot(process.redis, process.keys(tenant), tenant)
        audit(seen)
        assert (len(seen.records), seen.pools["table"].state.reserved) == (20, 20)


async def test_what_ended_long_ago_stays_in_postgres_and_still_counts(process: Deployment) -> None:
    await process.reserve("old", ("seats", 3))
    await process.engine.complete(TENANT, "old", "pay-1")
    await process.reserve("expired", ("seats", 1))
    await process.persister.drain()
    week_and_hour_ms = process.settings.retention_seconds * 1000 + HOUR_MS
    await _advance(process, week_and_hour_ms)
    await process.redis.flushall()
    await process.admission.ensure()

    seen = await snapshot(process.redis, process.keys(), TENANT)
    assert seen.records == {}
    assert seen.pools["seats"].state.completed == 3
    assert (await process.engine.read(TENANT, "old")).status is ReservationStatus.COMPLETED
    assert (await process.engine.complete(TENANT, "old", "pay-2")).outcome is Outcome.DUPLICATE_PAYMENT


async def test_interrupted_at_any_call(
    redis_backend: RedisBackend, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever call is the last one of an admission, nothing is granted, and the next one ends with the same data."""
    async with deployed(redis_backend.url, database_url, partitions=1, sandbox=True) as process:
        await process.define("seats", 100)
        await process.define("meals", 40, per_customer=6, late_payment=LatePayment.REFUND_IF_FULL)
        await process.define("hall/gate", None)
        await _busy_day(process)
        await process.engine.read_pools(TENANT, ["seats", "meals", "hall/gate"])
        await process.persister.drain()
        before = _seen(await snapshot(process.redis, process.keys(), TENANT))
        fuse = Fuse(monkeypatch)
        for allowed in range(200):
            await process.redis.flushall()
            fuse.left = allowed
            try:
                await process.admission.ensure()
            except Interrupted:
                fuse.left = None
                was_admitted = process.state.admitted is not None and process.admitted.epoch == await _newest(process)
                if not was_admitted:
                    with pytest.raises(NotReady):
                        await process.reserve("too-early", ("seats", 1))
                await process.admission.ensure()
            fell = fuse.left is None
            fuse.left = None
            seen = await snapshot(process.redis, process.keys(), TENANT)
            assert _seen(seen) == before, allowed
            if not fell:
                break
        assert allowed > 20
        assert not fell


async def _newest(process: Deployment) -> int:
    return int((await process.rows("select max(epoch) as epoch from redis_epochs"))[0].epoch)
