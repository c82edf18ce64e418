"""A whole deployment on loopback: API, persister, jobs and sandbox, spoken to over HTTP as outside programs do."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import stripe
from sqlalchemy import text

from api.app import create_app
from api.authentication import DEV_KEY
from api.roles import run_persister, run_worker
from engine.settings import Settings
from persistence.database import create_engine_from
from tests.documented import only_documented_requests
from tests.loopback import listening_socket, served

STRIPE_SECRET = "whsec_of_an_outside_program"
PAYSTACK_KEY = "sk_test_of_an_outside_program"


@dataclass
class WholeSite:
    """What a shop, a provider and a buyer see of it."""

    http: httpx.AsyncClient
    settings: Settings
    asked: list[str]
    """Requests to the providers, each of them held against what is documented."""

    async def call(self, method: str, path: str, status: int, body: Any = None, key: str | None = None) -> Any:
        """A call that is answered with this status."""
        headers = {"Idempotency-Key": key} if key else {}
        answer = await self.http.request(method, path, json=body, headers=headers)
        assert answer.status_code == status, f"{answer.status_code} {answer.text}"
        return answer.json()

    async def product(self, name: str, amount_minor: int, currency: str) -> None:
        await self.call(
            "PUT",
            f"/v1/products/{name}",
            200,
            {"name": f"Pack {name}", "amount_minor": amount_minor, "currency": currency},
        )

    async def code(self, name: str, cap: int | None, **changes: Any) -> None:
        """A code of 10 %, counted for ever."""
        body = {"cap": cap, "period": {"kind": "none", "timezone": "UTC"}, "discount": {"percent_off": 10}}
        await self.call("PUT", f"/v1/codes/{name}", 200, body | changes)

    async def check_out(self, key: str, status: int = 201, **changes: Any) -> Any:
        """One GBP pack, paid through Stripe, unless something else is said; None leaves a field out."""
        body = {
            "customer": f"buyer-{key}",
            "email": "buyer@example.com",
            "lines": [{"product": "gbp", "quantity": 1}],
            "success_url": "https://shop.example/thanks",
            "cancel_url": "https://shop.example/cart",
        } | changes
        return await self.call("POST", "/v1/checkouts", status, {k: v for k, v in body.items() if v is not None}, key)

    async def act(self, session: str, act: str, status: int = 200) -> Any:
        """Do what a buyer, or somebody at the provider, does."""
        return await self.call("POST", f"/sandbox/sessions/{session}/{act}", status)

    async def fault(self, target: str, kind: str, count: int = 1) -> None:
        await self.call("POST", "/sandbox/faults", 200, {"target": target, "kind": kind, "count": count})

    async def advance(self, seconds: float) -> None:
        await self.call("POST", "/sandbox/clock", 200, {"advance_seconds": seconds})

    async def order(self, order_id: str, *, until: Callable[[Any], bool] | str) -> Any:
        """The order once it reads so; ``until`` is its status or what it has to be like."""
        reads = until if callable(until) else lambda order: order["status"] == until
        order = None
        async with asyncio.timeout(30):
            while order is None or not reads(order):
                if order is not None:
                    await asyncio.sleep(0.05)
                order = await self.call("GET", f"/v1/orders/{order_id}", 200)
        return order

    async def usage(self, code: str) -> tuple[int, int]:
        """Completed and reserved units of a code."""
        usage = await self.call("GET", f"/v1/codes/{code}/usage", 200)
        return usage["completed"], usage["reserved"]

    async def calls(self, target: str, path: str) -> list[Any]:
        """What a stand-in was asked at a path, newest last."""
        calls = (await self.call("GET", "/sandbox/calls", 200))["calls"]
        return [call for call in calls if call["target"] == target and call["path"].startswith(path)]

    async def from_stripe(self, kind: str, about: dict[str, Any], event_id: str, status: int = 200) -> None:
        """Deliver an event signed by ourselves."""
        event = {"id": event_id, "object": "event", "type": kind, "created": 0, "data": {"object": about}}
        payload = json.dumps(event)
        stamp_s = int(time.time()) + round((await self.call("GET", "/sandbox/clock", 200))["offset_seconds"])
        signature = stripe.WebhookSignature.generate_signature_header(payload, STRIPE_SECRET, stamp_s)
        answer = await self.http.post("/v1/webhooks/stripe", content=payload, headers={"Stripe-Signature": signature})
        assert answer.status_code == status, answer.text

    async def from_paystack(self, kind: str, data: dict[str, Any], status: int = 200) -> None:
        """Likewise of Paystack's."""
        payload = json.dumps({"event": kind, "data": data}).encode()
        signature = hmac.new(PAYSTACK_KEY.encode(), payload, hashlib.sha512).hexdigest()
        answer = await self.http.post(
            "/v1/webhooks/paystack", content=payload, headers={"x-paystack-signature": signature}
        )
        assert answer.status_code == status, answer.text

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query finds in Postgres."""
        database = create_engine_from(self.settings, pool_size=1)
        try:
            async with database.connect() as connection:
                return [tuple(row) for row in await connection.execute(text(query))]
        finally:
            await database.dispose()

    async def execute(self, statement: str) -> None:
        """Change Postgres behind everybody's back."""
        database = create_engine_from(self.settings, pool_size=1)
        try:
            async with database.begin() as connection:
                await connection.execute(text(statement))
        finally:
            await database.dispose()


