"""Every error has its status, every refusal its details, and none says more than it should."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from api.errors import STATUS_OF_CODE, error_answer, invalid_from, status_of
from engine import errors
from engine.domain import Outcome, Refusal
from engine.errors import Invalid, LastportionError, MalformedBody, NotReady, Refused, Unauthenticated, Unknown

CONTRACT = {
    "bad_signature": 400,
    "malformed_body": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "unknown_pool": 404,
    "unknown_reservation": 404,
    "unknown_code": 404,
    "unknown_listing": 404,
    "unknown_item": 404,
    "unknown_product": 404,
    "unknown_order": 404,
    "sold_out": 409,
    "all_reserved": 409,
    "limit_reached": 409,
    "not_open": 409,
    "closed": 409,
    "paused": 409,
    "id_conflict": 409,
    "illegal_transition": 409,
    "too_large": 413,
    "invalid": 422,
    "code_not_applicable": 422,
    "payment_provider_error": 502,
    "not_ready": 503,
    "backlog_full": 503,
    "storage_unavailable": 503,
    "payment_provider_timeout": 504,
}
REFUSALS = (
    Outcome.UNKNOWN_POOL,
    Outcome.PAUSED,
    Outcome.CLOSED,
    Outcome.NOT_OPEN,
    Outcome.LIMIT_REACHED,
    Outcome.SOLD_OUT,
    Outcome.ALL_RESERVED,
)


def _kinds(of: type[LastportionError] = LastportionError) -> Iterator[type[LastportionError]]:
    for kind in of.__subclasses__():
        yield kind
        yield from _kinds(kind)


@pytest.mark.parametrize("code", CONTRACT)
def test_a_code_has_the_status_of_the_contract(code: str) -> None:
    assert status_of(code) == CONTRACT[code]


@pytest.mark.parametrize("kind", sorted(_kinds(), key=lambda kind: kind.__name__))
def test_every_error_has_a_status(kind: type[LastportionError]) -> None:
    if kind.__init__ is Unknown.__init__:
        assert status_of(Unknown("pool", "a").code) == 404
    elif kind is not Refused:  # its codes are the outcomes below
        assert kind.code in STATUS_OF_CODE
        assert kind.code != LastportionError.code


def test_the_table_names_no_code_that_nothing_raises() -> None:
    raised = {kind.code for kind in _kinds()} | {outcome.value for outcome in REFUSALS}
    assert set(STATUS_OF_CODE) - raised == {"not_found", "method_not_allowed", "internal_error"}


def test_a_code_outside_the_table_is_a_fault_of_ours() -> None:
    assert status_of(LastportionError.code) == 500
    assert errors.LastportionError("x").code not in STATUS_OF_CODE


def _answer(error: LastportionError) -> tuple[int, dict[str, object], dict[str, str]]:
    answer = error_answer(error)
    return answer.status_code, json.loads(bytes(answer.body))["error"], dict(answer.headers)


@pytest.mark.parametrize("outcome", REFUSALS)
def test_a_refusal_names_its_pool_and_what_is_left(outcome: Outcome) -> None:
    status, body, _ = _answer(Refused(Refusal(outcome, "course", available=3)))
    assert status == (404 if outcome is Outcome.UNKNOWN_POOL else 409)
    assert body["code"] == outcome.value
    assert body["pool"] == "course"
    assert ("available" in body) == (outcome is not Outcome.UNKNOWN_POOL)
    assert "retry_at" not in body
    assert "opens_at" not in body
    assert "held_by" not in body


def test_a_refusal_says_what_the_buyer_may_wait_for() -> None:
    _, body, _ = _answer(Refused(Refusal(Outcome.ALL_RESERVED, "a", available=0, retry_at_ms=1_796_083_200_000)))
    assert body["retry_at"] == "2026-12-01T00:00:00Z"
    _, body, _ = _answer(Refused(Refusal(Outcome.NOT_OPEN, "a", available=None, opens_at_ms=1_796_083_200_250)))
    assert body["opens_at"] == "2026-12-01T00:00:00.250Z"
    assert body["available"] is None
    _, body, _ = _answer(Refused(Refusal(Outcome.LIMIT_REACHED, "a", available=5, held_by="r1")))
    assert body["held_by"] == "r1"


def test_not_now_says_when() -> None:
    status, body, headers = _answer(NotReady())
    assert (status, body["code"], headers["retry-after"]) == (503, "not_ready", "1")


def test_a_missing_key_says_which_scheme() -> None:
    status, _, headers = _answer(Unauthenticated())
    assert (status, headers["www-authenticate"]) == (401, "Bearer")


def test_an_unknown_thing_is_named() -> None:
    status, body, _ = _answer(Unknown("order", "o1"))
    assert (status, body["code"], body["order"]) == (404, "unknown_order", "o1")


def test_findings_become_dotted_paths_and_never_repeat_the_input() -> None:
    found = [
        {"type": "int_type", "loc": ("claims", 0, "quantity"), "msg": "Input should be a valid integer"},
        {"type": "extra_forbidden", "loc": ("x" * 5000,), "msg": "Extra inputs are not permitted", "input": "secret"},
    ]
    error = invalid_from(found)
    assert isinstance(error, Invalid)
    fields = error.details["fields"]
    assert fields["claims.0.quantity"] == "should be a valid integer"
    assert max(len(path) for path in fields) == 200
    assert "secret" not in str(fields) + error.message


def test_what_is_no_json_is_malformed() -> None:
    assert isinstance(invalid_from([{"type": "json_invalid", "loc": (), "msg": "Invalid JSON"}]), MalformedBody)
