"""``POST /v1/reservations`` beside an authenticated no-op POST of the same app, 64 connections each."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from api.servers import PostgresServer, RedisServer, find_postgres, find_redis, free_port
from benchmarks.budget import Line
from benchmarks.load import Run, run_load, whole_http

CONNECTIONS = 64
TENANT = "bench"
START_SECONDS = 60.0
_numbers = itertools.count()


@contextmanager
def _running(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)  # noqa: S603 -- our own roles
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_until_ready(url: str) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise RuntimeError("the API did not become ready")


@contextmanager
def _deployment(folder: Path) -> Iterator[tuple[int, str]]:
    """API and persister on servers of their own; yields the port and an API key."""
    redis = RedisServer(find_redis()[0].path, folder / "redis")
    postgres = PostgresServer(find_postgres()[0].bin_dir, folder / "postgres")
    with ExitStack() as stack:
        for server in (redis, postgres):
            server.start()
            stack.callback(server.stop)
        port = free_port()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LASTPORTION_")},
            "LASTPORTION_REDIS_URL": redis.url,
            "LASTPORTION_DATABASE_URL": postgres.url,
            "LASTPORTION_PORT": str(port),
        }
        command = [sys.executable, "-m", "api.cli"]
        subprocess.run([*command, "migrate"], env=environment, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        scopes = [part for scope in ("admin", "checkout") for part in ("--scope", scope)]
        made = subprocess.run(  # noqa: S603 -- our own command line
            [*command, "keys", "create", "bench", "--tenant", TENANT, *scopes],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        key = made.stdout.split()[-1]
        stack.enter_context(_running([*command, "persist"], environment, folder / "persist.log"))
        stack.enter_context(_running([sys.executable, "-m", "benchmarks.noop_server"], environment, folder / "api.log"))
        _wait_until_ready(f"http://127.0.0.1:{port}")
        yield port, key


def _post(path: str, key: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _body() -> bytes:
    claims = [{"pool": "plenty", "quantity": 1}]
    return json.dumps({"id": f"r{next(_numbers):021d}", "claims": claims, "ttl_seconds": 2400}).encode()


def _load(port: int, key: str, path: str, count: int) -> Run:
    prepared = [_post(path, key, _body()) for _ in range(count)]
    return run_load(port, count, CONNECTIONS, prepared.__getitem__, whole=whole_http, expected=b" 201 ")


def measure(*, rounds: int, count: int) -> Iterator[Line]:
    """The endpoint's lines; the persister drains meanwhile, as it does in production."""
    if not find_redis() or not find_postgres():
        yield Line("POST /v1/reservations", None, 0.80, "no Redis or no Postgres on this machine")
        return
    with TemporaryDirectory(prefix="lastportion-bench-") as folder, _deployment(Path(folder)) as (port, key):
        authorization = {"Authorization": f"Bearer {key}"}
        url = f"http://127.0.0.1:{port}/v1/pools/plenty"
        httpx.put(url, headers=authorization, json={"cap": 10**9}).raise_for_status()
        pairs = [(_load(port, key, "/noop", count), _load(port, key, "/v1/reservations", count)) for _ in range(rounds)]
    rates = [(noop.per_second, reserve.per_second) for noop, reserve in pairs]
    tails = [(noop.quantile_ms(0.99), reserve.quantile_ms(0.99)) for noop, reserve in pairs]
    before, after = (statistics.median(side) for side in zip(*rates, strict=True))
    yield Line(
        "POST /v1/reservations",
        statistics.median(reserve / noop for noop, reserve in rates),
        0.80,
        f"{after:,.0f}/s beside {before:,.0f}/s no-op",
    )
    before, after = (statistics.median(side) for side in zip(*tails, strict=True))
    yield Line(
        "POST /v1/reservations p99",
        statistics.median(noop / reserve for noop, reserve in tails),
        1 / 1.5,
        f"the no-op's p99 over ours: {before:.1f} ms over {after:.1f} ms, 1.5 times as long at most",
    )
