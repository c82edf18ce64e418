"""The whole state of one tenant read from Redis, and the sums that must agree in it whatever happened before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from redis.asyncio import Redis

from engine.domain import PoolState, Reservation, ReservationStatus
from engine.keys import BUILD_FIELD, CLOCK_FIELD, RECORD_SHARDS, Keys
from engine.records import bucket, decode_pool, decode_reservation, encode_definition, encode_pool, encode_reservation

KEEPS_UNITS = (ReservationStatus.COMPLETED, ReservationStatus.CANCELLED)


@dataclass(frozen=True)
class StoredPool:
    """A pool's field: what every reader may see, and what only the sweep needs."""

    state: PoolState
    first_s: int
    swept_to_s: int


@dataclass(frozen=True)
class Snapshot:
    """Everything that Redis holds of one tenant, and its partition's outbox."""

    pools: dict[str, StoredPool]
    buckets: dict[tuple[str, int], int]
    members: list[str]
    counters: dict[str, str]
    records: dict[str, Reservation]
    entries: list[tuple[str, dict[str, str]]]


async def snapshot(redis: Redis, keys: Keys, tenant: str) -> Snapshot:
    """Read it all; strings that do not come back the same from the codec fail here."""
    pipeline = redis.pipeline(transaction=True)
    pipeline.hgetall(keys.tenant(tenant))
    pipeline.zrange(keys.expiries(tenant), 0, -1)
    pipeline.xrange(keys.outbox)
    for shard in range(RECORD_SHARDS):
        pipeline.hgetall(keys.records_shard(tenant, shard))
    fields, members, entries, *shards = await pipeline.execute()
    pools, buckets, counters = {}, {}, {}
    for name, text in fields.items():
        pool, bar, rest = name.partition("|")
        if name in (BUILD_FIELD, CLOCK_FIELD):
            continue
        if not bar:
            pools[pool] = _stored_pool(tenant, pool, text)
        elif rest.startswith("|"):
            counters[name] = text
        else:
            buckets[pool, int(rest)] = int(text)
    records = {}
    for shard in shards:
        for identifier, text in shard.items():
            records[identifier] = decode_reservation(tenant, identifier, text)
            assert encode_reservation(records[identifier]) == text
    return Snapshot(pools, buckets, members, counters, records, entries)


def _stored_pool(tenant: str, pool: str, text: str) -> StoredPool:
    reserved, first, completed, swept_to, _ = text.split("|", 4)
    state = decode_pool(tenant, pool, text)
    assert (
        encode_pool(encode_definition(state.definition), int(completed), int(reserved), int(first), int(swept_to))
        == text
    )
    return StoredPool(state, int(first), int(swept_to))


def audit(seen: Snapshot, *, forgotten: bool = False) -> None:
    """Hold the sums. ``forgotten`` says that records or pools were removed, so sums over records may lack some."""
    _audit_buckets(seen)
    if not forgotten:
        _audit_counts(seen)
        _audit_counters(seen)
    _audit_outbox(seen)


def _audit_buckets(seen: Snapshot) -> None:
    assert seen.members == sorted(bucket(pool, second) for pool, second in seen.buckets)
    assert all(units > 0 for units in seen.buckets.values())
    for name, pool in seen.pools.items():
        seconds = [second for of, second in seen.buckets if of == name]
        assert pool.state.completed >= 0
        assert pool.state.reserved == sum(units for (of, _), units in seen.buckets.items() if of == name)
        assert pool.first_s == min(seconds, default=0)
        assert all(second > pool.swept_to_s for second in seconds)


def still_counted(seen: Snapshot, reservation: Reservation, pool: str) -> bool:
    """Whether a reservation's claim on a pool is still in its reserved count."""
    swept_to_s = seen.pools[pool].swept_to_s if pool in seen.pools else 0
    return reservation.status is ReservationStatus.RESERVED and reservation.expires_at_ms // 1000 > swept_to_s


def _audit_counts(seen: Snapshot) -> None:
    counted: Counter[tuple[str, int]] = Counter()
    completed: Counter[str] = Counter()
    for reservation in seen.records.values():
        for claim in reservation.claims:
            if still_counted(seen, reservation, claim.pool):
                counted[claim.pool, reservation.expires_at_ms // 1000] += claim.quantity
            if reservation.status in KEEPS_UNITS and not reservation.restocked:
                completed[claim.pool] += claim.quantity
    assert dict(counted) == seen.buckets
    assert {name: pool.state.completed for name, pool in seen.pools.items()} == {
        name: completed[name] for name in seen.pools
    }


def _audit_counters(seen: Snapshot) -> None:
    completed: Counter[str] = Counter()
    held: dict[str, set[str]] = {}
    for reservation in seen.records.values():
        for claim, counted in zip(reservation.claims, reservation.counted, strict=True):
            if not counted:
                continue
            assert reservation.customer is not None
            counter = Keys.customer_field(claim.pool, reservation.customer)
            if reservation.status in KEEPS_UNITS and not reservation.restocked:
                completed[counter] += claim.quantity
            if still_counted(seen, reservation, claim.pool):
                second = reservation.expires_at_ms // 1000
                held.setdefault(counter, set()).add(f"{reservation.id}:{claim.quantity}:{second}")
    for counter in {*completed, *held, *seen.counters}:
        units, *holdings = seen.counters.get(counter, "0").split(";")
        assert int(units) == completed[counter], counter
        # Holdings of reservations that expired may still stand there; they count no more.
        assert held.get(counter, set()) <= set(holdings), counter
        assert len(holdings) == len(set(holdings))


def _audit_outbox(seen: Snapshot) -> None:
    ids = [entry for entry, _ in seen.entries]
    epoch = ids[0].partition("-")[0]
    assert ids == [f"{epoch}-{sequence}" for sequence in range(len(ids))], "the outbox has a gap"
    assert seen.entries[0][1]["k"] == "e"
    latest: dict[str, Reservation] = {}
    for _, fields in seen.entries[1:]:
        assert fields["k"] == "r"
        told = decode_reservation(fields["t"], fields["i"], fields["r"])
        before = latest.get(told.id)
        if before is not None:
            repeats = bool(fields.get("s")) and told == before
            assert told.version == before.version + 1 or repeats, "an entry skips or repeats a version"
        latest[told.id] = told
    for identifier, told in latest.items():
        if identifier in seen.records:
            assert seen.records[identifier] == told, "the last entry is not what Redis holds"
