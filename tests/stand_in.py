"""The sandbox on loopback, with the real adapters on one side and a receiver of webhooks on the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx
import stripe
from fastapi import FastAPI, Request, Response
from pydantic import ConfigDict, TypeAdapter
from sqlalchemy.ext.asyncio import AsyncEngine
from stripe.params.checkout import _session_create_params as library_params
from typing_extensions import is_typeddict

from api.errors import answer_errors
from api.sandbox.mount import Sandbox
from engine.domain import Provider
from engine.payments.paystack import PaystackPayments
from engine.payments.port import FrozenAttempt, FrozenRefund, PricedLine, ProviderEvent
from engine.payments.stripe import StripePayments
from engine.settings import Settings
from persistence.database import create_engine_from
from tests.loopback import listening_socket, served

KEY = "sk_test_of_the_tests"
SECRET = "whsec_of_the_tests"
PAYSTACK_KEY = "sk_test_paystack_of_the_tests"


@dataclass(slots=True)
class StandIn:
    """A running sandbox. ``received`` has every webhook that arrived, verified as the API would."""

    url: str
    settings: Settings
    engine: AsyncEngine
    sandbox: Sandbox
    payments: StripePayments
    paystack: PaystackPayments
    http: httpx.AsyncClient
    received: list[ProviderEvent] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    """Statuses that the receiver gives to the next webhooks; 200 once they are used up."""
    offsets: list[int] = field(default_factory=list)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    def attempt(self, order: str = "ord-1", **changes: Any) -> FrozenAttempt:
        """A frozen attempt of one line at 12.50 GBP that holds a reservation."""
        amount: int = changes.pop("amount_minor", 1250)
        values: dict[str, Any] = {
            "order_id": order,
            "reservation_id": f"res-{order}",
            "tenant": "demo",
            "number": 1,
            "idempotency_key": f"{order}:1",
            "amount_minor": amount,
            "currency": "GBP",
            "email": "pupil@school.example",
            "customer": "pupil-1",
            "lines": (PricedLine("Practice pack", amount),),
            "success_url": "https://shop.example/thanks?session={CHECKOUT_SESSION_ID}",
            "cancel_url": "https://shop.example/basket",
            "expires_at_s": self.now_s() + 1860,
        }
        return FrozenAttempt(**values | changes)

    def transaction(self, order: str = "ord-1", **changes: Any) -> FrozenAttempt:
        """A frozen attempt of one line at 1,250.00 NGN through Paystack."""
        number: int = changes.get("number", 1)
        values: dict[str, Any] = {
            "amount_minor": 125_000,
            "currency": "NGN",
            "provider": Provider.PAYSTACK,
            "reference": self.paystack.reference_of(order, number),
            "expires_at_s": None,
            "success_url": "https://shop.example/thanks?from=paystack",
        }
        return self.attempt(order, **values | changes)

    def refund_of(self, payment_ref: str | None, amount_minor: int, **changes: Any) -> FrozenRefund:
        """A frozen refund of a payment in pounds."""
        assert payment_ref is not None
        values: dict[str, Any] = {
            "id": "rf-1",
            "round": 1,
            "tenant": "demo",
            "order_id": "ord-1",
            "payment_ref": payment_ref,
            "amount_minor": amount_minor,
            "currency": "GBP",
        }
        return FrozenRefund(**values | changes)

    def now_s(self) -> int:
        """The test clock, as the tests moved it."""
        return int(time.time()) + (self.offsets[-1] if self.offsets else 0) // 1000

    async def act(self, session_id: str, act: str, status: int = 200) -> dict[str, Any]:
        """Act as a buyer by program."""
        return await self.post(f"/sandbox/sessions/{session_id}/{act}", None, status)

    async def refund(self, session_id: str, amount_minor: int | None = None, status: int = 200) -> dict[str, Any]:
        """Send money back as from the provider's dashboard; all that is left where no amount is named."""
        body = {} if amount_minor is None else {"amount_minor": amount_minor}
        return await self.post(f"/sandbox/sessions/{session_id}/refund", body, status)

    async def session(self, session_id: str) -> dict[str, Any]:
        """A session or transaction as the sandbox shows it."""
        answer = await self.http.get(f"/sandbox/sessions/{session_id}")
        assert answer.status_code == 200, answer.text
        content: dict[str, Any] = answer.json()
        return content

    async def refunds(self, session_id: str) -> list[dict[str, Any]]:
        """What went back of a session or transaction, oldest first."""
        found: list[dict[str, Any]] = (await self.session(session_id))["refunds"]
        return found

    async def advance(self, seconds: float) -> dict[str, Any]:
        """Move the test clock."""
        return await self.post("/sandbox/clock", {"advance_seconds": seconds})

    async def fault(self, target: str, kind: str, count: int = 1) -> None:
        """Have the next calls or webhooks go wrong."""
        await self.post("/sandbox/faults", {"target": target, "kind": kind, "count": count})

    async def calls(self) -> list[dict[str, Any]]:
        """What was asked of the stand-in, newest last."""
        answer = await self.http.get("/sandbox/calls")
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["calls"]
        return found

    async def post(self, path: str, body: Any, status: int = 200) -> dict[str, Any]:
        """POST JSON and expect a status."""
        answer = await self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        content: dict[str, Any] = answer.json()
        return content

    async def receipts(self, count: int) -> list[ProviderEvent]:
        """Wait until so many webhooks have arrived."""
        async with self.arrived, asyncio.timeout(20):
            await self.arrived.wait_for(lambda: len(self.received) >= count)
        return self.received

    async def receive(self, request: Request) -> Response:
        """The receiver of Stripe's events: verifies, remembers, and answers as told."""
        now_s = time.time() + await self.sandbox.offset_ms() / 1000
        return await self._take(
            self.payments.verify(await request.body(), request.headers.get("stripe-signature"), now_s)
        )

    async def receive_paystack(self, request: Request) -> Response:
        """Likewise of Paystack's."""
        return await self._take(
            self.paystack.verify(await request.body(), request.headers.get("x-paystack-signature"), 0)
        )

    async def _take(self, event: ProviderEvent) -> Response:
        async with self.arrived:
            self.received.append(event)
            self.arrived.notify_all()
        return Response(status_code=self.answers.pop(0) if self.answers else 200)