@asynccontextmanager
async def whole_site(
    redis_url: str, database_url: str, kind: type[WholeSite] = WholeSite, **changes: Any
) -> AsyncIterator[Any]:
    """Everything in this process, for the length of the block, as this kind of site; ``changes`` are to settings."""
    listener = listening_socket()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    settings = Settings.model_validate(
        {
            "redis_url": redis_url,
            "database_url": database_url,
            "partitions": 4,
            "public_url": url,
            "sandbox": True,
            "stripe_secret_key": "sk_test_1",
            "stripe_webhook_secret": STRIPE_SECRET,
            "stripe_api_base": f"{url}/sandbox/stripe",
            "paystack_secret_key": PAYSTACK_KEY,
            "paystack_api_base": f"{url}/sandbox/paystack",
        }
        | changes
    )
    app, stop = create_app(settings), asyncio.Event()
    async with app.router.lifespan_context(app), served(app, listener), asyncio.TaskGroup() as roles:
        roles.create_task(run_persister(settings, stop))
        roles.create_task(run_worker(settings, stop))
        headers = {"Authorization": f"Bearer {DEV_KEY}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30, trust_env=False) as http:
            with only_documented_requests() as asked:
                yield kind(http, settings, asked)
        stop.set()


def lines(product: str) -> dict[str, Any]:
    return {"lines": [{"product": product, "quantity": 1}]}


def naira(**changes: Any) -> dict[str, Any]:
    """Paid through Paystack."""
    return {"provider": "paystack", **lines("ngn"), **changes}


def session_about(session: str, amount: int, currency: str = "gbp", **changes: Any) -> dict[str, Any]:
    """A paid session as an event of Stripe's tells of it."""
    return {
        "id": session,
        "object": "checkout.session",
        "status": "complete",
        "payment_status": "paid",
        "amount_total": amount,
        "currency": currency,
        "payment_intent": f"pi_{session}",
        "metadata": {},
    } | changes


def charge_about(reference: str, amount: int, currency: str = "NGN", **changes: Any) -> dict[str, Any]:
    """A successful transaction as an event of Paystack's tells of it."""
    return {"id": 1, "status": "success", "reference": reference, "amount": amount, "currency": currency} | changes


def told(order: Any) -> list[str]:
    return [entry["event"] for entry in order["history"]]


def statuses(order: Any) -> list[tuple[str, int]]:
    return sorted((payment["status"], payment["amount_minor"]) for payment in order["payments"])
