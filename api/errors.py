"""Errors on the wire: the one table of code → HTTP status, and the one shape of an error's body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from api.answers import json_answer
from api.times import written
from engine.domain import Outcome, Refusal
from engine.errors import (
    BacklogFull,
    BadSignature,
    CodeNotApplicable,
    Forbidden,
    IdConflict,
    IllegalTransition,
    Invalid,
    LastportionError,
    MalformedBody,
    NotReady,
    ProviderError,
    ProviderTimeout,
    Refused,
    StorageUnavailable,
    TooLarge,
    Unauthenticated,
    Unavailable,
)

UNKNOWN: Final = "unknown_"
NOT_FOUND: Final = "not_found"
METHOD_NOT_ALLOWED: Final = "method_not_allowed"
INTERNAL_ERROR: Final = "internal_error"

STATUS_OF_CODE: Final[Mapping[str, int]] = {
    MalformedBody.code: 400,
    BadSignature.code: 400,
    Unauthenticated.code: 401,
    Forbidden.code: 403,
    NOT_FOUND: 404,
    METHOD_NOT_ALLOWED: 405,
    Outcome.SOLD_OUT.value: 409,
    Outcome.ALL_RESERVED.value: 409,
    Outcome.LIMIT_REACHED.value: 409,
    Outcome.NOT_OPEN.value: 409,
    Outcome.CLOSED.value: 409,
    Outcome.PAUSED.value: 409,
    IdConflict.code: 409,
    IllegalTransition.code: 409,
    TooLarge.code: 413,
    Invalid.code: 422,
    CodeNotApplicable.code: 422,
    INTERNAL_ERROR: 500,
    ProviderError.code: 502,
    NotReady.code: 503,
    BacklogFull.code: 503,
    StorageUnavailable.code: 503,
    ProviderTimeout.code: 504,
}
"""Every code that an answer may carry; beside it only ``unknown_…``, which is 404 whatever follows."""

_MOST_FIELDS = 50
_LONGEST_PATH = 200
_WHERE_FROM = ("body", "query", "path", "header")
_log = structlog.get_logger("api")


def status_of(code: str) -> int:
    """The HTTP status of an error's code; a code that isn't in the table is a fault of ours, 500."""
    return 404 if code.startswith(UNKNOWN) else STATUS_OF_CODE.get(code, 500)


def error_of(error: LastportionError) -> dict[str, Any]:
    """What stands under ``error`` in the answer: code, message, and the details that apply."""
    if isinstance(error, Refused):
        return _refusal(error.refusal) | error.details | {"code": error.code, "message": error.message}
    details = {name: value for name, value in error.details.items() if value not in (None, {})}
    # Last, since an unknown code's own name for what is unknown is "code" too.
    return details | {"code": error.code, "message": error.message}


def _refusal(refusal: Refusal) -> dict[str, Any]:
    details: dict[str, Any] = {"pool": refusal.pool}
    if not refusal.outcome.value.startswith(UNKNOWN):
        details["available"] = refusal.available
    if refusal.retry_at_ms is not None:
        details["retry_at"] = written(refusal.retry_at_ms)
    if refusal.opens_at_ms is not None:
        details["opens_at"] = written(refusal.opens_at_ms)
    if refusal.held_by is not None:
        details["held_by"] = refusal.held_by
    return details


def error_answer(error: LastportionError) -> Response:
    """The whole answer to an error."""
    body = error_of(error)
    headers: dict[str, str] = {}
    if isinstance(error, Unavailable):
        headers["retry-after"] = str(error.retry_after_seconds)
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    return json_answer({"error": body}, status_of(body["code"]), headers)


def internal_error_answer() -> Response:
    """The answer to what nobody expected; the log has the rest."""
    return json_answer({"error": {"code": INTERNAL_ERROR, "message": "Something broke; it was logged."}}, 500)


def invalid_from(errors: Iterable[Mapping[str, Any]]) -> LastportionError:
    """Pydantic's findings as ``invalid`` with dotted paths, or as ``malformed_body`` when it isn't JSON."""
    fields: dict[str, str] = {}
    for error in errors:
        if error["type"] == "json_invalid":
            return MalformedBody("The body is not valid JSON.")
        if len(fields) < _MOST_FIELDS:
            fields[_path(error["loc"])] = _sentence(error)
    return Invalid("The request is not valid: " + ", ".join(list(fields)[:3]) + ".", fields=fields)


def _path(location: Iterable[str | int]) -> str:
    parts = [str(part) for part in location]
    if parts and parts[0] in _WHERE_FROM:
        parts = parts[1:]
    return ".".join(parts)[:_LONGEST_PATH] or "body"


def _sentence(error: Mapping[str, Any]) -> str:
    message = str(error["msg"])
    if error["type"] == "value_error":
        return message.removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return "is not a field of this request"
    if error["type"] == "missing":
        return "is required"
    return message.replace("Input should", "should", 1)


async def _on_known(_: Request, error: Exception) -> Response:
    known = cast(LastportionError, error)
    if status_of(known.code) >= 500:
        _log.warning("request_failed", code=known.code, reason=known.message)
    return error_answer(known)


async def _on_invalid(_: Request, error: Exception) -> Response:
    return error_answer(invalid_from(cast(RequestValidationError, error).errors()))


async def _on_http(_: Request, error: Exception) -> Response:
    refused = cast(HTTPException, error)
    code, message = {
        404: (NOT_FOUND, "There is nothing at this address."),
        405: (METHOD_NOT_ALLOWED, "This address does not take this method."),
    }.get(refused.status_code, (MalformedBody.code, "The request can't be read."))
    return json_answer({"error": {"code": code, "message": message}}, refused.status_code, refused.headers)


def answer_errors(app: FastAPI) -> None:
    """Give every error the contract's shape."""
    app.add_exception_handler(LastportionError, _on_known)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
