"""The persister: folding, the fence, what is set aside, gaps, and being killed at any line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from engine.domain import Outcome, ReservationStatus
from engine.errors import StorageUnavailable
from engine.keys import partition_of
from engine.redis_client import create_redis
from persistence import applying
from persistence.applying import batch_of, store_batch
from persistence.outbox import EntryId, last_ids, read_entries
from persistence.persister import PERSISTER_JOB, Persister
from persistence.repositories.offsets import OffsetMoved, load_offsets
from persistence.repositories.reservations import find_reservation
from persistence.repositories.set_aside import ID_GRANTED_TWICE
from tests.conftest import RedisBackend
from tests.deployment import TENANT, Deployment, deployed, eventually, in_background


@pytest.fixture
async def process(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Deployment]:
    async with deployed(redis_backend.url, database_url) as made:
        await made.define("seats", 1000)
        yield made


async def _stored(process: Deployment) -> dict[str, tuple[str, int]]:
    return {row.id: (row.status, row.version) for row in await process.rows("select * from reservations")}


async def _offset(process: Deployment, tenant: str = TENANT) -> EntryId:
    async with process.database.connect() as connection:
        return (await load_offsets(connection))[partition_of(tenant, process.settings.partitions)]


async def _append(process: Deployment, fields: dict[str | bytes, str | bytes]) -> str:
    """Put an entry of one's own behind the last one; answers its id."""
    return str(await process.redis.xadd(process.keys().outbox, fields, id=f"{process.admitted.epoch}-*"))


async def test_one_row_per_reservation_at_its_newest_version(process: Deployment) -> None:
    await process.define("meals", 50, per_customer=5)
    await process.reserve("a", ("seats", 2), ("meals", 3), customer="ann|of, x%", metadata={"z": "1", "a": "é"})
    await process.engine.extend(TENANT, "a", 900_000)
    await process.engine.complete(TENANT, "a", "pay|1,")
    await process.reserve("b", ("seats", 1))
    await process.engine.release(TENANT, "b")

    assert await process.persister.drain() == 5

    assert await _stored(process) == {"a": ("completed", 3), "b": ("released", 2)}
    async with process.database.connect() as connection:
        found = await find_reservation(connection, TENANT, "a")
    # The clock and the epoch of an answer are Redis's alone.
    assert found == replace(await process.engine.read(TENANT, "a"), now_ms=0, counts=True, epoch=0)
    assert await _offset(process) == EntryId(process.admitted.epoch, 5)
    assert await process.redis.get(process.keys().committed) == f"{process.admitted.epoch}-5"


async def test_nothing_is_missing_after_the_persister_was_away(process: Deployment) -> None:
    identifiers = [f"r{number}" for number in range(1300)]
    await asyncio.gather(*(process.reserve(one, ("seats", 1)) for one in identifiers[:1000]))
    await asyncio.gather(*(process.engine.complete(TENANT, one) for one in identifiers[:100]))

    assert await process.persister.drain() == 1100

    stored = await _stored(process)
    assert len(stored) == 1000
    assert sum(status == "completed" for status, _ in stored.values()) == 100


async def test_whoever_comes_second_stores_nothing(process: Deployment) -> None:
    await process.reserve("a", ("seats", 1))
    start = await _offset(process)
    partition = process.keys().partition
    read = await read_entries(process.redis, {partition: process.keys().outbox}, {partition: start}, 100)
    stale = batch_of({partition: start}, read[partition])
    await process.persister.drain()
    await process.change("update reservations set version = 7")

    with pytest.raises(OffsetMoved):
        await store_batch(process.database, stale)

    assert await _stored(process) == {"a": ("reserved", 7)}


