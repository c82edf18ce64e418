"""The Stripe library's own types of what can be asked, with unknown keys refused at every level."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

import stripe
from pydantic import ConfigDict, TypeAdapter
from stripe.params import _refund_create_params, _refund_list_params
from stripe.params.checkout import _session_create_params, _session_list_params
from typing_extensions import is_typeddict

from api.sandbox.forms import parse_form


@cache
def session_parameters() -> TypeAdapter[Any]:
    """Parameters of a new checkout session."""
    return _strict(_session_create_params, "SessionCreateParams")


@cache
def session_list_parameters() -> TypeAdapter[Any]:
    """Parameters of a list of checkout sessions."""
    return _strict(_session_list_params, "SessionListParams")


@cache
def refund_parameters() -> TypeAdapter[Any]:
    """Parameters of a new refund."""
    return _strict(_refund_create_params, "RefundCreateParams")


@cache
def refund_list_parameters() -> TypeAdapter[Any]:
    """Parameters of a list of refunds."""
    return _strict(_refund_list_params, "RefundListParams")


def check_stripe_request(method: str, path: str, query: str, body: bytes) -> dict[str, Any]:
    """The parameters of a request that the adapter may make, as nested texts; fails for any other request."""
    asked = parse_form(body.decode() if method == "POST" else query)
    match method, path.removeprefix("/v1/").split("/"):
        case "POST", ["checkout", "sessions"]:
            session_parameters().validate_python(asked)
        case "GET", ["checkout", "sessions"]:
            session_list_parameters().validate_python(asked)
        case "POST", ["refunds"]:
            refund_parameters().validate_python(asked)
        case "GET", ["refunds"]:
            refund_list_parameters().validate_python(asked)
        case ("POST", ["checkout", "sessions", _, "expire"]) | ("GET", ["checkout", "sessions", _]):
            assert asked == {}
        case _:
            raise AssertionError(f"{method} {path} is none of the adapter's requests")
    return asked


def _strict(module: ModuleType, name: str) -> TypeAdapter[Any]:
    for kind in (stripe.RequestOptions, *vars(module).values()):
        if is_typeddict(kind):
            kind.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    # The inherited request options are written with names that the library imports for type checkers only.
    for imported, value in {"StripeContext": stripe.StripeContext, "Mapping": Mapping}.items():
        setattr(module, imported, value)
    return TypeAdapter(getattr(module, name))
