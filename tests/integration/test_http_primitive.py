"""Pools and reservations over HTTP, in the contract's words."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.conftest import Api

POOL_FIELDS = {
    "pool",
    "cap",
    "completed",
    "reserved",
    "available",
    "status",
    "opens_at",
    "closes_at",
    "per_customer",
    "late_payment",
    "next_expiry_at",
}


async def put_pool(api: Api, pool: str, **definition: Any) -> dict[str, Any]:
    answer = await api.client.put(f"/v1/pools/{pool}", json={"cap": 1} | definition)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def get_pool(api: Api, pool: str) -> dict[str, Any]:
    answer = await api.client.get(f"/v1/pools/{pool}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def claim(pool: str, quantity: int = 1) -> dict[str, Any]:
    return {"pool": pool, "quantity": quantity}


async def reserve(api: Api, *claims: dict[str, Any], **rest: Any) -> Any:
    return await api.client.post("/v1/reservations", json={"claims": list(claims)} | rest)


def at(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


async def test_a_pool_is_defined_read_and_replaced(api: Api) -> None:
    defined = await put_pool(
        api,
        "courses/maths",
        cap=30,
        opens_at="2020-01-01T01:00:00+01:00",
        closes_at="2099-12-31T23:59:59.5Z",
        per_customer=2,
        late_payment="refund_if_full",
    )
    assert defined == {
        "pool": "courses/maths",
        "cap": 30,
        "completed": 0,
        "reserved": 0,
        "available": 30,
        "status": "active",
        "opens_at": "2020-01-01T00:00:00Z",
        "closes_at": "2099-12-31T23:59:59.500Z",
        "per_customer": 2,
        "late_payment": "refund_if_full",
        "next_expiry_at": None,
    }
    assert await get_pool(api, "courses/maths") == defined
    replaced = await put_pool(api, "courses/maths", cap=None)
    assert set(replaced) == POOL_FIELDS
    assert replaced["available"] is None
    assert (replaced["opens_at"], replaced["per_customer"], replaced["late_payment"]) == (None, None, "honour")


async def test_an_unknown_pool_is_not_found_even_for_a_tenant_without_any(api: Api) -> None:
    for _ in range(2):
        answer = await api.client.get("/v1/pools/nothing")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_pool")
        answer = await reserve(api, claim("nothing"))
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "unknown_pool"
        assert answer.json()["error"]["pool"] == "nothing"
        await put_pool(api, "something")


async def test_a_reservation_takes_units_and_says_when_they_return(api: Api) -> None:
    await put_pool(api, "seat", cap=5)
    answer = await reserve(api, claim("seat", 2), customer="Zoë", ttl_seconds=90, metadata={"till": "7"}, id="r-1")
    assert answer.status_code == 201
    body = answer.json()
    created, expires = at(body["created_at"]), at(body["expires_at"])
    assert timedelta(seconds=90) <= expires - created < timedelta(seconds=91)
    assert expires.microsecond == 0
    assert body == {
        "id": "r-1",
        "status": "reserved",
        "customer": "Zoë",
        "claims": [claim("seat", 2)],
        "created_at": body["created_at"],
        "expires_at": body["expires_at"],
        "expired": False,
        "completed_at": None,
        "released_at": None,
        "late": False,
        "over_cap": 0,
        "metadata": {"till": "7"},
    }
    assert (await api.client.get("/v1/reservations/r-1")).json() == body
    pool = await get_pool(api, "seat")
    assert (pool["reserved"], pool["available"], pool["next_expiry_at"]) == (2, 3, body["expires_at"])


async def test_the_same_request_gets_the_same_reservation_and_another_a_conflict(api: Api) -> None:
    await put_pool(api, "seat", cap=5)
    first = await reserve(api, claim("seat"), id="r", customer="a", ttl_seconds=60)
    again = await reserve(api, claim("seat"), id="r", customer="a", ttl_seconds=60)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    for changed in (
        {"customer": "b", "ttl_seconds": 60},
        {"customer": "a", "ttl_seconds": 61},
        {"ttl_seconds": 60},
    ):
        answer = await reserve(api, claim("seat"), id="r", **changed)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "id_conflict")
    answer = await reserve(api, claim("seat", 2), id="r", customer="a", ttl_seconds=60)
    assert answer.status_code == 409
    assert (await get_pool(api, "seat"))["reserved"] == 1


async def test_an_idempotency_key_stands_for_one_reservation_of_its_tenant(api: Api) -> None:
    await put_pool(api, "seat", cap=5)
    body = {"claims": [claim("seat")]}
    first = await api.client.post("/v1/reservations", json=body, headers=[(b"idempotency-key", "Order 7 / é".encode())])
    again = await api.client.post("/v1/reservations", json=body, headers=[(b"idempotency-key", "Order 7 / é".encode())])
    other = await api.client.post("/v1/reservations", json=body, headers=[(b"idempotency-key", "order 7 / é".encode())])
    assert [first.status_code, again.status_code, other.status_code] == [201, 200, 201]
    assert first.json()["id"] == again.json()["id"] != other.json()["id"]
    given = await api.client.post("/v1/reservations", json=body | {"id": "mine"}, headers={"Idempotency-Key": "k"})
    assert given.json()["id"] == "mine"
    assert (await reserve(api, claim("seat"))).json()["id"] != (await reserve(api, claim("seat"))).json()["id"]


@pytest.mark.parametrize("key", ["", "   ", "x" * 256, "a\x01b"])
async def test_an_idempotency_key_that_can_not_be_is_refused(api: Api, key: str) -> None:
    await put_pool(api, "seat")
    answer = await api.client.post(
        "/v1/reservations", json={"claims": [claim("seat")]}, headers={"Idempotency-Key": key}
    )
    assert answer.status_code == 422
    assert list(answer.json()["error"]["fields"]) == ["Idempotency-Key"]
    assert (await get_pool(api, "seat"))["reserved"] == 0


async def test_claims_on_one_pool_are_added_up(api: Api) -> None:
    await put_pool(api, "seat", cap=3)
    refused = await reserve(api, claim("seat", 2), claim("seat", 2))
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "sold_out")
    granted = await reserve(api, claim("seat", 1), claim("seat", 2))
    assert granted.json()["claims"] == [claim("seat", 3)]
    assert (await get_pool(api, "seat"))["available"] == 0


async def test_all_claims_or_none(api: Api) -> None:
    await put_pool(api, "gate", cap=5)
    await put_pool(api, "dish", cap=1)
    assert (await reserve(api, claim("gate"), claim("dish"))).status_code == 201
    refused = await reserve(api, claim("gate"), claim("dish"))
    assert refused.json()["error"]["pool"] == "dish"
    assert (await get_pool(api, "gate"))["reserved"] == 1


async def test_refusals_say_what_the_contract_says(api: Api) -> None:
    await put_pool(api, "one", cap=1)
    held = (await reserve(api, claim("one"), ttl_seconds=120)).json()
    error = (await reserve(api, claim("one"))).json()["error"]
    assert (error["code"], error["pool"], error["available"]) == ("all_reserved", "one", 0)
    assert error["retry_at"] == held["expires_at"]

    await put_pool(api, "none", cap=0)
    error = (await reserve(api, claim("none"))).json()["error"]
    assert (error["code"], error["pool"], error["available"]) == ("sold_out", "none", 0)
    assert "retry_at" not in error

    await put_pool(api, "later", cap=None, opens_at="2099-01-01T00:00:00+02:00")
    error = (await reserve(api, claim("later"))).json()["error"]
    assert (error["code"], error["opens_at"], error["available"]) == ("not_open", "2098-12-31T22:00:00Z", None)

    await put_pool(api, "past", closes_at="2020-01-01T00:00:00Z")
    assert (await reserve(api, claim("past"))).json()["error"]["code"] == "closed"
    await put_pool(api, "held", status="paused")
    assert (await reserve(api, claim("held"))).json()["error"]["code"] == "paused"

    await put_pool(api, "fair", cap=9, per_customer=1)
    mine = (await reserve(api, claim("fair"), customer="a")).json()["id"]
    answer = await reserve(api, claim("fair"), customer="a")
    assert answer.status_code == 409
    assert (answer.json()["error"]["code"], answer.json()["error"]["held_by"]) == ("limit_reached", mine)
    answer = await reserve(api, claim("fair"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")
    assert list(answer.json()["error"]["fields"]) == ["customer"]


async def test_release_gives_back_once_and_leaves_what_is_sold(api: Api) -> None:
    await put_pool(api, "seat", cap=2)
    reserved = (await reserve(api, claim("seat"))).json()
    released = await api.client.post(f"/v1/reservations/{reserved['id']}/release")
    assert released.status_code == 200
    assert released.json()["outcome"] == "released"
    assert released.json()["reservation"]["status"] == "released"
    assert at(released.json()["reservation"]["released_at"]) >= at(reserved["created_at"])
    again = await api.client.post(f"/v1/reservations/{reserved['id']}/release", json={})
    assert again.json()["outcome"] == "already_released"
    assert (await get_pool(api, "seat"))["available"] == 2

    sold = (await reserve(api, claim("seat"))).json()["id"]
    await api.client.post(f"/v1/reservations/{sold}/complete")
    answer = await api.client.post(f"/v1/reservations/{sold}/release")
    assert (answer.status_code, answer.json()["outcome"]) == (200, "already_completed")
    pool = await get_pool(api, "seat")
    assert (pool["completed"], pool["reserved"], pool["available"]) == (1, 0, 1)


async def test_complete_counts_once_and_tells_a_second_payment_apart(api: Api) -> None:
    await put_pool(api, "seat", cap=2)
    reserved = (await reserve(api, claim("seat"), id="r")).json()
    outcomes = []
    for ref in ("pi_1", "pi_1", "pi_2"):
        answer = await api.client.post("/v1/reservations/r/complete", json={"payment_ref": ref})
        assert answer.status_code == 200
        outcomes.append(answer.json()["outcome"])
    assert outcomes == ["completed", "already_completed", "duplicate_payment"]
    body = answer.json()["reservation"]
    assert (body["status"], body["late"], body["over_cap"], body["expired"]) == ("completed", False, 0, False)
    assert at(body["completed_at"]) >= at(reserved["created_at"])
    pool = await get_pool(api, "seat")
    assert (pool["completed"], pool["reserved"]) == (1, 0)


async def test_extend_moves_the_end_forward_only_while_alive(api: Api) -> None:
    await put_pool(api, "seat", cap=2)
    reserved = (await reserve(api, claim("seat"), id="r", ttl_seconds=60)).json()
    longer = await api.client.post("/v1/reservations/r/extend", json={"ttl_seconds": 600})
    assert longer.status_code == 200
    assert at(longer.json()["expires_at"]) > at(reserved["expires_at"]) + timedelta(seconds=500)
    shorter = await api.client.post("/v1/reservations/r/extend", json={"ttl_seconds": 1})
    assert shorter.json()["expires_at"] == longer.json()["expires_at"]
    await api.client.post("/v1/reservations/r/release")
    answer = await api.client.post("/v1/reservations/r/extend", json={"ttl_seconds": 60})
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "illegal_transition"
    assert answer.json()["error"]["status"] == "released"


@pytest.mark.parametrize(("restock", "available"), [(True, 1), (False, 0)])
async def test_cancel_undoes_a_sale_with_or_without_its_units(api: Api, restock: bool, available: int) -> None:
    await put_pool(api, "seat", cap=1)
    await reserve(api, claim("seat"), id="r")
    early = await api.client.post("/v1/reservations/r/cancel", json={"restock": restock})
    assert (early.status_code, early.json()["error"]["status"]) == (409, "reserved")
    await api.client.post("/v1/reservations/r/complete")
    outcomes = [
        (await api.client.post("/v1/reservations/r/cancel", json={"restock": restock})).json()["outcome"]
        for _ in range(2)
    ]
    assert outcomes == ["cancelled", "already_cancelled"]
    assert (await get_pool(api, "seat"))["available"] == available
    body = (await api.client.get("/v1/reservations/r")).json()
    assert (body["status"], body["released_at"]) == ("cancelled", None)


@pytest.mark.parametrize(
    ("verb", "body"),
    [("", None), ("/complete", {}), ("/release", {}), ("/extend", {"ttl_seconds": 1}), ("/cancel", {"restock": True})],
)
async def test_an_unknown_reservation_is_not_found(api: Api, verb: str, body: dict[str, Any] | None) -> None:
    await put_pool(api, "seat")
    method = "GET" if body is None else "POST"
    answer = await api.client.request(method, f"/v1/reservations/nobody{verb}", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_reservation")


async def test_a_batch_judges_each_on_its_own(api: Api) -> None:
    await put_pool(api, "seat", cap=2)
    elements = [
        {"id": "a", "claims": [claim("seat")]},
        {"id": "b", "claims": [{"pool": "seat", "quantity": 0}]},
        "nonsense",
        {"id": "a", "claims": [claim("seat")]},
        {"id": "a", "claims": [claim("seat", 2)]},
        {"claims": [claim("nothing")]},
        {"claims": [claim("seat")], "extra": 1},
        {"claims": [claim("seat")]},
        {"claims": [claim("seat")]},
    ]
    answer = await api.client.post("/v1/reservations:batch", json={"reservations": elements})
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [result["status"] for result in results] == [201, 422, 422, 200, 409, 404, 422, 201, 409]
    assert results[0]["reservation"] == results[3]["reservation"]
    assert list(results[1]["error"]["fields"]) == ["claims.0.quantity"]
    assert results[4]["error"]["code"] == "id_conflict"
    assert list(results[6]["error"]["fields"]) == ["extra"]
    assert results[8]["error"]["code"] == "all_reserved"
    assert (await get_pool(api, "seat"))["reserved"] == 2


async def test_a_batch_of_500_under_one_key_is_made_once(api: Api) -> None:
    await put_pool(api, "seat", cap=500)
    body = {"reservations": [{"claims": [claim("seat")]}] * 500}
    first = await api.client.post("/v1/reservations:batch", json=body, headers={"Idempotency-Key": "k"})
    again = await api.client.post("/v1/reservations:batch", json=body, headers={"Idempotency-Key": "k"})
    assert {result["status"] for result in first.json()["results"]} == {201}
    assert {result["status"] for result in again.json()["results"]} == {200}
    ids = [result["reservation"]["id"] for result in first.json()["results"]]
    assert len(set(ids)) == 500
    assert [result["reservation"]["id"] for result in again.json()["results"]] == ids
    assert (await get_pool(api, "seat"))["reserved"] == 500
    assert (await api.client.post("/v1/reservations:batch", json={"reservations": []})).json() == {"results": []}


async def test_one_unit_and_200_at_once(api: Api) -> None:
    await put_pool(api, "last", cap=1)
    answers = await asyncio.gather(*(reserve(api, claim("last")) for _ in range(200)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [201] + [409] * 199
    assert {answer.json()["error"]["code"] for answer in answers if answer.status_code == 409} == {"all_reserved"}
    assert (await get_pool(api, "last"))["reserved"] == 1