async def test_two_at_once_store_each_entry_once(process: Deployment) -> None:
    others = [process.persister, process.another_persister()]
    await asyncio.gather(*(process.reserve(f"r{number}", ("seats", 1)) for number in range(1000)))
    await process.change("create table seen (at text)")
    await process.change(
        "create function see() returns trigger language plpgsql as $$"
        " begin insert into seen values (new.seq::text); return new; end $$"
    )
    await process.change("create trigger see after update on outbox_offsets for each row execute function see()")

    stored = await asyncio.gather(*(persister.drain() for persister in others))

    assert sum(stored) == 1000
    assert len(await _stored(process)) == 1000
    steps = [int(row.at) for row in await process.rows("select at from seen")]
    assert len(steps) == len(set(steps))
    assert max(steps) == 1000


@pytest.mark.parametrize("line", ["before the commit", "after the commit"])
async def test_killed_at_the_commit(process: Deployment, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    await process.reserve("a", ("seats", 1))
    await process.engine.complete(TENANT, "a", "pay-1")

    class Killed(BaseException):
        pass

    async def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        if line == "before the commit":
            patched.setattr(applying, "add_set_aside", die)
        else:
            # The first write of committed offsets comes with loading the place, before anything is stored.
            assert await process.persister.drain() == 2
            await process.reserve("b", ("seats", 1))
            patched.setattr(Persister, "_tell_committed", die)
        with pytest.raises(Killed):
            await process.persister.step(block_ms=None)

    after_kill = await _stored(process)
    assert ("b" in after_kill) is (line == "after the commit")
    assert await process.another_persister().drain() == (2 if line == "before the commit" else 0)
    assert (await _stored(process))["a"] == ("completed", 2)
    assert await process.redis.get(process.keys().committed) == str(await _offset(process))
    assert not await process.rows("select * from set_aside_entries")


RECORD = "R|1|1000|1000||||||1|||600000|00|seats:1|ann||||"

BROKEN: dict[str, dict[str | bytes, str | bytes]] = {
    "no record": {"k": "r", "t": TENANT, "i": "x"},
    "no kind": {"t": TENANT, "i": "x", "r": RECORD},
    "another kind": {"k": "z"},
    "half a record": {"k": "r", "t": TENANT, "i": "x", "r": RECORD[:30]},
    "a status that is none": {"k": "r", "t": TENANT, "i": "x", "r": "Z" + RECORD[1:]},
    "no units": {"k": "r", "t": TENANT, "i": "x", "r": RECORD.replace("seats:1", "seats:0")},
    "a number beyond every column": {"k": "r", "t": TENANT, "i": "x", "r": RECORD.replace("600000", "9" * 30)},
    "a number beyond its column": {"k": "r", "t": TENANT, "i": "x", "r": RECORD.replace("|1|", f"|{2**40}|", 1)},
    "a NUL": {"k": "r", "t": TENANT, "i": "x", "r": RECORD.replace("ann", "a\x00n")},
    "a NUL in a name": {"k": "r", "t": TENANT, "i": "x", "r": "", "\x00": "\x00"},
    "no UTF-8": {"k": "r", "t": TENANT, "i": b"\xff\xfe", "r": b"\xc3("},
    "metadata that is none": {"k": "r", "t": TENANT, "i": "x", "r": RECORD.replace("ann|", "ann|{")},
    "an outcome that is none": {"k": "r", "t": TENANT, "i": "x", "r": RECORD, "s": "s1", "o": "perhaps"},
}


async def test_broken_entries_are_set_aside_and_the_rest_flows(process: Deployment) -> None:
    ids = {}
    for number, (kind, fields) in enumerate(BROKEN.items()):
        await process.reserve(f"good-{number}", ("seats", 1))
        ids[await _append(process, fields)] = kind
    await process.engine.complete(TENANT, "good-0")

    assert await process.persister.drain() == 2 * len(BROKEN) + 1

    stored = await _stored(process)
    assert stored.pop("good-0") == ("completed", 2)
    assert stored == {f"good-{number}": ("reserved", 1) for number in range(1, len(BROKEN))}
    aside = await process.rows("select * from set_aside_entries")
    assert {ids.get(f"{row.epoch}-{row.seq}") for row in aside} == set(BROKEN)
    assert len(aside) == len(BROKEN)
    assert all(row.reason and row.fields and row.resolved_at is None for row in aside)


async def test_a_broken_entry_alone_is_passed(process: Deployment) -> None:
    await _append(process, BROKEN["no units"])
    assert await process.persister.drain() == 1
    assert await process.persister.drain() == 0
    assert len(await process.rows("select from set_aside_entries")) == 1


async def test_a_gap_stops_its_partition_alone(process: Deployment) -> None:
    other = next(
        name
        for name in map("shop{}".format, range(100))
        if partition_of(name, process.settings.partitions) != process.keys().partition
    )
    await process.define("seats", 10, tenant=other)
    for identifier in ("a", "b", "c"):
        await process.reserve(identifier, ("seats", 1))
    assert await process.redis.xdel(process.keys().outbox, f"{process.admitted.epoch}-2") == 1
    await process.reserve("elsewhere", ("seats", 1), tenant=other)
    stop = asyncio.Event()

    async def told() -> bool:
        return bool(await process.rows("select from job_runs where job = :job and failures > 0", job=PERSISTER_JOB))

    async with in_background(process.persister.run(stop)):
        await eventually(told)

    assert set(await _stored(process)) == {"a", "elsewhere"}
    assert await _offset(process) == EntryId(process.admitted.epoch, 1)
    (run,) = await process.rows("select * from job_runs where job = :job", job=PERSISTER_JOB)
    assert f"partition {process.keys().partition} after {process.admitted.epoch}-1" in run.last_error


async def test_an_older_version_never_replaces_a_newer_one(process: Deployment) -> None:
    """A Postgres that lost its last seconds is told again, from where it stands."""
    await process.reserve("a", ("seats", 1))
    await process.reserve("lost", ("seats", 1))
    await process.persister.drain()
    await process.engine.complete(TENANT, "a")
    await process.persister.drain()
    before = await _stored(process)
    await process.change("update outbox_offsets set seq = 0")
    await process.change("delete from reservations where id = 'lost'")

    assert await process.another_persister().drain() == 3

    assert await _stored(process) == before
    assert len(await process.rows("select * from reservation_claims")) == 2


async def test_an_old_entry_alone_changes_nothing(process: Deployment) -> None:
    await process.reserve("a", ("seats", 1))
    start = await _offset(process)
    partition = process.keys().partition
    read = await read_entries(process.redis, {partition: process.keys().outbox}, {partition: start}, 100)
    await process.engine.complete(TENANT, "a")
    await process.persister.drain()
    await process.change("update outbox_offsets set seq = 0")

    await store_batch(process.database, batch_of({partition: start}, read[partition]))

    assert await _stored(process) == {"a": ("completed", 2)}


async def test_the_running_persister_notices_that_postgres_stepped_back(process: Deployment) -> None:
    await process.reserve("a", ("seats", 1))
    await process.persister.drain()
    await process.change("update outbox_offsets set seq = 0")
    await process.change("delete from reservations")
    await process.reserve("b", ("seats", 1))

    assert await process.persister.drain() == 2

    assert set(await _stored(process)) == {"a", "b"}


@pytest.mark.parametrize("pays", [False, True])
async def test_an_id_granted_twice_is_released(process: Deployment, pays: bool) -> None:
    await process.reserve("a", ("seats", 3))
    await process.engine.complete(TENANT, "a")
    await process.persister.drain()
    # A week later Redis has forgotten the id.
    await process.redis.hdel(process.keys().records(TENANT, "a"), "a")
    again = await process.reserve("a", ("seats", 5), customer="bob")
    assert again.created
    if pays:
        assert (await process.engine.complete(TENANT, "a")).outcome is Outcome.COMPLETED

    await process.persister.drain()
    await process.persister.drain()

    assert await _stored(process) == {"a": ("completed", 2)}
    pool = await process.engine.read_pool(TENANT, "seats")
    assert (pool.completed, pool.reserved) == (3, 0)
    aside = await process.rows("select * from set_aside_entries")
    assert {row.reason for row in aside} == {ID_GRANTED_TWICE}
    assert len(aside) == (3 if pays else 2)
    assert all(row.resolved_at is not None for row in aside)
    now = await process.engine.read(TENANT, "a")
    assert now.status is (ReservationStatus.CANCELLED if pays else ReservationStatus.RELEASED)


async def test_a_repeat_is_released_by_whoever_persists_next(process: Deployment) -> None:
    await process.reserve("a", ("seats", 3))
    await process.persister.drain()
    await process.redis.hdel(process.keys().records(TENANT, "a"), "a")
    await process.reserve("a", ("seats", 5))
    # This one, like a persister that dies here, has nothing to release with.
    await process.another_persister().drain()
    assert (await process.engine.read_pool(TENANT, "seats")).reserved == 8

    await process.another_persister(releases=True).drain()

    # The first grant's bucket was never its own to give back: only the repeat's units return.
    assert (await process.engine.read_pool(TENANT, "seats")).reserved == 3


async def test_trimming_stays_behind_postgres(redis_backend: RedisBackend, database_url: str) -> None:
    async with deployed(redis_backend.url, database_url, trim_behind_seconds=0) as process:
        await process.define("seats", None)
        outbox = process.keys().outbox
        stop = asyncio.Event()
        for round_ in range(6):
            await asyncio.gather(*(process.reserve(f"{round_}-{number}", ("seats", 1)) for number in range(300)))
        total = await process.redis.xlen(outbox)

        async def trimmed() -> bool:
            return int(await process.redis.xlen(outbox)) < total - 1000

        async with in_background(process.persister.run(stop)):
            await eventually(trimmed)
        await process.reserve("last", ("seats", 1))
        (tail,) = await last_ids(process.redis, [outbox])

        assert tail == EntryId(process.admitted.epoch, 1801)
        assert await process.persister.drain() == 1
        assert len(await _stored(process)) == 1801


async def test_postgres_away_and_back(process: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    await process.reserve("a", ("seats", 1))
    failures = 2

    async def away(*arguments: object) -> list[object]:
        nonlocal failures
        if failures:
            failures -= 1
            raise StorageUnavailable
        return await store_batch(*arguments)  # type: ignore[arg-type,return-value]

    monkeypatch.setattr("persistence.persister.store_batch", away)
    stop = asyncio.Event()

    async def there() -> bool:
        return bool(await _stored(process))

    async with in_background(process.persister.run(stop)):
        await eventually(there)
    assert failures == 0


async def test_stops_when_asked_and_leaves_its_lock(process: Deployment) -> None:
    stop = asyncio.Event()
    first = asyncio.create_task(process.persister.run(stop))
    await process.reserve("a", ("seats", 1))

    async def there() -> bool:
        return bool(await _stored(process))

    await eventually(there)
    stop.set()
    await asyncio.wait_for(first, 10)

    async def is_free() -> bool:
        query = "select from pg_locks join pg_database as d on d.oid = database where locktype = 'advisory'"
        return not await process.rows(query + " and d.datname = current_database()")

    await eventually(is_free)


async def test_a_reader_of_its_own_waits_for_entries(process: Deployment) -> None:
    reader = create_redis(process.settings, blocking=True)
    persister = Persister(process.settings, process.database, reader, process.state)
    await persister.drain()
    waiting = asyncio.create_task(persister.step(block_ms=10_000))
    await asyncio.sleep(0)
    await process.reserve("a", ("seats", 1))
    assert await asyncio.wait_for(waiting, 9) == 1
    await reader.aclose()
