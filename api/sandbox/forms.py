"""Form bodies with nested names, as Stripe's API takes them: ``line_items[0][price_data][currency]=gbp``."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl

from api.sandbox.stripe_errors import StripeRefusal

MOST_FIELDS = 1000
DEEPEST = 8

_NAME = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")
_PART = re.compile(r"\[([^\[\]]*)\]")


def parse_form(text: str) -> dict[str, Any]:
    """The form as nested dicts, lists and texts. Raises ``StripeRefusal`` (400) for what can't be nested."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise StripeRefusal(400, "Invalid request body: it is not form-encoded UTF-8.") from error
    nested: dict[str, Any] = {}
    for name, value in pairs:
        if "\0" in name or "\0" in value:
            raise StripeRefusal(400, "Invalid string: a NUL character is not allowed.")
        _put(nested, _path(name), value, name)
    return {key: _listed(value, key) for key, value in nested.items()}


def _path(name: str) -> list[str]:
    matched = _NAME.fullmatch(name)
    parts = [matched[1], *_PART.findall(matched[2])] if matched else []
    if not 0 < len(parts) <= DEEPEST:
        raise StripeRefusal(400, "Invalid request: a parameter's name is malformed.", param=name[:100])
    return parts


def _put(nested: dict[str, Any], path: list[str], value: str, name: str) -> None:
    here = nested
    for part in path[:-1]:
        here = here.setdefault(part, {})
        if not isinstance(here, dict):
            raise StripeRefusal(400, "Invalid request: a parameter is both a value and a group.", param=name[:100])
    last = path[-1] or str(len(here))
    if last in here:
        raise StripeRefusal(400, "Invalid request: a parameter is given twice.", param=name[:100])
    here[last] = value


def _listed(value: Any, key: str) -> Any:
    """Groups whose names count up from 0 are lists; metadata never is, whatever its names look like."""
    if not isinstance(value, dict):
        return value
    inner = {name: _listed(item, name) for name, item in value.items()}
    if key != "metadata" and list(inner) == [str(number) for number in range(len(inner))]:
        return list(inner.values())
    return inner
