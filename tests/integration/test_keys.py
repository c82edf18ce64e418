"""Keys: what each scope opens, whose things a key reaches, and how a key comes and goes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from api.authentication import DEV_KEY
from api.key_commands import create_key, list_keys, revoke_key
from engine.domain import Scope
from engine.errors import Invalid, Unknown
from tests.integration.conftest import Api, running_api, settings_for

if TYPE_CHECKING:
    import httpx

    from api.servers import RedisServer
    from engine.settings import Settings

SEAT = {"claims": [{"pool": "seat", "quantity": 1}]}


@dataclass(frozen=True, slots=True)
class Office:
    """A running app without the key of dev, and a way to make keys for it."""

    api: Api
    settings: Settings

    async def key(self, tenant: str | None, *scopes: Scope) -> dict[str, str]:
        """The header of a new key."""
        made = await create_key(self.settings, tenant, "test", scopes)
        return {"authorization": f"Bearer {made.secret}"}

    async def ask(self, headers: dict[str, str] | None, method: str, path: str, body: Any = None) -> httpx.Response:
        """One request, with these headers alone."""
        self.api.client.headers.pop("authorization", None)
        return await self.api.client.request(method, path, json=body, headers=headers)


@pytest.fixture
async def office(redis_server: RedisServer, database_url: str) -> AsyncIterator[Office]:
    settings = settings_for(redis_server.url, database_url, sandbox=False)
    async with running_api(settings) as running:
        yield Office(running, settings)


CALLS: list[tuple[str, str, Any, set[Scope]]] = [
    ("PUT", "/v1/pools/seat", {"cap": 9}, {Scope.ADMIN}),
    ("GET", "/v1/pools/seat", None, {Scope.READ}),
    ("POST", "/v1/reservations", SEAT, {Scope.CHECKOUT}),
    ("POST", "/v1/reservations:batch", {"reservations": [SEAT]}, {Scope.CHECKOUT}),
    ("GET", "/v1/reservations/held", None, {Scope.READ, Scope.CHECKOUT}),
    ("POST", "/v1/reservations/held/extend", {"ttl_seconds": 60}, {Scope.SETTLE}),
    ("POST", "/v1/reservations/held/complete", {}, {Scope.SETTLE}),
    ("POST", "/v1/reservations/held/release", {}, {Scope.CHECKOUT}),
    ("POST", "/v1/reservations/held/cancel", {"restock": True}, {Scope.SETTLE}),
    ("PUT", "/v1/codes/school", {}, {Scope.ADMIN}),
    ("GET", "/v1/codes/school", None, {Scope.READ}),
    ("GET", "/v1/codes/school/usage", None, {Scope.READ}),
    ("PUT", "/v1/products/pack", {}, {Scope.ADMIN}),
    ("GET", "/v1/products/pack", None, {Scope.READ}),
    ("POST", "/v1/checkouts", {}, {Scope.CHECKOUT}),
    ("GET", "/v1/orders/o", None, {Scope.READ, Scope.CHECKOUT}),
    ("GET", "/v1/orders", None, {Scope.READ}),
    ("POST", "/v1/orders/o/confirm", {}, {Scope.SETTLE}),
    ("POST", "/v1/orders/o/cancel", {"restock": True}, {Scope.SETTLE}),
    ("POST", "/v1/orders/o/refund", {"id": "r1"}, {Scope.SETTLE}),
]
OPEN = {"/healthz", "/readyz", "/metrics"}


async def test_each_call_takes_its_scopes_and_no_other(office: Office) -> None:
    everything = await office.key("school", *Scope)
    await office.ask(everything, "PUT", "/v1/pools/seat", {"cap": 9})
    await office.ask(everything, "POST", "/v1/reservations", SEAT | {"id": "held"})
    keys = {scope: await office.key("school", scope) for scope in Scope}
    for method, path, body, scopes in CALLS:
        answer = await office.ask(None, method, path, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated"), path
        for scope in set(Scope) - scopes:
            answer = await office.ask(keys[scope], method, path, body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), (path, scope)
        for scope in scopes:
            answer = await office.ask(keys[scope], method, path, body)
            assert answer.status_code not in (401, 403), (path, scope, answer.text)


async def test_every_route_is_open_by_name_or_asks_for_a_key(office: Office) -> None:
    document = (await office.ask(None, "GET", "/openapi.json")).json()
    for path, methods in document["paths"].items():
        pattern = re.sub(r"\{\w+\}", "[^/]+", path)
        for method, described in methods.items():
            if described.get("security") == []:
                assert path in OPEN or path.startswith("/v1/webhooks/"), path
            else:
                assert any(m == method.upper() and re.fullmatch(pattern, p) for m, p, _, _ in CALLS), (method, path)


async def test_the_same_name_is_another_thing_for_another_tenant(office: Office) -> None:
    ours, theirs = await office.key("ours", *Scope), await office.key("theirs", *Scope)
    await office.ask(ours, "PUT", "/v1/pools/seat", {"cap": 1})
    await office.ask(ours, "POST", "/v1/reservations", SEAT | {"id": "r"})
    for _ in range(2):
        answer = await office.ask(theirs, "GET", "/v1/pools/seat")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_pool")
        answer = await office.ask(theirs, "POST", "/v1/reservations", SEAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_pool")
        for verb, body in (
            ("complete", {}),
            ("release", {}),
            ("extend", {"ttl_seconds": 1}),
            ("cancel", {"restock": True}),
        ):
            answer = await office.ask(theirs, "POST", f"/v1/reservations/r/{verb}", body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_reservation"), verb
        assert (await office.ask(theirs, "GET", "/v1/reservations/r")).status_code == 404
        await office.ask(theirs, "PUT", "/v1/pools/else", {"cap": 1})
    await office.ask(theirs, "PUT", "/v1/pools/seat", {"cap": 5})
    answer = await office.ask(theirs, "POST", "/v1/reservations", SEAT | {"id": "r"})
    assert answer.status_code == 201
    assert (await office.ask(ours, "GET", "/v1/pools/seat")).json()["cap"] == 1
    assert (await office.ask(theirs, "GET", "/v1/pools/seat")).json()["available"] == 4


async def test_an_idempotency_key_is_a_tenants_own(office: Office) -> None:
    ids = []
    for tenant in ("ours", "theirs"):
        key = await office.key(tenant, *Scope)
        await office.ask(key, "PUT", "/v1/pools/seat", {"cap": 1})
        answer = await office.ask(key | {"idempotency-key": "k"}, "POST", "/v1/reservations", SEAT)
        assert answer.status_code == 201
        ids.append(answer.json()["id"])
    assert ids[0] != ids[1]


async def test_a_platforms_key_names_the_tenant(office: Office) -> None:
    platform = await office.key(None, *Scope)
    answer = await office.ask(platform, "GET", "/v1/pools/seat")
    assert (answer.status_code, list(answer.json()["error"]["fields"])) == (422, ["Lastportion-Tenant"])
    for bad in ("", "a b", "a/b", "{a}", "x" * 129):
        answer = await office.ask(platform | {"lastportion-tenant": bad}, "GET", "/v1/pools/seat")
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid"), bad
    for tenant, cap in (("a", 1), ("b", 2)):
        answer = await office.ask(platform | {"lastportion-tenant": tenant}, "PUT", "/v1/pools/seat", {"cap": cap})
        assert answer.status_code == 200
    for tenant, cap in (("a", 1), ("b", 2)):
        answer = await office.ask(platform | {"lastportion-tenant": tenant}, "GET", "/v1/pools/seat")
        assert answer.json()["cap"] == cap
    answer = await office.ask(platform | {"lastportion-tenant": "c"}, "GET", "/v1/pools/seat")
    assert answer.status_code == 404


async def test_a_tenants_key_may_name_its_own_tenant_alone(office: Office) -> None:
    key = await office.key("ours", *Scope)
    await office.ask(key, "PUT", "/v1/pools/seat", {"cap": 1})
    assert (await office.ask(key | {"lastportion-tenant": "ours"}, "GET", "/v1/pools/seat")).status_code == 200
    answer = await office.ask(key | {"lastportion-tenant": "theirs"}, "GET", "/v1/pools/seat")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_tenant")


async def test_the_key_of_dev_is_nothing_outside_the_sandbox(office: Office) -> None:
    answer = await office.ask({"authorization": f"Bearer {DEV_KEY}"}, "GET", "/v1/pools/seat")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_key_is_kept_as_its_hash_and_can_be_ended(office: Office) -> None:
    made = await create_key(office.settings, "school", "till 1", [Scope.READ, Scope.ADMIN])
    async with office.api.services.database.connect() as connection:
        rows = (await connection.execute(text("select * from api_keys"))).all()
    assert made.secret not in str(rows)
    (listed,) = await list_keys(office.settings)
    assert (listed.id, listed.tenant, listed.name) == (made.key.id, "school", "till 1")
    assert listed.scopes == {Scope.READ, Scope.ADMIN}
    assert listed.created_at is not None
    assert listed.revoked_at is None
    await revoke_key(office.settings, made.key.id)
    assert (await list_keys(office.settings))[0].revoked_at is not None
    answer = await office.ask({"authorization": f"Bearer {made.secret}"}, "GET", "/v1/pools/seat")
    assert answer.status_code == 401
    for unknown in (made.key.id, "nobody"):
        with pytest.raises(Unknown):
            await revoke_key(office.settings, unknown)


async def test_a_key_that_can_not_be_is_not_made(office: Office) -> None:
    with pytest.raises(Invalid):
        await create_key(office.settings, "a b", "x", [Scope.READ])
    with pytest.raises(Invalid):
        await create_key(office.settings, "a", "x", [])
    assert await list_keys(office.settings) == []


async def test_no_key_is_ever_logged(office: Office) -> None:
    made = await create_key(office.settings, "school", "till", list(Scope))
    header = {"authorization": f"Bearer {made.secret}"}
    with capture_logs() as logs:
        await office.ask(header, "PUT", "/v1/pools/seat", {"cap": 1})
        await office.ask(header, "POST", "/v1/reservations", SEAT | {"id": "held", "customer": "Ada"})
        await office.ask({"authorization": "Bearer wrong-secret"}, "GET", "/v1/pools/seat")
        await office.ask(header, "GET", "/v1/reservations/held?key=" + made.secret)
    assert made.secret not in str(logs)
    assert "wrong-secret" not in str(logs)
    lines = [line for line in logs if line["event"] == "request"]
    assert [line["status"] for line in lines] == [200, 201, 401, 200]
    assert lines[1]["reservation"] == "held"
    assert (lines[1]["tenant"], lines[1]["key"]) == ("school", made.key.id)
