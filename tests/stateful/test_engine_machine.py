"""The engine against a plain model, over random operations, clock moves in both directions and script flushes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine import scripts
from engine.admission import Admitted
from engine.domain import (
    Claim,
    Granted,
    LatePayment,
    PoolDefinition,
    PoolStatus,
    Reservation,
    ReservationRequest,
    ReservationStatus,
    Settled,
)
from engine.errors import IdConflict, IllegalTransition, Invalid, LastportionError, NotReady, Refused, Unknown
from engine.records import summed
from tests.admitted import TENANT
from tests.audit import audit, snapshot
from tests.frozen import T0, Frozen, frozen_engine
from tests.stateful.model import Answer, Held, Model

if TYPE_CHECKING:
    from tests.conftest import RedisBackend

T = TypeVar("T")

POOLS = ["gate", "soup", "soup/2"]
CUSTOMERS = ["ada", "ada", "b|ob", None]
PAYMENTS = ["", "pay-1", "pay-2"]
EPOCH = Admitted(1, 1)
NOBODY = "nobody"
SWEEP_BUDGET = 2
"""So few buckets may one call drop here that the machine meets what is left over."""

pools = st.sampled_from(POOLS)
claims = st.lists(st.tuples(pools, st.sampled_from([1, 1, 2, 3])), min_size=1, max_size=3)
ttls_ms = st.sampled_from([1_000, 1_001, 2_000, 3_000, 5_000, 60_000])


@st.composite
def wishes(draw: st.DrawFn) -> ReservationRequest:
    """A request without an id; now and then for a pool that does not exist."""
    chosen = [Claim(*each) for each in draw(claims)]
    if draw(st.integers(0, 30)) == 0:
        chosen.append(Claim("nowhere", 1))
    return ReservationRequest(TENANT, "", summed(chosen), draw(ttls_ms), draw(st.sampled_from(CUSTOMERS)))


opening = st.sampled_from([None] * 15 + [T0 - 1, T0 + 3_000, T0 + 10_000])
closing = st.sampled_from([None] * 15 + [T0 + 3_000, T0 + 10_000, T0 + 120_000])
definitions = st.fixed_dictionaries(
    {
        "cap": st.sampled_from([None, 0, 1, 3, 6, 12, 30]),
        "opens_at_ms": opening,
        "closes_at_ms": closing,
        "status": st.sampled_from([PoolStatus.ACTIVE] * 10 + [PoolStatus.PAUSED, PoolStatus.CLOSED]),
        "per_customer": st.sampled_from([None, None, None, 2, 5]),
        "late_payment": st.sampled_from(list(LatePayment)),
    }
)


class EngineMachine(RuleBasedStateMachine):
    """Each rule does the same to both and compares; after each step every sum is held."""

    url: str
    loop: asyncio.AbstractEventLoop
    numbers = count()
    held: Bundle[str] = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(T0)
        self.latest_now_ms = T0
        self.revision = self.ids = 0
        self.caps: dict[str, int] = {}
        self.uncapped: set[str] = set()
        self.stack = AsyncExitStack()
        # A prefix of its own instead of a flush: many examples share one server.
        engine = frozen_engine(self.url, sweep_budget=SWEEP_BUDGET, prefix=f"m{next(self.numbers)}")
        self.frozen: Frozen = self.run(self.stack.enter_async_context(engine))

    def teardown(self) -> None:
        self.run(self.stack.aclose())

    def run(self, call: Awaitable[T]) -> T:
        return self.loop.run_until_complete(call)

    @initialize(rules=st.lists(definitions, min_size=3, max_size=3))
    def open_pools(self, rules: list[dict[str, Any]]) -> None:
        for pool, each in zip(POOLS, rules, strict=True):
            self.define(pool, {**each, "status": PoolStatus.ACTIVE, "opens_at_ms": None})
        self.act("unknown", self.frozen.engine.complete(TENANT, NOBODY, "pay-1", "s1"), "s1")
        self.act("unknown", self.frozen.engine.release(TENANT, NOBODY, "s1"), "s1")
        self.act("unknown", self.frozen.engine.cancel(TENANT, NOBODY, restock=True, settlement="s1"), "s1")
        self.act("unknown", self.frozen.engine.extend(TENANT, NOBODY, 1_000), "")

    @rule(pool=pools, rules=definitions)
    def define(self, pool: str, rules: dict[str, Any]) -> None:
        self.revision += 1
        definition = PoolDefinition(TENANT, pool, rev=self.revision, **rules)
        self.model.define(definition)
        state = self.run(self.frozen.engine.define_pool(definition, first_of_tenant=self.revision == 1))
        assert state.definition == definition

    @rule(pool=pools)
    def define_as_it_was_before(self, pool: str) -> None:
        known = self.model.pools[pool].definition
        stale = PoolDefinition(TENANT, pool, cap=0, rev=known.rev)
        assert self.run(self.frozen.engine.define_pool(stale)).definition == known

    def new_id(self) -> str:
        self.ids += 1
        return f"r{self.ids}"

    @rule(target=held, wish=wishes())
    def reserve(self, wish: ReservationRequest) -> Any:
        return self.one(replace(wish, id=self.new_id()))

    @rule(target=held, pool=pools, ttl_ms=ttls_ms)
    def reserve_one_unit(self, pool: str, ttl_ms: int) -> Any:
        return self.one(ReservationRequest(TENANT, self.new_id(), (Claim(pool, 1),), ttl_ms, "ada"))

    def one(self, request: ReservationRequest) -> Any:
        """Reserve; the id when it was granted, so that something is done with it later."""
        expected = self.model.reserve(request)
        (answer,) = self.run(self.frozen.engine.reserve_many([request]))
        self.compare(expected, answer)
        return request.id if expected[0] == "granted" else multiple()

    @rule(identifier=held)
    def reserve_the_same_again(self, identifier: str) -> None:
        known = self.model.held[identifier]
        self.one(ReservationRequest(TENANT, identifier, known.claims, known.ttl_ms, known.customer))

    @rule(identifier=held, wish=wishes())
    def reserve_something_else_under_the_same_id(self, identifier: str, wish: ReservationRequest) -> None:
        self.one(replace(wish, id=identifier))

    @rule(target=held, batch=st.lists(st.tuples(wishes(), st.booleans()), min_size=2, max_size=8))
    def reserve_many(self, batch: list[tuple[ReservationRequest, bool]]) -> Any:
        """In one call; some bring the id of the one before them."""
        requests: list[ReservationRequest] = []
        for wish, repeats in batch:
            again = replace(requests[-1]) if repeats and requests else replace(wish, id=self.new_id())
            requests.append(again)
        expected = [self.model.reserve(request) for request in requests]
        answers = self.run(self.frozen.engine.reserve_many(requests))
        for one, answer in zip(expected, answers, strict=True):
            self.compare(one, answer)
        granted = [request.id for request, one in zip(requests, expected, strict=True) if one[0] == "granted"]
        return multiple(*granted)

    def compare(self, expected: Answer, answer: Granted | LastportionError) -> None:
        word, rest = expected
        if word in {"granted", "existing"}:
            assert isinstance(answer, Granted), answer
            assert answer.created is (word == "granted")
            assert isinstance(rest, Held)
            # In a batch the model has gone on, so only what never changes is compared; the rest is read later.
            assert answer.reservation.claims == rest.claims
            assert answer.reservation.created_at_ms == rest.created_at_ms
        elif word == "refused":
            assert isinstance(answer, Refused), answer
            assert answer.refusal == rest
        else:
            assert type(answer) is {"id_conflict": IdConflict, "customer_required": Invalid}[word]

    @rule(identifier=held, payment=st.sampled_from(PAYMENTS), settlement=st.sampled_from(["", "s1"]))
    def complete(self, identifier: str, payment: str, settlement: str) -> None:
        expected = self.model.complete(identifier, payment)
        self.act(expected, self.frozen.engine.complete(TENANT, identifier, payment, settlement), settlement)

    @rule(identifier=held, late_ms=st.sampled_from([-1, 0, 15_000]))
    def pay_at_the_end(self, identifier: str, late_ms: int) -> None:
        """A millisecond before it ends, at its end, or after it."""
        end_ms = self.model.held[identifier].expires_at_s * 1000 + late_ms
        self.set_clock(max(self.model.now_ms, end_ms))
        self.complete(identifier, f"pay-of-{identifier}", "s1")

    @rule(identifier=held)
    def look_at_the_end_and_step_back(self, identifier: str) -> None:
        """Its pools are swept of it, all or only the first, and then the clock reads less again."""
        known = self.model.held[identifier]
        before_ms, end_ms = self.model.now_ms, known.expires_at_s * 1000
        if known.status is ReservationStatus.RESERVED and end_ms > before_ms:
            self.set_clock(end_ms)
            self.read_pool(known.claims[0].pool)
            self.set_clock(max(before_ms, end_ms - 5_000))

    @rule(identifier=held, settlement=st.sampled_from(["", "s2"]))
    def release(self, identifier: str, settlement: str) -> None:
        expected = self.model.release(identifier)
        self.act(expected, self.frozen.engine.release(TENANT, identifier, settlement), settlement)

    @rule(identifier=held, restock=st.booleans(), settlement=st.sampled_from(["", "s3"]))
    def cancel(self, identifier: str, restock: bool, settlement: str) -> None:
        expected = self.model.cancel(identifier, restock)
        call = self.frozen.engine.cancel(TENANT, identifier, restock=restock, settlement=settlement)
        self.act(expected, call, settlement)

    @rule(identifier=held, ttl_ms=ttls_ms)
    def extend(self, identifier: str, ttl_ms: int) -> None:
        expected = self.model.extend(identifier, ttl_ms)
        self.act(expected, self.frozen.engine.extend(TENANT, identifier, ttl_ms), "")

    @rule(identifier=held, ttl_ms=ttls_ms, settlement=st.sampled_from(["", "s4"]))
    def hold(self, identifier: str, ttl_ms: int, settlement: str) -> None:
        expected = self.model.hold(identifier, ttl_ms)
        self.act(expected, self.frozen.engine.hold(TENANT, identifier, ttl_ms, settlement), settlement)

    @rule(identifier=held, late_ms=st.sampled_from([-1, 0, 15_000]), ttl_ms=ttls_ms)
    def hold_at_the_end(self, identifier: str, late_ms: int, ttl_ms: int) -> None:
        """A millisecond before it ends, at its end, or after it."""
        end_ms = self.model.held[identifier].expires_at_s * 1000 + late_ms
        self.set_clock(max(self.model.now_ms, end_ms))
        self.hold(identifier, ttl_ms, "s4")

    def act(self, expected: str, call: Awaitable[Settled | Reservation], settlement: str) -> None:
        """Make the call and compare its outcome; with a settlement there is an entry whatever happened."""
        before = self.run(self.frozen.entries())
        try:
            answer = self.run(call)
        except Unknown:
            word = "unknown"
        except IllegalTransition:
            word = "illegal"
        else:
            word = answer.outcome.value if isinstance(answer, Settled) else "extended"
        assert word == expected
        entries = self.run(self.frozen.entries())
        if word == "unknown":
            assert len(entries) == len(before)
        elif settlement:
            assert len(entries) == len(before) + 1
            assert entries[-1][1]["s"] == settlement
            assert entries[-1][1]["o"] == ("illegal_transition" if word == "illegal" else word)

    @rule(pool=pools)
    def read_pool(self, pool: str) -> None:
        state = self.run(self.frozen.engine.read_pool(TENANT, pool))
        model = self.model
        assert (state.completed, state.reserved) == (model.completed(pool), model.reserved(pool))
        assert state.available == model.available(pool)
        assert state.next_expiry_at_ms == model.earliest_end_ms(pool)
        assert state.definition == model.pools[pool].definition

    @rule(identifier=held)
    def read(self, identifier: str) -> None:
        seen = self.run(self.frozen.engine.read(TENANT, identifier))
        assert seen.now_ms == self.model.now_ms
        assert seen.alive is self.model.alive(self.model.held[identifier])

    @rule(ms=st.sampled_from([1, 999, 1_000, 1_500, 4_000, 30_000, 61_000]))
    def time_passes(self, ms: int) -> None:
        self.set_clock(self.model.now_ms + ms)

    @rule(ms=st.sampled_from([1, 1_000, 5_000]))
    def clock_steps_back(self, ms: int) -> None:
        self.set_clock(self.model.now_ms - ms)

    def set_clock(self, now_ms: int) -> None:
        self.model.now_ms = now_ms
        self.latest_now_ms = max(self.latest_now_ms, now_ms)
        self.run(self.frozen.at(now_ms))

    @rule(wish=wishes())
    def scripts_are_flushed(self, wish: ReservationRequest) -> None:
        self.run(self.frozen.redis.script_flush())
        with pytest.raises(NotReady):
            self.run(self.frozen.engine.reserve(replace(wish, id=self.new_id())))
        self.run(scripts.load(self.frozen.redis, EPOCH, sandbox=True))
        self.frozen.admitted.state.admit(EPOCH)

    @precondition(lambda self: self.model.pools)
    @invariant()
    def all_sums_agree(self) -> None:
        seen = self.run(snapshot(self.frozen.redis, self.frozen.keys, TENANT))
        audit(seen)
        for name, stored in seen.pools.items():
            self.model.saw_sweep(name, stored.swept_to_s, self.latest_now_ms)
        assert set(seen.records) == set(self.model.held)
        for identifier, record in seen.records.items():
            self.compare_record(self.model.held[identifier], record)

    def compare_record(self, held: Held, record: Reservation) -> None:
        assert (record.status, record.version, record.claims) == (held.status, held.version, held.claims)
        assert (record.customer, record.ttl_ms) == (held.customer, held.ttl_ms)
        assert (record.created_at_ms, record.expires_at_ms) == (held.created_at_ms, held.expires_at_s * 1000)
        assert (record.payment_ref, list(record.refused_payments)) == (held.payment, held.refused)
        assert (record.late, record.over_cap, record.restocked) == (held.late, held.over_cap, held.restocked)
        limited = {claim.pool for claim, counts in zip(record.claims, record.counted, strict=True) if counts}
        assert limited == held.limited

    @precondition(lambda self: self.model.pools)
    @invariant()
    def nothing_is_sold_twice(self) -> None:
        """Sold and alive together stay within the highest cap there was, but for what was honoured late."""
        for name, pool in self.model.pools.items():
            cap = pool.definition.cap
            if cap is None:
                self.caps.pop(name, None)
                self.uncapped.add(name)
            elif name not in self.uncapped:
                self.caps[name] = max(cap, self.caps.get(name, 0))
                late = sum(held.of(name) for held in self.model.held.values() if held.late)
                assert self.model.completed(name) + self.model.reserved(name) <= self.caps[name] + late


def run_machine(url: str, profile: settings) -> None:
    """Run it on a loop of its own."""
    loop = asyncio.new_event_loop()
    machine = type("Machine", (EngineMachine,), {"url": url, "loop": loop})
    try:
        run_state_machine_as_test(machine, settings=profile)
    finally:
        loop.close()


COMMON: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
QUICK = settings(max_examples=50, stateful_step_count=50, derandomize=True, phases=[Phase.generate], **COMMON)
"""The same examples each time, in seconds; a failure is shown as found, since shrinking it takes minutes."""

LONG = settings(max_examples=1_500, stateful_step_count=80, phases=[Phase.generate, Phase.shrink], **COMMON)


def test_engine_does_as_the_model(redis_backend: RedisBackend) -> None:
    run_machine(redis_backend.url, QUICK)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_engine_does_as_the_model_for_long(redis_backend: RedisBackend) -> None:
    run_machine(redis_backend.url, LONG)