@asynccontextmanager
async def standing_in(database_url: str, *, background: bool = True) -> AsyncIterator[StandIn]:
    """A sandbox on a database of its own, running for the length of a test."""
    listener = listening_socket()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    settings = Settings(
        public_url=url,
        database_url=database_url,
        stripe_webhook_secret=SECRET,
        stripe_api_base=f"{url}/sandbox/stripe",
        paystack_secret_key=PAYSTACK_KEY,
        paystack_api_base=f"{url}/sandbox/paystack",
        sandbox=True,
    )
    engine = create_engine_from(settings)
    app = FastAPI()
    answer_errors(app)
    payments = StripePayments(KEY, SECRET, api_base=settings.stripe_api_base, timeout_seconds=10)
    paystack = PaystackPayments(PAYSTACK_KEY, api_base=settings.paystack_api_base, timeout_seconds=10)
    http = httpx.AsyncClient(base_url=url, timeout=20, trust_env=False)
    offsets: list[int] = []

    async def clock_moved(offset_ms: int) -> None:
        offsets.append(offset_ms)

    sandbox = Sandbox(settings, engine, clock_moved)
    stand_in = StandIn(url, settings, engine, sandbox, payments, paystack, http, offsets=offsets)
    app.include_router(sandbox.router)
    app.add_api_route("/v1/webhooks/stripe", stand_in.receive, methods=["POST"])
    app.add_api_route("/v1/webhooks/paystack", stand_in.receive_paystack, methods=["POST"])
    async with served(app, listener), AsyncExitStack() as afterwards:
        afterwards.push_async_callback(engine.dispose)
        afterwards.push_async_callback(payments.close)
        afterwards.push_async_callback(paystack.close)
        afterwards.push_async_callback(http.aclose)
        afterwards.push_async_callback(sandbox.stop)
        if background:
            await sandbox.start()
        yield stand_in


def raw_params(stand_in: StandIn, **changes: str) -> dict[str, str]:
    """A session's parameters as a form."""
    return {
        "mode": "payment",
        "line_items[0][price_data][currency]": "gbp",
        "line_items[0][price_data][unit_amount]": "1250",
        "line_items[0][price_data][product_data][name]": "Practice pack",
        "line_items[0][quantity]": "1",
        "success_url": "https://shop.example/thanks",
        "expires_at": str(stand_in.now_s() + 1860),
    } | changes


async def raw_create(
    stand_in: StandIn, params: dict[str, str], key: str | None = None, authorization: str | None = f"Bearer {KEY}"
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Call the stand-in without the library: status, body, headers."""
    headers = {"Idempotency-Key": key} if key is not None else {}
    if authorization is not None:
        headers["Authorization"] = authorization
    answer = await stand_in.http.post("/sandbox/stripe/v1/checkout/sessions", data=params, headers=headers)
    return answer.status_code, answer.json(), dict(answer.headers)


@asynccontextmanager
async def library(stand_in: StandIn) -> AsyncIterator[stripe.StripeClient]:
    """The library alone, without our adapter."""
    http = stripe.HTTPXClient(timeout=10)
    try:
        yield stripe.StripeClient(KEY, base_addresses={"api": f"{stand_in.url}/sandbox/stripe"}, http_client=http)
    finally:
        await http.close_async()  # type: ignore[no-untyped-call]  # the library leaves it without types


@cache
def library_parameters() -> TypeAdapter[Any]:
    """The library's own types of a new session's parameters, with unknown keys refused at every level."""
    for kind in (stripe.RequestOptions, *vars(library_params).values()):
        if is_typeddict(kind):
            kind.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    # The inherited request options are written with names that the library imports for type checkers only.
    namespace = {"StripeContext": stripe.StripeContext, "Mapping": Mapping}
    for name, value in namespace.items():
        setattr(library_params, name, value)
    return TypeAdapter(library_params.SessionCreateParams)
