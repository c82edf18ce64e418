"""The API over HTTP, with or without persister, and an outside program that signs webhooks itself."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from sqlalchemy import text
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from api.app import create_app
from api.authentication import DEV_KEY
from api.roles import run_persister
from engine.domain import Provider
from engine.settings import Settings
from persistence.database import create_engine_from
from tests.loopback import listening_socket, served

STRIPE_SECRET = "whsec_of_an_outside_program"
PAYSTACK_KEY = "sk_test_of_an_outside_program"
BODY_LIMIT = 8192
WRITTEN_BY_PROVIDERS = (
    *("settlements", "payments", "refunds", "provider_refunds", "refund_totals", "disputes"),
    *("orders", "order_lines", "order_history", "attempts", "redemptions"),
)


@dataclass(frozen=True)
class Site:
    """A running deployment, as providers and their buyers meet it."""

    http: httpx.AsyncClient
    settings: Settings
    paid_at_paystack: list[dict[str, Any]] = field(default_factory=list)
    """What Paystack lists as paid."""

    async def check_out(self, provider: Provider, key: str = "k1") -> dict[str, Any]:
        """A full-price pack, in a currency that the provider takes."""
        body = {
            "customer": f"buyer-{key}",
            "email": "buyer@example.com",
            "lines": [{"product": f"pack-{provider.value}", "quantity": 1}],
            "provider": provider.value,
            "success_url": "https://shop.example/thanks",
            "cancel_url": "https://shop.example/cart",
        }
        answer = await self.http.post("/v1/checkouts", json=body, headers={"Idempotency-Key": key})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def deliver(self, provider: Provider, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
        """Send bytes to the provider's address, signed as it would unless other headers are given."""
        signed = signed_by(provider, body) if headers is None else headers
        return await self.http.post(f"/v1/webhooks/{provider.value}", content=body, headers=signed)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query finds in Postgres."""
        database = create_engine_from(self.settings, pool_size=1)
        try:
            async with database.connect() as connection:
                return [tuple(row) for row in await connection.execute(text(query))]
        finally:
            await database.dispose()

    async def contents(self) -> list[tuple[Any, ...]]:
        """Every table that a provider's word may change: its name, its count and all its rows."""
        each = (
            f"select '{table}', count(*), coalesce(string_agg(t::text, '|' order by t::text), '') from {table} t"  # noqa: S608  (names of our own)
            for table in WRITTEN_BY_PROVIDERS
        )
        return await self.rows(" union all ".join(each))

    async def counted(self) -> dict[tuple[str, str], float]:
        """Webhooks counted so far, by provider and result."""
        exposed = (await self.http.get("/metrics")).text
        found = re.findall(
            r'^lastportion_webhooks_total\{provider="(\w+)",result="(\w+)"\} ([\d.]+)$', exposed, re.MULTILINE
        )
        return {(provider, result): float(count) for provider, result, count in found}


def signed_by(provider: Provider, body: bytes, secret: str | None = None, stamp_s: int | None = None) -> dict[str, str]:
    """The header that a provider would send with these bytes."""
    if provider is Provider.PAYSTACK:
        digest = hmac.new((secret or PAYSTACK_KEY).encode(), body, hashlib.sha512).hexdigest()
        return {"x-paystack-signature": digest}
    payload = stamp_s or int(time.time())
    digest = hmac.new((secret or STRIPE_SECRET).encode(), f"{payload}.".encode() + body, hashlib.sha256).hexdigest()
    return {"stripe-signature": f"t={payload},v1={digest}"}


def paid_body(provider: Provider, checkout: dict[str, Any], event_id: str = "evt_1", **changes: Any) -> bytes:
    """What a provider sends when the session of a checkout was paid; ``changes`` are to the object in it."""
    if provider is Provider.PAYSTACK:
        data = {
            "id": 4099260516,
            "status": "success",
            "reference": checkout["session_id"],
            "amount": checkout["amount_minor"],
            "currency": checkout["currency"],
            "metadata": "",
        }
        return json.dumps({"event": "charge.success", "data": data | changes}).encode()
    session = {
        "id": checkout["session_id"],
        "object": "checkout.session",
        "status": "complete",
        "payment_status": "paid",
        "amount_total": checkout["amount_minor"],
        "currency": checkout["currency"].lower(),
        "payment_intent": f"pi_{checkout['session_id']}",
        "metadata": {},
    }
    event = {
        "id": event_id,
        "object": "event",
        "type": "checkout.session.completed",
        "created": int(time.time()),
        "data": {"object": session | changes},
    }
    return json.dumps(event).encode()


async def _initialize(request: Request) -> JSONResponse:
    asked = await request.json()
    data = {"authorization_url": "https://pay.example/x", "access_code": "x", "reference": asked["reference"]}
    return JSONResponse({"status": True, "message": "Authorization URL created", "data": data})


@asynccontextmanager
async def running_site(
    redis_url: str, database_url: str, *, persists: bool = False, **changes: object
) -> AsyncIterator[Site]:
    """A deployment with a product for each provider; Stripe is the sandbox, Paystack one that opens and lists."""
    paid: list[dict[str, Any]] = []

    async def transactions(request: Request) -> JSONResponse:
        page = paid if request.query_params.get("page", "1") == "1" else []
        return JSONResponse({"status": True, "message": "Transactions retrieved", "data": page, "meta": {}})

    paystack = Starlette(
        routes=[
            Route("/transaction/initialize", _initialize, methods=["POST"]),
            Route("/transaction", transactions, methods=["GET"]),
        ]
    )
    listener = listening_socket()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with served(paystack, listening_socket()) as paystack_url:
        settings = Settings.model_validate(
            {
                "redis_url": redis_url,
                "database_url": database_url,
                "partitions": 4,
                "public_url": url,
                "sandbox": True,
                "body_limit_bytes": BODY_LIMIT,
                "stripe_secret_key": "sk_test_1",
                "stripe_webhook_secret": STRIPE_SECRET,
                "stripe_api_base": f"{url}/sandbox/stripe",
                "paystack_secret_key": PAYSTACK_KEY,
                "paystack_api_base": paystack_url,
            }
            | changes
        )
        app, stop = create_app(settings), asyncio.Event()
        async with app.router.lifespan_context(app), served(app, listener), asyncio.TaskGroup() as roles:
            if persists:
                roles.create_task(run_persister(settings, stop))
            headers = {"Authorization": f"Bearer {DEV_KEY}"}
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30, trust_env=False) as http:
                for provider, currency, amount in ((Provider.STRIPE, "GBP", 4900), (Provider.PAYSTACK, "NGN", 250_000)):
                    product = {"name": "Practice pack", "amount_minor": amount, "currency": currency}
                    answer = await http.put(f"/v1/products/pack-{provider.value}", json=product)
                    assert answer.is_success, answer.text
                yield Site(http, settings, paid)
            stop.set()
