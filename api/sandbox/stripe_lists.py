"""Stripe's lists: newest first, cut into pages by the id that the page before ended with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.sandbox.stripe_errors import StripeRefusal, no_such

MOST = 100
USUAL = 10
_BOUNDS = ("gt", "gte", "lt", "lte")


def only(params: dict[str, Any], *known: str) -> None:
    """Raises ``StripeRefusal`` (400) for a parameter that is none of ``known``."""
    for name in params:
        if name not in known:
            raise StripeRefusal(
                400, f"Received unknown parameter: {name[:100]}", code="parameter_unknown", param=name[:100]
            )


def page_of(url: str, kind: str, newest_first: Sequence[dict[str, Any]], params: dict[str, Any]) -> dict[str, Any]:
    """The ``list`` object that ``limit``, ``starting_after`` and ``created`` ask for. Raises ``StripeRefusal``."""
    limit = whole(params.get("limit", str(USUAL)), "limit")
    if not 1 <= limit <= MOST:
        raise StripeRefusal(400, f"This value must be between 1 and {MOST}.", param="limit")
    found = list(newest_first)
    after = params.get("starting_after")
    if after is not None:
        ids = [item["id"] for item in found]
        if after not in ids:
            raise no_such(kind, str(after)[:100], "starting_after")
        found = found[ids.index(after) + 1 :]
    bounds = _created(params.get("created"))
    found = [item for item in found if all(_holds(item["created"], name, than) for name, than in bounds.items())]
    return {"object": "list", "url": url, "has_more": len(found) > limit, "data": found[:limit]}


def whole(text: Any, param: str) -> int:
    """A whole number in a form. Raises ``StripeRefusal`` (400)."""
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 16:
        raise StripeRefusal(400, f"Invalid integer: {param}", code="parameter_invalid_integer", param=param)
    return int(text)


def _created(asked: Any) -> dict[str, int]:
    if asked is None:
        return {}
    if not isinstance(asked, dict):
        exactly = whole(asked, "created")
        return {"gte": exactly, "lte": exactly}
    for name in asked:
        if name not in _BOUNDS:
            raise StripeRefusal(
                400,
                f"Received unknown parameter: created[{name[:20]}]",
                code="parameter_unknown",
                param="created",
            )
    return {name: whole(than, f"created[{name}]") for name, than in asked.items()}


def _holds(created: int, name: str, than: int) -> bool:
    return {"gt": created > than, "gte": created >= than, "lt": created < than, "lte": created <= than}[name]
