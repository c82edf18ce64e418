"""Health, readiness and metrics: up is not ready, and what is missing is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from engine.redis_client import create_redis
from persistence.identity import UnsafeRedis
from persistence.persister import PERSISTER_JOB, Persister
from tests.integration.conftest import Api, running_api, settings_for

if TYPE_CHECKING:
    from api.servers import PostgresServer, RedisServer


@pytest.fixture
async def api(redis_server: RedisServer, database_url: str) -> AsyncIterator[Api]:
    async with running_api(settings_for(redis_server.url, database_url)) as running:
        yield running


async def _said(api: Api, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
    answer = await api.client.get(path, headers={"authorization": ""})
    return answer.status_code, answer.json()


async def _run_job(api: Api, job: str, age_seconds: int, period_seconds: int | None = 5) -> None:
    """Let a job have succeeded so long ago."""
    async with api.services.database.begin() as connection:
        await connection.execute(
            text(
                "insert into job_runs (job, period_seconds, last_started_at, last_success_at) "
                "values (:job, :period, now(), now() - make_interval(secs => :age)) "
                "on conflict (job) do update set last_success_at = excluded.last_success_at"
            ),
            {"job": job, "period": period_seconds, "age": age_seconds},
        )


@asynccontextmanager
async def _persisting(api: Api) -> AsyncIterator[None]:
    stop = asyncio.Event()
    services = api.services
    async with create_redis(services.settings, blocking=True) as reader:
        persister = Persister(services.settings, services.database, reader, services.state)
        running = asyncio.create_task(persister.run(stop))
        try:
            yield
        finally:
            stop.set()
            await running


async def _until(api: Api, said: Callable[[int, dict[str, Any]], bool]) -> dict[str, Any]:
    """Ask again until the answer is as wanted: nothing tells a client when it changes."""
    async with asyncio.timeout(30):
        while True:
            status, body = await _said(api)
            if said(status, body):
                return body
            await asyncio.sleep(0.05)


async def _until_ready(api: Api) -> dict[str, Any]:
    return await _until(api, lambda status, _: status == 200)


async def test_up_is_said_without_a_look(api: Api) -> None:
    assert await _said(api, "/healthz") == (200, {"status": "up"})


async def test_without_a_persister_it_is_not_ready_and_says_so(api: Api) -> None:
    status, body = await _said(api)
    assert (status, body["ready"], list(body["missing"])) == (503, False, ["persister"])
    async with _persisting(api):
        assert await _until_ready(api) == {"ready": True, "missing": {}, "overdue": []}


async def test_an_overdue_job_is_named_and_the_persister_stops_readiness(api: Api) -> None:
    await _run_job(api, PERSISTER_JOB, age_seconds=0)
    await _run_job(api, "nightly", age_seconds=9)
    await _run_job(api, "weekly", age_seconds=11)
    await _run_job(api, "once", age_seconds=10**6, period_seconds=None)
    assert await _said(api) == (200, {"ready": True, "missing": {}, "overdue": ["weekly"]})
    await _run_job(api, PERSISTER_JOB, age_seconds=11)
    status, body = await _said(api)
    assert (status, list(body["missing"]), body["overdue"]) == (503, ["persister"], ["persister", "weekly"])


async def test_a_job_that_never_succeeded_is_overdue_once_it_failed(api: Api) -> None:
    await _run_job(api, PERSISTER_JOB, age_seconds=0)
    async with api.services.database.begin() as connection:
        await connection.execute(
            text("insert into job_runs (job, period_seconds, failures) values ('new', 5, 0), ('broken', 5, 1)")
        )
    assert (await _said(api))[1]["overdue"] == ["broken"]


async def test_redis_gone_and_back_is_seen(own_redis_server: RedisServer, database_url: str) -> None:
    async with running_api(settings_for(own_redis_server.url, database_url)) as api, _persisting(api):
        await api.client.put("/v1/pools/seat", json={"cap": 1})
        await _until_ready(api)
        own_redis_server.stop()
        answer = await api.client.post("/v1/reservations", json={"claims": [{"pool": "seat", "quantity": 1}]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert answer.headers["retry-after"] == "1"
        await _until(api, lambda _, body: "redis" in body["missing"])
        assert (await _said(api, "/healthz"))[0] == 200
        own_redis_server.start()
        await _until_ready(api)
        answer = await api.client.post("/v1/reservations", json={"claims": [{"pool": "seat", "quantity": 1}]})
        assert answer.status_code == 201


async def test_postgres_gone_is_named_while_reserving_goes_on(
    redis_server: RedisServer, own_postgres_server: PostgresServer
) -> None:
    settings = settings_for(redis_server.url, own_postgres_server.url, database_timeout_seconds=2.0)
    async with running_api(settings) as api:
        await api.client.put("/v1/pools/seat", json={"cap": 1})
        own_postgres_server.stop()
        status, body = await _said(api)
        assert (status, list(body["missing"])) == (503, ["postgres"])
        answer = await api.client.post(
            "/v1/reservations", json={"id": "r", "claims": [{"pool": "seat", "quantity": 1}]}
        )
        assert answer.status_code == 201
        answer = await api.client.post("/v1/reservations/r/complete")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
        assert answer.headers["retry-after"] == "2"
        answer = await api.client.put("/v1/pools/seat", json={"cap": 2})
        assert answer.status_code == 503
        assert (await api.client.get("/v1/pools/seat")).json()["completed"] == 0
        assert (await api.client.get("/metrics")).status_code == 200
        own_postgres_server.start()
        answer = await api.client.post("/v1/reservations/r/complete")
        assert answer.json()["outcome"] == "completed"


async def test_a_start_without_redis_waits_for_it(own_redis_server: RedisServer, database_url: str) -> None:
    own_redis_server.stop()
    async with running_api(settings_for(own_redis_server.url, database_url)) as api:
        assert "redis" in (await _said(api))[1]["missing"]
        own_redis_server.start()
        async with asyncio.timeout(30):
            await api.services.state.ready.wait()
        assert "redis" not in (await _said(api))[1]["missing"]


async def test_a_redis_that_may_forget_is_refused_by_name(own_redis_server: RedisServer, database_url: str) -> None:
    async with create_redis(settings_for(own_redis_server.url, database_url)) as redis:
        await redis.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(UnsafeRedis, match="LASTPORTION_REDIS_ALLOW_UNSAFE"):
        async with running_api(settings_for(own_redis_server.url, database_url)):
            pass
    async with running_api(settings_for(own_redis_server.url, database_url, redis_allow_unsafe=True)) as api:
        assert "redis" not in (await _said(api))[1]["missing"]


async def test_metrics_count_requests_outcomes_and_jobs(api: Api) -> None:
    async def value(line: str) -> float:
        for found in (await api.client.get("/metrics")).text.splitlines():
            if found.startswith(f"{line} "):
                return float(found.rpartition(" ")[2])
        return 0.0

    requests = "lastportion_http_request_duration_seconds_count"
    names = {
        "granted": 'lastportion_reservations_total{outcome="granted"}',
        "existing": 'lastportion_reservations_total{outcome="existing"}',
        "all_reserved": 'lastportion_reservations_total{outcome="all_reserved"}',
        "requests": requests + '{method="POST",route="/v1/reservations",status="201"}',
        "unmatched": requests + '{method="GET",route="unmatched",status="404"}',
        "pools": requests + '{method="GET",route="/v1/pools/{pool:path}",status="404"}',
    }
    before = {name: await value(line) for name, line in names.items()}
    await api.client.put("/v1/pools/seat", json={"cap": 1})
    for _ in range(2):
        await api.client.post("/v1/reservations", json={"id": "r", "claims": [{"pool": "seat", "quantity": 1}]})
    await api.client.post("/v1/reservations", json={"claims": [{"pool": "seat", "quantity": 1}]})
    await api.client.get("/nowhere/at/all")
    await api.client.get("/v1/pools/nothing")
    await api.client.get("/v1/pools/nothing-either")
    counted = {name: await value(line) - before[name] for name, line in names.items()}
    assert counted == {"granted": 1, "existing": 1, "all_reserved": 1, "requests": 1, "unmatched": 1, "pools": 2}

    await _run_job(api, "weekly", age_seconds=100)
    assert await value('lastportion_job_overdue{job="weekly"}') == 1
    assert await value("lastportion_ready") == 0
    answer = await api.client.get("/metrics", headers={"authorization": ""})
    assert answer.headers["content-type"].startswith("text/plain")
