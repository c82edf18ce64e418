"""Bad input of every kind gets the contract's error in the contract's shape, and changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from structlog.testing import capture_logs

from api.authentication import DEV_KEY
from tests.integration.conftest import DEV, Api, running_api, settings_for
from tests.loopback import listening_socket, served

if TYPE_CHECKING:
    from api.servers import RedisServer

FIVE_MB = 5 * 1024 * 1024
JSON = {"content-type": "application/json"}


@pytest.fixture
async def shop(redis_server: RedisServer, database_url: str) -> AsyncIterator[Api]:
    """An app with one pool of 10, of which one reservation ``held`` holds one."""
    async with running_api(settings_for(redis_server.url, database_url)) as running:
        await running.client.put("/v1/pools/seat", json={"cap": 10})
        answer = await running.client.post(
            "/v1/reservations", json={"id": "held", "claims": [{"pool": "seat", "quantity": 1}]}
        )
        assert answer.status_code == 201
        yield running


async def _facts(api: Api) -> tuple[Any, ...]:
    """All that a request could have changed: every key in Redis as it stands, and the definitions."""
    redis = api.services.redis
    entries = []
    async for key in redis.scan_iter(match="*:t:*"):
        entries.append((key, sorted((await redis.hgetall(key)).items())))
    for pattern in ("*:r:*", "*:x:*", "*:outbox"):
        async for key in redis.scan_iter(match=pattern):
            entries.append((key, await redis.dump(key) is not None, await _size(api, key)))
    pools = (await api.client.get("/v1/pools/seat")).json()
    return sorted(entries), pools


async def _size(api: Api, key: str) -> int:
    sizes = {"hash": api.services.redis.hlen, "zset": api.services.redis.zcard, "stream": api.services.redis.xlen}
    return int(await sizes[await api.services.redis.type(key)](key))


def _claims(quantity: Any, pool: Any = "seat") -> bytes:
    return json.dumps({"claims": [{"pool": pool, "quantity": quantity}]}).encode()


RESERVE = "/v1/reservations"
CASES: dict[str, tuple[str, str, bytes, int, str]] = {
    "quantity negative": ("POST", RESERVE, _claims(-1), 422, "invalid"),
    "quantity zero": ("POST", RESERVE, _claims(0), 422, "invalid"),
    "quantity fractional": ("POST", RESERVE, _claims(0.5), 422, "invalid"),
    "quantity 1.0": ("POST", RESERVE, _claims(1.0), 422, "invalid"),
    "quantity boolean": ("POST", RESERVE, _claims(True), 422, "invalid"),
    "quantity string": ("POST", RESERVE, _claims("1"), 422, "invalid"),
    "quantity null": ("POST", RESERVE, _claims(None), 422, "invalid"),
    "quantity huge": ("POST", RESERVE, _claims(10**300), 422, "invalid"),
    "quantity over a million": ("POST", RESERVE, _claims(1_000_001), 422, "invalid"),
    "quantity NaN": ("POST", RESERVE, b'{"claims":[{"pool":"seat","quantity":NaN}]}', 400, "malformed_body"),
    "one claim of two bad": (
        "POST",
        RESERVE,
        b'{"claims":[{"pool":"seat","quantity":1},{"pool":"seat","quantity":-1}]}',
        422,
        "invalid",
    ),
    "pool with braces": ("POST", RESERVE, _claims(1, "{seat}"), 422, "invalid"),
    "pool with a colon": ("POST", RESERVE, _claims(1, "a:b"), 422, "invalid"),
    "pool with a bar": ("POST", RESERVE, _claims(1, "seat|0000000001"), 422, "invalid"),
    "pool of the mark": ("POST", RESERVE, _claims(1, "!build"), 422, "invalid"),
    "pool with NUL": ("POST", RESERVE, _claims(1, "a\0"), 422, "invalid"),
    "pool too long": ("POST", RESERVE, _claims(1, "a" * 129), 422, "invalid"),
    "pool a number": ("POST", RESERVE, _claims(1, 3), 422, "invalid"),
    "id too long": (
        "POST",
        RESERVE,
        json.dumps({"id": "a" * 129, "claims": [{"pool": "seat", "quantity": 1}]}).encode(),
        422,
        "invalid",
    ),
    "id with a space": ("POST", RESERVE, b'{"id":"a b","claims":[{"pool":"seat","quantity":1}]}', 422, "invalid"),
    "unknown field": ("POST", RESERVE, b'{"claims":[{"pool":"seat","quantity":1}],"force":true}', 422, "invalid"),
    "claims an object": ("POST", RESERVE, b'{"claims":{"pool":"seat","quantity":1}}', 422, "invalid"),
    "claims empty": ("POST", RESERVE, b'{"claims":[]}', 422, "invalid"),
    "claims too many": (
        "POST",
        RESERVE,
        json.dumps({"claims": [{"pool": "seat", "quantity": 1}] * 33}).encode(),
        422,
        "invalid",
    ),
    "a list": ("POST", RESERVE, b"[]", 422, "invalid"),
    "null": ("POST", RESERVE, b"null", 422, "invalid"),
    "nothing": ("POST", RESERVE, b"", 400, "malformed_body"),
    "truncated": ("POST", RESERVE, _claims(1)[:-1], 400, "malformed_body"),
    "not UTF-8": ("POST", RESERVE, _claims(1).replace(b"seat", b"se\xffat"), 400, "malformed_body"),
    "field twice": ("POST", RESERVE, b'{"claims":[{"pool":"seat","quantity":1,"quantity":9}]}', 400, "malformed_body"),
    "deep nesting": ("POST", RESERVE, b'{"metadata":' + b"[" * 500_000, 400, "malformed_body"),
    "deep nesting closed": ("POST", RESERVE, b"[" * 200_000 + b"]" * 200_000, 400, "malformed_body"),
    "5 MB": ("POST", RESERVE, b'{"customer":"' + b"x" * FIVE_MB + b'"}', 413, "too_large"),
    "5 MB of blanks": ("PUT", "/v1/pools/seat", b'{"cap":1}' + b" " * FIVE_MB, 413, "too_large"),
    "batch of 501": (
        "POST",
        "/v1/reservations:batch",
        json.dumps({"reservations": [{"claims": [{"pool": "seat", "quantity": 1}]}] * 501}).encode(),
        422,
        "invalid",
    ),
    "cap negative": ("PUT", "/v1/pools/seat", b'{"cap":-1}', 422, "invalid"),
    "cap a string": ("PUT", "/v1/pools/seat", b'{"cap":"9"}', 422, "invalid"),
    "cap missing": ("PUT", "/v1/pools/seat", b"{}", 422, "invalid"),
    "window reversed": (
        "PUT",
        "/v1/pools/seat",
        b'{"cap":1,"opens_at":"2026-01-02T00:00:00Z","closes_at":"2026-01-01T00:00:00Z"}',
        422,
        "invalid",
    ),
    "time without offset": ("PUT", "/v1/pools/seat", b'{"cap":1,"opens_at":"2026-01-02T00:00:00"}', 422, "invalid"),
    "status unknown": ("PUT", "/v1/pools/seat", b'{"cap":1,"status":"gone"}', 422, "invalid"),
    "pool id in the path with braces": ("PUT", "/v1/pools/%7B3%7D", b'{"cap":1}', 422, "invalid"),
    "pool id in the path with NUL": ("PUT", "/v1/pools/a%00", b'{"cap":1}', 422, "invalid"),
    "pool id in the path with a colon": ("PUT", "/v1/pools/a:b", b'{"cap":1}', 422, "invalid"),
    "pool id in the path too long": ("PUT", "/v1/pools/" + "a" * 129, b'{"cap":1}', 422, "invalid"),
    "pool id in the path not UTF-8": ("PUT", "/v1/pools/%ff", b'{"cap":1}', 422, "invalid"),
    "reservation id in the path": ("POST", "/v1/reservations/a%7Cb/release", b"", 422, "invalid"),
    "release with a field": ("POST", "/v1/reservations/held/release", b'{"force":true}', 422, "invalid"),
    "complete with a bad reference": ("POST", "/v1/reservations/held/complete", b'{"payment_ref":7}', 422, "invalid"),
    "extend by nothing": ("POST", "/v1/reservations/held/extend", b"{}", 422, "invalid"),
    "extend by 8 days": ("POST", "/v1/reservations/held/extend", b'{"ttl_seconds":691200}', 422, "invalid"),
    "cancel without restock": ("POST", "/v1/reservations/held/cancel", b"{}", 422, "invalid"),
    "orders of a customer with NUL": ("GET", "/v1/orders?customer=a%00b", b"", 422, "invalid"),
    "orders of a blank customer": ("GET", "/v1/orders?customer=%20", b"", 422, "invalid"),
    "orders after what is no id": ("GET", "/v1/orders?after=%00", b"", 422, "invalid"),
    "no such address": ("POST", "/v1/reservation", b"{}", 404, "not_found"),
    "a slash too many": ("POST", "/v1/reservations/", b"{}", 404, "not_found"),
    "no such method": ("DELETE", "/v1/reservations/held", b"", 405, "method_not_allowed"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_bad_input_is_refused_and_changes_nothing(shop: Api, case: tuple[str, str, bytes, int, str]) -> None:
    method, path, body, status, code = case
    before = await _facts(shop)
    answer = await shop.client.request(method, path, content=body, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    assert answer.json()["error"]["message"]
    assert ("fields" in answer.json()["error"]) == (code == "invalid")
    assert await _facts(shop) == before


async def test_a_body_that_says_it_is_something_else_is_malformed(shop: Api) -> None:
    for content_type in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", ""):
        answer = await shop.client.post(RESERVE, content=_claims(1), headers={"content-type": content_type})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed_body"), content_type
    for content_type in ("application/json; charset=utf-8", "APPLICATION/JSON", "application/merge-patch+json"):
        answer = await shop.client.post(RESERVE, content=_claims(1), headers={"content-type": content_type})
        assert answer.status_code == 201, content_type


async def test_a_body_in_chunks_is_bounded_too(shop: Api) -> None:
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(5 * 1024):
            sent += 1024
            yield b" " * 1024

    answer = await shop.client.post(RESERVE, content=chunks(), headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert answer.json()["error"]["limit_bytes"] == 1_048_576
    assert sent <= 1_048_576 + 2048


async def test_a_body_at_the_limit_is_read(shop: Api) -> None:
    body = _claims(1)
    answer = await shop.client.post(RESERVE, content=body + b" " * (1_048_576 - len(body)), headers=JSON)
    assert answer.status_code == 201
    answer = await shop.client.post(RESERVE, content=body + b" " * (1_048_577 - len(body)), headers=JSON)
    assert answer.status_code == 413


async def test_what_nobody_expected_is_logged_and_tells_nothing(shop: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("the secret is xyzzy")

    monkeypatch.setattr(shop.services.engine, "read_pool", broken)
    with capture_logs() as logs:
        answer = await shop.client.get("/v1/pools/seat")
    assert answer.status_code == 500
    assert answer.json() == {"error": {"code": "internal_error", "message": "Something broke; it was logged."}}
    (broken_line,) = (line for line in logs if line["event"] == "request_broke")
    assert broken_line["exc_info"] is True
    assert (broken_line["path"], broken_line["tenant"]) == ("/v1/pools/seat", "demo")


async def test_an_address_is_logged_in_one_line_without_control_characters(shop: Api) -> None:
    with capture_logs() as logs:
        await shop.client.get("/v1/pools/a%00b%1b%5b2J%0afake%E2%80%AEx")
        await shop.client.get("/v1/pools/caf%C3%A9")
    told = [line["path"] for line in logs if line["event"] == "request"]
    assert told == ["/v1/pools/a%00b%1B%5B2J%0Afake%E2%80%AEx", "/v1/pools/café"]


async def test_the_document_describes_bodies_and_keys(shop: Api) -> None:
    document = (await shop.client.get("/openapi.json", headers=DEV)).json()
    body = document["paths"]["/v1/reservations"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ReservationBody"}
    claim = document["components"]["schemas"]["ClaimBody"]["properties"]["quantity"]
    assert (claim["type"], claim["minimum"], claim["maximum"]) == ("integer", 1, 1_000_000)
    assert document["components"]["schemas"]["PoolBody"]["properties"]["opens_at"]["anyOf"][0]["format"] == "date-time"
    assert document["paths"]["/healthz"]["get"]["security"] == []
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert set(operation["responses"]) - {"201"} == {"200", "default"}, path
            refused = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert refused == {"$ref": "#/components/schemas/Error"}
    assert set(document["components"]["schemas"]).isdisjoint({"HTTPValidationError", "ValidationError"})
    assert (await shop.client.get("/docs")).status_code == 200


NO_HTTP: dict[str, bytes] = {
    "no such verb": b"FOO /v1/pools/seat HTTP/1.1\r\nHost: a\r\n\r\n",
    "noise": bytes(range(256)),
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a length below nothing": b"POST /v1/reservations HTTP/1.1\r\nContent-Length: -1\r\n\r\n{}",
    "a length past counting": b"POST /v1/reservations HTTP/1.1\r\nContent-Length: %b\r\n\r\n{}" % (b"9" * 5000),
    "two lengths": b"POST /v1/reservations HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "NUL in a header": b"GET /v1/pools/seat HTTP/1.1\r\nIdempotency-Key: a\0b\r\n\r\n",
    "a folded header": b"GET /v1/pools/seat HTTP/1.1\r\nIdempotency-Key: a\r\n Evil: b\r\n\r\n",
    "an address of raw UTF-8": "GET /v1/pools/é HTTP/1.1\r\n\r\n".encode(),
}


async def test_what_is_no_http_gets_the_shape_of_errors_too(shop: Api) -> None:
    async with served(shop.app, listening_socket()) as address:
        for name, said in NO_HTTP.items():
            reader, writer = await asyncio.open_connection(*address.removeprefix("http://").split(":"))
            writer.write(said)
            async with asyncio.timeout(10):
                head, body = (await reader.read()).split(b"\r\n\r\n")
            writer.close()
            assert head.startswith(b"HTTP/1.1 400 "), name
            assert b"content-type: application/json" in head, name
            assert json.loads(body)["error"]["code"] == "malformed_body", name


async def test_over_a_socket_large_bodies_and_clients_that_leave_do_no_harm(shop: Api) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(80):
            yield b" " * 65_536

    async with (
        served(shop.app, listening_socket()) as address,
        httpx.AsyncClient(base_url=address, headers=DEV | JSON) as client,
    ):
        for body in (b" " * FIVE_MB, chunks()):
            answer = await client.post(RESERVE, content=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        before = await _facts(shop)
        _, writer = await asyncio.open_connection(*address.removeprefix("http://").split(":"))
        head = f"POST {RESERVE} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {DEV_KEY}\r\nContent-Length: 900\r\n\r\n"
        with capture_logs() as logs:
            writer.write(head.encode() + _claims(1))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            async with asyncio.timeout(10):
                while not any(line["event"] == "client_gone" for line in logs):  # noqa: ASYNC110 -- nothing else tells
                    await asyncio.sleep(0.01)
        assert not any(line["log_level"] == "error" for line in logs)
        assert await _facts(shop) == before
        assert (await client.post(RESERVE, content=_claims(1))).status_code == 201
