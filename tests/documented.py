"""Every request that leaves for a provider, held against what that provider documents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.library_parameters import check_stripe_request
from tests.paystack_fields import check_paystack_request

CHECKS = {"/sandbox/stripe": check_stripe_request, "/sandbox/paystack": check_paystack_request}


@contextmanager
def only_documented_requests() -> Iterator[list[str]]:
    """Look at what is sent to the stand-ins while the block runs; yields the requests that were looked at.

    Stripe's are validated against the library's own parameter types, Paystack's against its documented fields, unknown
    keys refused in both. Fails at the end of the block if any was another.
    """
    seen: list[str] = []
    wrong: list[str] = []
    send = httpx.AsyncClient.send

    async def looked_at(self: httpx.AsyncClient, request: httpx.Request, **options: Any) -> httpx.Response:
        for prefix, check in CHECKS.items():
            path = request.url.path
            if path.startswith(prefix):
                seen.append(f"{request.method} {path}")
                try:
                    check(request.method, path.removeprefix(prefix), request.url.query.decode(), request.content)
                except (AssertionError, ValueError) as error:
                    wrong.append(f"{request.method} {path}: {error}")
        return await send(self, request, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx.AsyncClient, "send", looked_at)
        yield seen
    assert wrong == []
