"""The reservation engine: one method a transition, each one script call."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from engine import scripts
from engine.batching import Batcher, Reply
from engine.calls import (
    ReserveCall,
    existing_reservation,
    granted_reservation,
    parse_reply,
    pool_state,
    refusal_of,
    reserve_call,
)
from engine.domain import (
    Granted,
    Outcome,
    PoolDefinition,
    PoolState,
    Refusal,
    Reservation,
    ReservationRequest,
    ReservationStatus,
    Settled,
)
from engine.errors import (
    BacklogFull,
    IdConflict,
    IllegalTransition,
    Invalid,
    LastportionError,
    NotReady,
    Refused,
    Unknown,
)
from engine.keys import CLOCK_FIELD, Keys, escape, partition_of
from engine.records import encode_definition, encode_reservation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from engine.admission import AdmissionState, Admitted
    from engine.scripts import Script
    from engine.settings import Settings

LONGEST_LIFE_MS = 30 * 24 * 3600 * 1000
"""However often it is extended, a reservation ends this long after it was made."""

MOST_ROLLS = 2_000
"""Calls in a row that may only sweep (1,000 buckets each) before the answer is "not now"."""


class RecordLookup(Protocol):
    """What the engine asks of Postgres when Redis does not know."""

    async def find_reservation(self, tenant: str, identifier: str) -> Reservation | None:
        """The reservation as Postgres holds it, or None. Raises ``StorageUnavailable``."""
        ...

    async def has_pools(self, tenant: str) -> bool:
        """Whether the tenant has any pool. Raises ``StorageUnavailable``."""
        ...


class ReservationEngine:
    """Decides on the hot path. Nothing on the bare reserve path touches Postgres.

    Every method raises ``NotReady`` while Redis is not admitted or not reachable.
    """

    def __init__(self, redis: Redis, settings: Settings, state: AdmissionState, lookup: RecordLookup) -> None:
        self._redis = redis
        self._settings = settings
        self._state = state
        self._lookup = lookup
        self._batcher = Batcher(self._send_reserve)

    async def reserve(self, request: ReservationRequest) -> Granted:
        """Grant all claims or none. The same request again gets the reservation that it made before.

        Raises ``Refused`` (which claim, why, and what to wait for), ``IdConflict``, ``Invalid`` when a pool has a
        customer limit and no customer is named, ``BacklogFull``.
        """
        call = reserve_call(request)
        if partition_of(request.tenant, self._settings.partitions) in self._state.full_partitions:
            raise BacklogFull
        for _ in range(MOST_ROLLS):
            reply, epoch = await self._batcher.submit(call)
            word, _, rest = reply.partition("|")
            if word == Outcome.GRANTED:
                return Granted(granted_reservation(call, rest, epoch), created=True)
            if word == Outcome.EXISTING:
                return Granted(existing_reservation(call.request, reply, epoch), created=False)
            if word != Outcome.ROLL:
                raise await self._refusal(call.request, Outcome(word), rest)
        raise NotReady("More reservations ended at once than could be swept; try again.")

    async def reserve_many(self, requests: Sequence[ReservationRequest]) -> list[Granted | LastportionError]:
        """Each on its own, answered in order; an error stands in the place of its request."""

        async def one(request: ReservationRequest) -> Granted | LastportionError:
            try:
                return await self.reserve(request)
            except LastportionError as error:
                return error

        return list(await asyncio.gather(*(one(request) for request in requests)))

    async def read(self, tenant: str, identifier: str) -> Reservation:
        """The reservation as it stands, from Redis or else from Postgres. Raises ``Unknown``."""
        keys, epoch = self._keys(tenant), self._admitted().epoch
        reply = await self._call(scripts.READ, [keys.tenant(tenant), keys.records(tenant, identifier)], [identifier])
        word, reservation = parse_reply(tenant, identifier, reply)
        if reservation is not None and word is Outcome.FOUND:
            return replace(reservation, epoch=epoch)
        await self._check_ready(tenant, word)
        return await self._from_postgres(tenant, identifier)

    async def complete(self, tenant: str, identifier: str, payment_ref: str = "", settlement: str = "") -> Settled:
        """The only way to ``completed``. A late payment follows the strictest policy among the pools.

        Outcomes: ``completed``, ``already_completed``, ``duplicate_payment``, ``refund_due``. Raises ``Unknown`` and
        ``IllegalTransition`` (cancelled, and no payment named).
        """

        arguments = [tenant, identifier, escape(payment_ref), settlement]
        return await self._settle(scripts.COMPLETE, tenant, identifier, arguments, restores=True)

    async def release(self, tenant: str, identifier: str, settlement: str = "") -> Settled:
        """Give the units of a ``reserved`` one back; a completed one stays sold.

        Outcomes: ``released``, ``already_released``, ``already_completed``. Raises ``Unknown`` and
        ``IllegalTransition`` (cancelled). An id that Redis forgot is answered from Postgres.
        """
        try:
            return await self._settle(
                scripts.RELEASE, tenant, identifier, [tenant, identifier, settlement], restores=bool(settlement)
            )
        except Unknown:
            found = await self._from_postgres(tenant, identifier)
            if found.status is ReservationStatus.CANCELLED:
                raise IllegalTransition(found.status.value) from None
            completed = found.status is ReservationStatus.COMPLETED
            return Settled(Outcome.ALREADY_COMPLETED if completed else Outcome.ALREADY_RELEASED, found)

    async def extend(self, tenant: str, identifier: str, ttl_ms: int) -> Reservation:
        """Move the end to the later of the present one and now + ``ttl_ms``; only while alive, within 30 days.

        Raises ``IllegalTransition`` and ``Unknown``.
        """
        arguments = [tenant, identifier, str(ttl_ms), str(LONGEST_LIFE_MS)]
        epoch = self._admitted().epoch
        try:
            settled = await self._settle(scripts.EXTEND, tenant, identifier, arguments, restores=False)
        except Unknown:
            found = await self._from_postgres(tenant, identifier)
            raise IllegalTransition(found.status.value) from None
        # Whoever commits what was extended must know that this epoch has not ended.
        return replace(settled.reservation, epoch=epoch)

    async def hold(self, tenant: str, identifier: str, ttl_ms: int, settlement: str = "") -> Settled:
        """Keep the units for ``ttl_ms`` from now, since money for them is on its way (a delayed payment method).

        Moves the end to the later of the present one and now + ``ttl_ms``, without a bound. One that has expired gets
        its units again where every pool has room and every customer limit allows it, whatever the pools' status and
        windows say by now; otherwise nothing changes. A record that Redis forgot is restored first.

        Outcomes: ``held``; ``not_held`` (no room, or released or cancelled); ``already_completed``. Raises ``Unknown``.
        """
        arguments = [tenant, identifier, str(ttl_ms), settlement]
        return await self._settle(scripts.HOLD, tenant, identifier, arguments, restores=True)

    async def cancel(self, tenant: str, identifier: str, *, restock: bool, settlement: str = "") -> Settled:
        """Take a completed reservation back. Outcomes: ``cancelled``, ``already_cancelled``.

        Raises ``IllegalTransition`` from any other state, and ``Unknown``.
        """
        arguments = [tenant, identifier, "1" if restock else "", settlement]
        return await self._settle(scripts.CANCEL, tenant, identifier, arguments, restores=True)

    async def define_pool(
        self, definition: PoolDefinition, *, first_of_tenant: bool = False, clock_offset_ms: int = 0
    ) -> PoolState:
        """Push a definition that Postgres holds. A revision not above the stored one changes nothing.

        ``first_of_tenant`` says that no pool of this tenant was ever pushed, so that the tenant may begin here.
        """
        keys, tenant = self._keys(definition.tenant), definition.tenant
        arguments = [
            definition.pool,
            encode_definition(definition),
            str(definition.rev),
            "1" if first_of_tenant else "",
            str(clock_offset_ms),
        ]
        reply = await self._call(scripts.DEFINE_POOL, [keys.tenant(tenant), keys.mark], arguments)
        word, _, text = reply.partition("|")
        if word != Outcome.DEFINED:
            self._state.lost.set()
            raise NotReady
        return pool_state(tenant, definition.pool, text)

    async def read_pool(self, tenant: str, pool: str) -> PoolState:
        """A pool as it stands now. Raises ``Unknown``."""
        (state,) = await self.read_pools(tenant, [pool])
        if state is None:
            raise Unknown("pool", pool)
        return state

    async def read_pools(self, tenant: str, pools: Sequence[str]) -> list[PoolState | None]:
        """Pools as they stand now, None for those that are unknown."""
        if not pools:
            return []
        keys = self._keys(tenant)
        for _ in range(MOST_ROLLS):
            replies = await self._call_many(
                scripts.READ_POOLS, [keys.tenant(tenant), keys.expiries(tenant)], list(pools)
            )
            words = {reply.partition("|")[0] for reply in replies}
            if Outcome.NOT_READY in words:
                await self._check_ready(tenant, Outcome.NOT_READY)
                return [None] * len(pools)
            if Outcome.ROLL not in words:
                return [
                    pool_state(tenant, pool, reply.partition("|")[2]) if reply.startswith(Outcome.FOUND) else None
                    for pool, reply in zip(pools, replies, strict=True)
                ]
        raise NotReady

    async def restore(self, reservation: Reservation) -> None:
        """Put an ended or expired record back, for a settlement that comes after Redis forgot it."""
        keys, tenant = self._keys(reservation.tenant), reservation.tenant
        places = [keys.tenant(tenant), keys.expiries(tenant), keys.records(tenant, reservation.id)]
        for _ in range(MOST_ROLLS):
            reply = await self._call(scripts.RESTORE, places, [reservation.id, encode_reservation(reservation)])
            if reply in (Outcome.RESTORED, Outcome.EXISTING):
                return
            if reply != Outcome.ROLL:
                break
        # Not ready, or alive in Postgres and absent here: only admission can bring those back.
        self._state.lost.set()
        raise NotReady

    async def remove_reservations(self, tenant: str, records: Sequence[tuple[str, int]]) -> int:
        """Take records (id, version in Postgres) whose retention has passed out of Redis; how many went."""
        keys = self._keys(tenant)
        by_shard: dict[str, list[str]] = {}
        for identifier, version in records:
            by_shard.setdefault(keys.records(tenant, identifier), []).extend((identifier, str(version)))
        retention = str(self._settings.retention_seconds * 1000)
        removed = 0
        for shard, pairs in by_shard.items():
            reply = await self._call(scripts.REMOVE_RESERVATIONS, [keys.tenant(tenant), shard], [retention, *pairs])
            word, _, count = reply.partition("|")
            if word != Outcome.REMOVED:
                self._state.lost.set()
                raise NotReady
            removed += int(count)
        return removed

    async def remove_pool(self, tenant: str, pool: str, rev: int, customers: Sequence[str] = ()) -> bool:
        """Take a pool that closed long ago out of Redis, with these customers' counters; False if it must stay."""
        keys = self._keys(tenant)
        arguments = [pool, str(rev), *(escape(customer) for customer in customers)]
        reply = await self._call(scripts.REMOVE_POOL, [keys.tenant(tenant), keys.expiries(tenant)], arguments)
        if reply == Outcome.NOT_READY:
            self._state.lost.set()
            raise NotReady
        return reply in (Outcome.REMOVED, Outcome.UNKNOWN_POOL)

    async def move_clock(self, tenant: str, offset_ms: int) -> None:
        """Move the test clock of a tenant forward; sandbox only."""
        reply = await self._call(scripts.MOVE_CLOCK, [self._keys(tenant).tenant(tenant)], [str(offset_ms)])
        await self._check_ready(tenant, Outcome(reply))

    async def now_ms(self, tenant: str = "") -> int:
        """The clock that scripts go by: the Redis server's, and in the sandbox the tenant's test clock on top."""
        try:
            seconds, micros = await self._redis.time()
            offset = None
            if self._settings.sandbox and tenant:
                offset = await self._redis.hget(self._keys(tenant).tenant(tenant), CLOCK_FIELD)
        except RedisError as error:
            raise self._unreachable(error) from error
        return int(seconds) * 1000 + int(micros) // 1000 + int(offset or 0)

    def _admitted(self) -> Admitted:
        admitted = self._state.admitted
        if admitted is None:
            self._state.lost.set()
            raise NotReady
        return admitted

    def _keys(self, tenant: str) -> Keys:
        partition = partition_of(tenant, self._settings.partitions)
        return Keys(self._settings.prefix, partition, self._admitted().build)

    def _unreachable(self, error: RedisError) -> NotReady:
        # A server that is full refuses the first write, as it would any other: nothing happened, and it is the same
        # server. An entry id that the stream refuses, or a script that it does not know, is an epoch that ended.
        if isinstance(error, ResponseError) and not isinstance(error, OutOfMemoryError):
            self._state.revoke()
        self._state.lost.set()
        return NotReady()

    async def _run(self, script: Script, keys: Sequence[str], arguments: Sequence[str]) -> object:
        sha = scripts.sha_of(script, self._admitted(), self._settings.sandbox)
        try:
            return await self._redis.evalsha(sha, len(keys), *keys, *arguments)
        except RedisError as error:
            raise self._unreachable(error) from error

    async def _call(self, script: Script, keys: Sequence[str], arguments: Sequence[str]) -> str:
        return str(await self._run(script, keys, arguments))

    async def _call_many(self, script: Script, keys: Sequence[str], arguments: Sequence[str]) -> list[str]:
        replies = await self._run(script, keys, arguments)
        return [str(reply) for reply in replies] if isinstance(replies, list) else []

    async def _send_reserve(self, tenant: str, calls: Sequence[ReserveCall]) -> list[Reply]:
        keys, epoch = self._keys(tenant), self._admitted().epoch
        places = [keys.tenant(tenant), keys.expiries(tenant), keys.outbox]
        places += [keys.records(tenant, call.request.id) for call in calls]
        arguments = [tenant]
        if len(calls) == 1:
            # Reserving one has a script of its own: the tables of the general one cost it a third of its speed.
            return [(await self._call(scripts.RESERVE, places, [*arguments, *calls[0].arguments]), epoch)]
        for call in calls:
            arguments.append(str(len(call.request.claims)))
            arguments += call.arguments
        return [(reply, epoch) for reply in await self._call_many(scripts.RESERVE_MANY, places, arguments)]

    async def _refusal(self, request: ReservationRequest, outcome: Outcome, rest: str) -> LastportionError:
        """What a reserve that granted nothing raises."""
        if outcome is Outcome.ID_CONFLICT:
            return IdConflict(f"Reservation {request.id!r} exists with other claims, customer or ttl.", id=request.id)
        if outcome is Outcome.NOT_READY:
            await self._check_ready(request.tenant, outcome)
            return Refused(Refusal(Outcome.UNKNOWN_POOL, request.claims[0].pool))
        if outcome is Outcome.CUSTOMER_REQUIRED:
            pool = request.claims[int(rest) - 1].pool
            return Invalid(fields={"customer": f"Pool {pool!r} has a customer limit; say who the customer is."})
        return Refused(refusal_of(request, outcome, rest.split("|")))

    async def _check_ready(self, tenant: str, outcome: Outcome) -> None:
        """Tell a tenant that was lost from one that never had a pool: only Postgres knows."""
        if outcome is not Outcome.NOT_READY:
            return
        try:
            known = await self._lookup.has_pools(tenant)
        except LastportionError as error:
            raise NotReady from error
        if known:
            self._state.lost.set()
            raise NotReady

    async def _from_postgres(self, tenant: str, identifier: str) -> Reservation:
        found = await self._lookup.find_reservation(tenant, identifier)
        if found is None:
            raise Unknown("reservation", identifier)
        # What Redis does not hold counts nowhere.
        return replace(found, now_ms=await self.now_ms(tenant), counts=False)

    async def _settle(
        self, script: Script, tenant: str, identifier: str, arguments: list[str], *, restores: bool
    ) -> Settled:
        keys = self._keys(tenant)
        by_name = {
            "tenant": keys.tenant(tenant),
            "expiries": keys.expiries(tenant),
            "outbox": keys.outbox,
            "records": keys.records(tenant, identifier),
        }
        places = [by_name[name] for name in script.keys]
        for _ in range(MOST_ROLLS):
            word, reservation = parse_reply(tenant, identifier, await self._call(script, places, arguments))
            if reservation is not None:
                if word is Outcome.ILLEGAL_TRANSITION:
                    raise IllegalTransition("expired" if reservation.expired else reservation.status.value)
                return Settled(word, reservation)
            if word is Outcome.ROLL:
                continue
            await self._check_ready(tenant, word)
            found = await self._lookup.find_reservation(tenant, identifier) if restores else None
            if found is None:
                raise Unknown("reservation", identifier)
            await self.restore(found)
        raise NotReady
