"""Refusals in the shape of Stripe's."""

from __future__ import annotations

from typing import Any


class StripeRefusal(Exception):
    """An error answer of the stand-in, with Stripe's type and, where Stripe has them, code and param."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body; absent parts are left out, as Stripe does."""
        parts = {"code": self.code, "message": self.message, "param": self.param, "type": self.type}
        return {"error": {name: value for name, value in parts.items() if value is not None}}


def no_such(kind: str, identifier: str, param: str) -> StripeRefusal:
    """Stripe's 404 for an object that isn't there."""
    return StripeRefusal(404, f"No such {kind}: '{identifier}'", code="resource_missing", param=param)
