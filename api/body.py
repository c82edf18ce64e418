"""Reading a request's body: JSON of one model, or the contract's error."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from api.errors import invalid_from
from api.headers import header_of
from engine.errors import MalformedBody

Model = TypeVar("Model", bound=BaseModel)


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise MalformedBody("The body names a field twice.")


def _no_constant(name: str) -> None:
    raise MalformedBody(f"{name} is not JSON.")


def check_json(body: bytes) -> None:
    """Refuse what lenient parsers let through: a field named twice, NaN, bytes that aren't UTF-8, bottomless nesting.

    Two readers of a doubled field may see two quantities, so neither is taken. Raises ``MalformedBody``.
    """
    try:
        # Digits are only counted here: a number too long for an int is the model's to refuse, field by field.
        json.loads(body.decode(), object_pairs_hook=_once, parse_constant=_no_constant, parse_int=len, parse_float=len)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise MalformedBody("The body is not valid JSON in UTF-8.") from error


def parsed(model: type[Model], body: bytes) -> Model:
    """The body as ``model``; raises ``MalformedBody`` when it isn't JSON and ``Invalid`` when it doesn't fit."""
    check_json(body)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid_from(error.errors(include_url=False, include_input=False)) from error


@lru_cache(maxsize=64)
def _is_json(content_type: str) -> bool:
    media = content_type.partition(";")[0].strip().lower()
    return media == "application/json" or (media.startswith("application/") and media.endswith("+json"))


def check_content_type(request: Request) -> None:
    """Refuse a body that says it isn't JSON, with ``MalformedBody``; one that says nothing is taken as JSON."""
    content_type = header_of(request, b"content-type")
    if content_type is not None and not _is_json(content_type):
        raise MalformedBody("The body must be sent as application/json.")


async def read_body(request: Request, model: type[Model], *, may_be_empty: bool = False) -> Model:
    """Read and parse the body; an empty one reads as ``{}`` where ``may_be_empty``.

    Raises ``TooLarge`` past the limit, ``MalformedBody`` when it isn't JSON or says that it isn't, ``Invalid`` when
    it doesn't fit the model. A missing Content-Type is taken as JSON.
    """
    body = await request.body()
    if may_be_empty and not body:
        return parsed(model, b"{}")
    check_content_type(request)
    return parsed(model, body)
