"""Nothing is granted by a server that was not admitted, nor by a script of an epoch that ended (case I4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from engine import scripts
from engine.admission import AdmissionState, Admitted
from engine.errors import NotReady, Unknown
from engine.redis_client import create_redis
from engine.reservations import ReservationEngine
from tests.admitted import TENANT
from tests.frozen import MINUTE, Frozen, request

Act = Callable[[ReservationEngine], Awaitable[object]]

TRANSITIONS: dict[str, Act] = {
    "reserve": lambda engine: engine.reserve(request("new", ("soup", 1))),
    "complete": lambda engine: engine.complete(TENANT, "r1", "pay-1"),
    "release": lambda engine: engine.release(TENANT, "r1"),
    "extend": lambda engine: engine.extend(TENANT, "r1", 10 * MINUTE),
    "cancel": lambda engine: engine.cancel(TENANT, "done", restock=True),
}
OTHERS: dict[str, Act] = {
    "read": lambda engine: engine.read(TENANT, "r1"),
    "read pool": lambda engine: engine.read_pool(TENANT, "soup"),
    "move clock": lambda engine: engine.move_clock(TENANT, 1),
    "remove pool": lambda engine: engine.remove_pool(TENANT, "soup", 1),
    "remove reservations": lambda engine: engine.remove_reservations(TENANT, [("r1", 1)]),
}


async def everything(redis: Redis) -> dict[str, str]:
    """All that the server holds, key by key."""
    client: Any = redis
    reads: dict[str, Callable[[str], Awaitable[object]]] = {
        "hash": client.hgetall,
        "zset": lambda key: client.zrange(key, 0, -1),
        "stream": client.xrange,
        "string": client.get,
    }
    return {key: str(await reads[await client.type(key)](key)) for key in sorted(await client.keys("*"))}


async def prepared(frozen: Frozen) -> None:
    await frozen.define("soup", 9)
    await frozen.take("r1", ("soup", 1))
    await frozen.take("done", ("soup", 1))
    await frozen.engine.complete(TENANT, "done")


@pytest.mark.parametrize("name", [*TRANSITIONS, *OTHERS])
async def test_flushed_scripts_stay_away_until_admission_loads_them(frozen: Frozen, name: str) -> None:
    await prepared(frozen)
    act = (TRANSITIONS | OTHERS)[name]
    before = await everything(frozen.redis)
    await frozen.redis.script_flush()
    state = frozen.admitted.state
    for _ in range(2):
        with pytest.raises(NotReady):
            await act(frozen.engine)
    assert state.lost.is_set()
    assert state.admitted is None
    assert await everything(frozen.redis) == before
    await scripts.load(frozen.redis, Admitted(1, 1), sandbox=True)
    state.admit(Admitted(1, 1))
    await act(frozen.engine)


@pytest.mark.parametrize("name", [*TRANSITIONS, *OTHERS])
async def test_a_flushed_server_grants_nothing(frozen: Frozen, name: str) -> None:
    """The scripts survive FLUSHALL; the tenant's mark does not."""
    await prepared(frozen)
    await frozen.redis.flushall()
    with pytest.raises(NotReady):
        await (TRANSITIONS | OTHERS)[name](frozen.engine)
    assert frozen.admitted.state.lost.is_set()
    assert await frozen.redis.keys("*") == []


async def test_a_first_pool_does_not_begin_a_tenant_on_a_server_that_lost_its_data(frozen: Frozen) -> None:
    await frozen.redis.flushall()
    with pytest.raises(NotReady):
        await frozen.define("soup", 1)
    assert await frozen.redis.keys("*") == []


async def test_a_later_pool_does_not_begin_a_tenant(frozen: Frozen) -> None:
    frozen.admitted.revision = 1
    with pytest.raises(NotReady):
        await frozen.define("soup", 1)
    frozen.admitted.revision = 0
    await frozen.define("soup", 1)
    assert await frozen.counts("soup") == (0, 0, 1)


@pytest.mark.parametrize("name", TRANSITIONS)
async def test_a_script_of_an_old_epoch_writes_nothing(frozen: Frozen, name: str) -> None:
    """It is still in the cache, and its keys are there; the stream refuses its entry, which is its first write."""
    await prepared(frozen)
    last = (await frozen.entries())[-1][0]
    assert await scripts.begin_epoch(frozen.redis, frozen.keys.outbox, frozen.keys.mark, last, Admitted(2, 1))
    before = await everything(frozen.redis)
    with pytest.raises(NotReady) as caught:
        await TRANSITIONS[name](frozen.engine)
    assert isinstance(caught.value.__cause__, ResponseError)
    assert frozen.admitted.state.admitted is None
    assert await everything(frozen.redis) == before
    frozen.audited = False


