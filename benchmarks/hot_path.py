"""Reserve, refusal and batches on a real Redis, beside an empty EVALSHA with the same keys and arguments."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path
from tempfile import TemporaryDirectory

from api.servers import RedisBinary, RedisServer
from benchmarks.budget import Line, interleaved
from benchmarks.load import Run, resp_command, run_load, whole_resp
from engine import scripts
from engine.admission import AdmissionState, Admitted
from engine.calls import reserve_call
from engine.domain import MOST_IN_ONE_CALL, Claim, PoolDefinition, Reservation, ReservationRequest
from engine.keys import Keys
from engine.redis_client import create_redis
from engine.reservations import ReservationEngine
from engine.settings import Settings

TENANT = "bench"
CONNECTIONS = 50
EMPTY = "return 1"
ADMITTED = Admitted(epoch=1, build=1)
TTL_MS = 2_400_000
_numbers = itertools.count()


class _NoPostgres:
    """The hot path never asks Postgres; this run would show it if it did."""

    async def find_reservation(self, tenant: str, identifier: str) -> Reservation | None:
        raise AssertionError(f"asked for {tenant}/{identifier}")

    async def has_pools(self, tenant: str) -> bool:
        raise AssertionError(f"asked for the pools of {tenant}")


async def _prepare(url: str) -> Keys:
    settings = Settings(redis_url=url, partitions=1)
    redis = create_redis(settings)
    state, keys = AdmissionState(), Keys(settings.prefix, 0, ADMITTED.build)
    await redis.flushall()
    await scripts.begin_epoch(redis, keys.outbox, keys.mark, "", ADMITTED)
    await scripts.load(redis, ADMITTED)
    await redis.script_load(EMPTY)
    state.admit(ADMITTED)
    engine = ReservationEngine(redis, settings, state, _NoPostgres())
    pools = [
        PoolDefinition(TENANT, "plenty", 10**9, 1),
        PoolDefinition(TENANT, "last", 1, 1),
        PoolDefinition(TENANT, "gate", None, 1, opens_at_ms=0, closes_at_ms=10**13),
        PoolDefinition(TENANT, "item", 10**9, 1),
        PoolDefinition(TENANT, "limited", 10**9, 1, per_customer=2),
    ]
    for number, pool in enumerate(pools):
        await engine.define_pool(pool, first_of_tenant=number == 0)
    await engine.reserve(ReservationRequest(TENANT, "holds-the-last", (Claim("last", 1),), 7 * 86_400_000))
    await redis.aclose()
    return keys


def _one(keys: Keys, sha: str, claims: tuple[str, ...], *, with_customer: bool) -> Iterator[bytes]:
    for number in _numbers:
        identifier = f"r{number:021d}"
        request = ReservationRequest(
            TENANT,
            identifier,
            tuple(Claim(pool, 1) for pool in claims),
            TTL_MS,
            f"customer-{number}" if with_customer else None,
        )
        places = [keys.tenant(TENANT), keys.expiries(TENANT), keys.outbox, keys.records(TENANT, identifier)]
        yield resp_command("EVALSHA", sha, "4", *places, TENANT, *reserve_call(request).arguments)


def _many(keys: Keys, sha: str, size: int) -> Iterator[bytes]:
    while True:
        places = [keys.tenant(TENANT), keys.expiries(TENANT), keys.outbox]
        arguments = [TENANT]
        for _ in range(size):
            identifier = f"r{next(_numbers):021d}"
            places.append(keys.records(TENANT, identifier))
            arguments.append("1")
            arguments += reserve_call(ReservationRequest(TENANT, identifier, (Claim("plenty", 1),), TTL_MS)).arguments
        yield resp_command("EVALSHA", sha, str(len(places)), *places, *arguments)


def _run(port: int, requests: Iterator[bytes], count: int, expected: bytes) -> Run:
    prepared = list(itertools.islice(requests, count))
    return run_load(port, count, CONNECTIONS, prepared.__getitem__, whole=whole_resp, expected=expected)


def measure(binary: RedisBinary, *, rounds: int, count: int) -> Iterator[Line]:
    """The hot path's lines on one server."""
    empty = sha1(EMPTY.encode(), usedforsecurity=False).hexdigest()
    one, many = scripts.sha_of(scripts.RESERVE, ADMITTED), scripts.sha_of(scripts.RESERVE_MANY, ADMITTED)
    cases = (
        ("one-pool reserve", ("plenty",), False, b"granted", 0.45),
        ("one-pool refusal", ("last",), False, b"all_reserved", 0.60),
        ("gate + item + customer limit, reserve", ("gate", "item", "limited"), True, b"granted", 0.40),
        ("gate + item + customer limit, refusal", ("gate", "limited", "last"), True, b"all_reserved", 0.55),
    )
    with TemporaryDirectory(prefix="lastportion-bench-") as folder:
        server = RedisServer(binary.path, Path(folder) / "redis")
        server.start()
        try:
            keys = asyncio.run(_prepare(server.url))

            def rate(sha: str, claims: tuple[str, ...], customer: bool, expected: bytes) -> float:
                return _run(server.port, _one(keys, sha, claims, with_customer=customer), count, expected).per_second

            for name, claims, customer, word, least in cases:
                ratio, before, after = interleaved(
                    rounds,
                    lambda c=claims, w=customer: rate(empty, c, w, b":1"),  # type: ignore[misc]
                    lambda c=claims, w=customer, e=word: rate(one, c, w, e),  # type: ignore[misc]
                )
                yield Line(f"{binary.label} {name}", ratio, least, f"{after:,.0f}/s beside {before:,.0f}/s EVALSHA")
            calls = max(1, count // MOST_IN_ONE_CALL)
            ratio, before, after = interleaved(
                rounds,
                lambda: rate(empty, ("plenty",), False, b":1"),
                lambda: (
                    MOST_IN_ONE_CALL
                    * _run(server.port, _many(keys, many, MOST_IN_ONE_CALL), calls, b"granted").per_second
                ),
            )
            note = f"{after:,.0f} reservations/s beside {before:,.0f}/s EVALSHA"
            yield Line(f"{binary.label} reservations, {MOST_IN_ONE_CALL} a call", ratio, 1.0, note)
        finally:
            server.stop()
