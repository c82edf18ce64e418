"""An admitted engine whose scripts go by a clock that stands still, so that a test can be exact to the millisecond.

Every call is held against the script's header on the way: a reply word that the header does not name fails the test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
from redis.asyncio import Redis

from engine import scripts
from engine.domain import Claim, Granted, Outcome, PoolState, Refusal, Reservation, ReservationRequest
from engine.errors import Refused
from engine.keys import CLOCK_FIELD, Keys
from engine.reservations import ReservationEngine
from tests.admitted import TENANT, AdmittedEngine, Lookup, admitted_engine

T0 = 1_800_000_000_000
"""Where the clock stands at first, ms: a whole second, 15 January 2027 08:00 UTC."""

SECOND = 1000
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE

_FROZEN_CLOCK = f"""
local function read_clock(tenant_key)
  return tonumber(redis.call('HGET', tenant_key, '{CLOCK_FIELD}') or {T0})
end
"""


_BUDGET = "local SWEEP_BUDGET = 1000\n"


@contextmanager
def frozen_scripts(sweep_budget: int | None = None) -> Iterator[None]:
    """While this lasts, the sandbox's scripts take the stored clock for the time itself.

    With ``sweep_budget`` one run drops that few buckets, so that a handful of them is already too many for one.
    """
    original = scripts._source

    def source(path: str) -> str:
        if path == "includes/clock_sandbox.lua":
            return _FROZEN_CLOCK
        text = original(path)
        if path == "includes/pools.lua" and sweep_budget is not None:
            assert _BUDGET in text
            return text.replace(_BUDGET, f"local SWEEP_BUDGET = {sweep_budget}\n")
        return text

    def forget() -> None:
        scripts.composed.cache_clear()
        scripts.sha_of.cache_clear()

    forget()
    with patch.object(scripts, "_source", source):
        yield
    forget()


@dataclass
class Frozen:
    """What a test of the rules works with: an engine, its Redis, and a clock."""

    admitted: AdmittedEngine
    now_ms: int = T0
    drops: list[int] = field(default_factory=list)
    """Buckets dropped by each call, while :meth:`watch_drops` is in force."""
    watching: bool = False
    audited: bool = True
    """Cleared by a test whose records are too many to be read again one by one."""
    forgotten: bool = False
    """Set by a test that removes records or pools, or damages them: sums over records then lack some."""

    @property
    def engine(self) -> ReservationEngine:
        return self.admitted.engine

    @property
    def redis(self) -> Redis:
        return self.admitted.redis

    @property
    def keys(self) -> Keys:
        return self.admitted.keys

    @property
    def lookup(self) -> Lookup:
        return self.admitted.lookup

    async def at(self, now_ms: int) -> None:
        """Set the clock; it may go back."""
        self.now_ms = now_ms
        await self.admitted.set_clock(now_ms)

    async def pass_ms(self, ms: int) -> None:
        """Move the clock by so much."""
        await self.at(self.now_ms + ms)

    async def define(self, pool: str, cap: int | None, **rest: Any) -> PoolState:
        """Define a pool under the next revision."""
        return await self.admitted.define(pool, cap, **rest)

    async def reserve(self, identifier: str, *claims: tuple[str, int], **rest: Any) -> Granted:
        """Reserve; raises what the engine raises."""
        return await self.engine.reserve(request(identifier, *claims, **rest))

    async def take(self, identifier: str, *claims: tuple[str, int], **rest: Any) -> Reservation:
        """Reserve, and expect to get it."""
        granted = await self.reserve(identifier, *claims, **rest)
        assert granted.created
        return granted.reservation

    async def refused(self, identifier: str, *claims: tuple[str, int], **rest: Any) -> Refusal:
        """Reserve, and expect a refusal that writes nothing to the outbox."""
        before = await self.redis.xlen(self.keys.outbox)
        with pytest.raises(Refused) as caught:
            await self.reserve(identifier, *claims, **rest)
        assert await self.redis.xlen(self.keys.outbox) == before
        return caught.value.refusal

    async def take_late(self, identifier: str, payments: Sequence[str]) -> None:
        """Let a minute pass, then pay; each payment is refused."""
        await self.pass_ms(MINUTE)
        for payment in payments:
            assert (await self.engine.complete(TENANT, identifier, payment)).outcome is Outcome.REFUND_DUE

    async def counts(self, pool: str) -> tuple[int, int, int | None]:
        """Completed, reserved and available of a pool, as it reads now."""
        state = await self.engine.read_pool(TENANT, pool)
        return state.completed, state.reserved, state.available

    async def entries(self) -> list[tuple[str, dict[str, str]]]:
        """All outbox entries, the first of the epoch included."""
        found: Any = await self.redis.xrange(self.keys.outbox)
        return list(found)

    async def record(self, identifier: str) -> str | None:
        """A reservation's record as Redis holds it."""
        found: Any = await self.redis.hget(self.keys.records(TENANT, identifier), identifier)
        return None if found is None else str(found)

    def watch_drops(self) -> None:
        """From now on note how many buckets each call drops."""
        self.watching = True
        self.drops.clear()


def request(identifier: str, *claims: tuple[str, int] | Claim, ttl_ms: int = MINUTE, **rest: Any) -> ReservationRequest:
    """A request of the test's tenant, for a minute unless said otherwise."""
    made = tuple(claim if isinstance(claim, Claim) else Claim(*claim) for claim in claims)
    return ReservationRequest(TENANT, identifier, made, ttl_ms, **rest)


def _words(reply: Any) -> set[str]:
    return {str(each).partition("|")[0] for each in (reply if isinstance(reply, list) else [reply])}


def _check_calls(frozen: Frozen) -> None:
    """Compare each call with the header of its script, and count the buckets that it drops when asked to."""
    redis: Any = frozen.redis
    original, admitted = redis.evalsha, frozen.admitted.state.admitted
    assert admitted is not None
    by_sha = {scripts.sha_of(script, admitted, True): script for script in scripts.ADMITTED_SCRIPTS}

    async def evalsha(sha: str, numkeys: int, *rest: str) -> Any:
        script = by_sha[sha]
        expiries = frozen.keys.expiries(TENANT)
        before = set(await redis.zrange(expiries, 0, -1)) if frozen.watching else set()
        reply = await original(sha, numkeys, *rest)
        if frozen.watching:
            frozen.drops.append(len(before - set(await redis.zrange(expiries, 0, -1))))
        assert _words(reply) <= script.replies, f"{script.name} answered {reply}"
        return reply

    redis.evalsha = evalsha


@asynccontextmanager
async def frozen_engine(url: str, *, sweep_budget: int | None = None, **settings: object) -> AsyncIterator[Frozen]:
    """An engine on an admitted, empty Redis, its clock standing at ``T0``."""
    with frozen_scripts(sweep_budget):
        async with admitted_engine(url, **settings) as admitted:
            frozen = Frozen(admitted)
            _check_calls(frozen)
            await frozen.at(T0)
            yield frozen