async def test_a_batch_of_an_old_epoch_writes_nothing(frozen: Frozen) -> None:
    await prepared(frozen)
    last = (await frozen.entries())[-1][0]
    assert await scripts.begin_epoch(frozen.redis, frozen.keys.outbox, frozen.keys.mark, last, Admitted(2, 1))
    before = await everything(frozen.redis)
    answers = await frozen.engine.reserve_many([request(f"n{n}", ("soup", 1)) for n in range(3)])
    assert [type(answer) for answer in answers] == [NotReady] * 3
    assert await everything(frozen.redis) == before
    frozen.audited = False


async def test_an_epoch_begins_only_at_the_end_that_admission_read(frozen: Frozen) -> None:
    await prepared(frozen)
    outbox, mark = frozen.keys.outbox, frozen.keys.mark
    entries = [entry for entry, _ in await frozen.entries()]
    before = await everything(frozen.redis)
    for expected in ("", entries[0], entries[-2], "1-99"):
        assert not await scripts.begin_epoch(frozen.redis, outbox, mark, expected, Admitted(2, 1))
    assert await everything(frozen.redis) == before
    assert await scripts.begin_epoch(frozen.redis, outbox, mark, entries[-1], Admitted(2, 3))
    assert (await frozen.entries())[-1] == ("2-0", {"k": "e", "b": "3"})
    assert await frozen.redis.get(mark) == "2"
    # Of two that admit at once, the second finds that the stream moved on.
    assert not await scripts.begin_epoch(frozen.redis, outbox, mark, entries[-1], Admitted(3, 3))
    with pytest.raises(ResponseError):
        await scripts.begin_epoch(frozen.redis, outbox, mark, "2-0", Admitted(1, 3))
    frozen.audited = False


async def test_the_next_epoch_goes_on_where_the_old_one_ended(frozen: Frozen) -> None:
    await prepared(frozen)
    last = (await frozen.entries())[-1][0]
    await scripts.begin_epoch(frozen.redis, frozen.keys.outbox, frozen.keys.mark, last, Admitted(2, 1))
    await scripts.load(frozen.redis, Admitted(2, 1), sandbox=True)
    state = AdmissionState()
    state.admit(Admitted(2, 1))
    redis = create_redis(frozen.admitted.settings)
    engine = ReservationEngine(redis, frozen.admitted.settings, state, frozen.lookup)
    await engine.reserve(request("new", ("soup", 1)))
    await engine.release(TENANT, "r1")
    assert [entry for entry, _ in await frozen.entries()][-3:] == ["2-0", "2-1", "2-2"]
    assert (await engine.read_pool(TENANT, "soup")).available == 7
    await redis.aclose()
    frozen.audited = False


@pytest.mark.parametrize("name", TRANSITIONS)
async def test_another_build_is_not_ready(frozen: Frozen, name: str) -> None:
    await prepared(frozen)
    await frozen.redis.hset(frozen.keys.tenant(TENANT), "!build", "2")
    before = await everything(frozen.redis)
    with pytest.raises(NotReady):
        await TRANSITIONS[name](frozen.engine)
    assert frozen.admitted.state.lost.is_set()
    assert await everything(frozen.redis) == before
    frozen.audited = False


async def test_a_process_that_is_not_admitted_asks_nothing_of_redis(frozen: Frozen) -> None:
    await prepared(frozen)
    frozen.admitted.state.revoke()
    for act in (TRANSITIONS | OTHERS).values():
        with pytest.raises(NotReady):
            await act(frozen.engine)


async def test_nobody_but_admission_loads_a_script(frozen: Frozen) -> None:
    await prepared(frozen)
    await frozen.redis.script_flush()
    answers = await asyncio.gather(
        *(act(frozen.engine) for act in (TRANSITIONS | OTHERS).values()), return_exceptions=True
    )
    assert {type(answer) for answer in answers} == {NotReady}
    shas = [scripts.sha_of(script, Admitted(1, 1), True) for script in scripts.ADMITTED_SCRIPTS]
    assert await frozen.redis.script_exists(*shas) == [False] * len(shas)
    with pytest.raises(NoScriptError):
        await frozen.redis.evalsha(shas[0], 1, "any")


async def test_an_unknown_reservation_is_asked_of_postgres_before_it_is_unknown(frozen: Frozen) -> None:
    await prepared(frozen)
    made = await frozen.engine.read(TENANT, "done")
    frozen.lookup.reservations[TENANT, "older"] = made
    found = await frozen.engine.read(TENANT, "older")
    assert (found.status, found.alive) == (made.status, False)
    with pytest.raises(Unknown):
        await frozen.engine.read(TENANT, "nobody")
