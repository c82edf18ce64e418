"""One portion, two API processes, four processes with fifty buyers each: one gets it, all others hear why not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import psycopg
import pytest

from api.servers import free_port
from tests.concurrency.contention import PROCESSES, SECONDS, four_processes, meet
from tests.processes import wait_for

if TYPE_CHECKING:
    from api.servers import RedisServer

REPOSITORY = Path(__file__).resolve().parents[2]
KEY = {"Authorization": "Bearer lp_dev"}
BUYERS = 50


@contextmanager
def role(name: str, log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A role of ``lastportion`` as an operator runs it, ended by SIGTERM."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "api.cli", name], cwd=REPOSITORY, env=environment, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(SECONDS)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5, trust_env=False).is_success
    except httpx.TransportError:
        return False


@pytest.fixture
def apis(redis_server: RedisServer, database_url: str, tmp_path: Path) -> Iterator[list[str]]:
    """Addresses of two API processes that share a Redis, a Postgres and a persister."""
    inherited = {name: text for name, text in os.environ.items() if not name.upper().startswith("LASTPORTION_")}
    common = {
        **inherited,
        "LASTPORTION_REDIS_URL": redis_server.url,
        "LASTPORTION_DATABASE_URL": database_url,
        "LASTPORTION_SANDBOX": "1",
        "LASTPORTION_STRIPE_SECRET_KEY": "sk_test_race",
        "LASTPORTION_STRIPE_WEBHOOK_SECRET": "whsec_race",
    }
    with ExitStack() as stack:
        stack.enter_context(role("persist", tmp_path / "persist.log", common))
        urls = []
        for number in range(2):
            port, log = free_port(), tmp_path / f"serve-{number}.log"
            process = stack.enter_context(role("serve", log, {**common, "LASTPORTION_PORT": str(port)}))
            urls.append(f"http://127.0.0.1:{port}")
            wait_for(lambda url=urls[-1], ended=process.poll: is_ready(url) or ended() is not None, "the API")  # type: ignore[misc]
            assert process.poll() is None, log.read_text()
        yield urls


def buy(task: tuple[int, list[str]]) -> list[tuple[int, str]]:
    """Fifty requests at once from one process; status and error code of each."""
    place, urls = task

    async def all_at_once() -> list[tuple[int, str]]:
        limits = httpx.Limits(max_connections=BUYERS)
        async with httpx.AsyncClient(headers=KEY, timeout=SECONDS, limits=limits, trust_env=False) as client:
            for url in urls:
                assert (await client.get(f"{url}/healthz")).is_success
            await asyncio.to_thread(meet)
            body = {"claims": [{"pool": "last/portion", "quantity": 1}]}
            answers = await asyncio.gather(
                *(
                    client.post(f"{urls[n % len(urls)]}/v1/reservations", json={"id": f"b-{place}-{n}", **body})
                    for n in range(BUYERS)
                )
            )
            return [(each.status_code, each.json().get("error", {}).get("code", "")) for each in answers]

    return asyncio.run(all_at_once())


def race(executor: Executor, urls: list[str]) -> Counter[tuple[int, str]]:
    answers = executor.map(buy, [(place, urls) for place in range(PROCESSES)], timeout=SECONDS)
    return Counter(answer for of_one in answers for answer in of_one)


def test_one_of_two_hundred_over_http(apis: list[str], database_url: str) -> None:
    with httpx.Client(headers=KEY, timeout=SECONDS, trust_env=False) as client:
        pool = "/v1/pools/last/portion"
        assert client.put(apis[0] + pool, json={"cap": 1}).is_success
        with four_processes() as executor:
            assert race(executor, apis) == {(201, ""): 1, (409, "all_reserved"): 199}
            for url in apis:
                state = client.get(url + pool).json()
                assert (state["completed"], state["reserved"], state["available"]) == (0, 1, 0)
            # The same two hundred come again: the one who has it gets it again, nobody else does.
            assert race(executor, apis) == {(200, ""): 1, (409, "all_reserved"): 199}

    def stored() -> list[tuple[str, str]]:
        with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
            return connection.execute("SELECT tenant, status FROM reservations").fetchall()

    wait_for(lambda: bool(stored()), "the reservation to reach Postgres")
    assert stored() == [("demo", "reserved")]
