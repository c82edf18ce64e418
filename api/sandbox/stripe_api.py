"""The stand-in's side of Stripe's API, as the official library speaks to it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from api.answers import json_answer
from api.sandbox import calls
from api.sandbox.calls import BrokenOff, Call, note, take_fault
from api.sandbox.clock import now_ms
from api.sandbox.deliveries import Deliveries
from api.sandbox.forms import parse_form
from api.sandbox.refunds import StandInRefunds
from api.sandbox.sessions import StandInSessions
from api.sandbox.stripe_errors import StripeRefusal, no_such
from api.sandbox.stripe_lists import only
from api.sandbox.stripe_objects import payment_intent_object
from api.sandbox.stripe_refunds import StripeRefunds
from persistence.repositories.sandbox import SandboxRepository, SandboxStore
from persistence.tables.sandbox import FaultKind, FaultTarget

KEYS_KEPT_SECONDS = 24 * 3600
"""Stripe keeps idempotency keys for a day at least; the stand-in forgets them right after."""

Action = Callable[[SandboxRepository, Call], Awaitable[dict[str, Any]]]


class StripeApi:
    """Routes under ``/stripe/v1``. Every call is noted, whatever comes of it."""

    def __init__(
        self, store: SandboxStore, sessions: StandInSessions, refunds: StandInRefunds, deliveries: Deliveries
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._refunds = StripeRefunds(refunds)
        self._deliveries = deliveries
        self.router = APIRouter(prefix="/stripe/v1", include_in_schema=False)
        add = self.router.add_api_route
        add("/checkout/sessions", self.create_session, methods=["POST"])
        add("/checkout/sessions", self.list_sessions, methods=["GET"])
        add("/checkout/sessions/{session_id}", self.retrieve_session, methods=["GET"])
        add("/checkout/sessions/{session_id}/expire", self.expire_session, methods=["POST"])
        add("/payment_intents/{intent_id}", self.retrieve_intent, methods=["GET"])
        add("/refunds", self.create_refund, methods=["POST"])
        add("/refunds", self.list_refunds, methods=["GET"])
        add("/refunds/{refund_id}", self.retrieve_refund, methods=["GET"])
        add("/{rest:path}", self.unrecognised, methods=["GET", "POST", "DELETE"])

    async def create_session(self, request: Request) -> Response:
        """``POST /v1/checkout/sessions``."""
        return await self._serve(request, lambda repository, call: self._sessions.create(repository, call.params))

    async def list_sessions(self, request: Request) -> Response:
        """``GET /v1/checkout/sessions``."""
        return await self._serve(request, lambda repository, call: self._sessions.listed(repository, call.params))

    async def retrieve_session(self, request: Request, session_id: str) -> Response:
        """``GET /v1/checkout/sessions/{id}``."""

        async def retrieve(repository: SandboxRepository, call: Call) -> dict[str, Any]:
            only(call.params, "expand")
            return await self._sessions.retrieve(repository, session_id)

        return await self._serve(request, retrieve)

    async def expire_session(self, request: Request, session_id: str) -> Response:
        """``POST /v1/checkout/sessions/{id}/expire``."""

        async def expire(repository: SandboxRepository, call: Call) -> dict[str, Any]:
            only(call.params, "expand")
            return await self._sessions.close(repository, session_id, call.key)

        return await self._serve(request, expire)

    async def retrieve_intent(self, request: Request, intent_id: str) -> Response:
        """``GET /v1/payment_intents/{id}``."""

        async def retrieve(repository: SandboxRepository, call: Call) -> dict[str, Any]:
            only(call.params, "expand")
            session = await repository.session_of_intent(intent_id) if "\0" not in intent_id else None
            if session is None:
                raise no_such("payment_intent", intent_id[:100], "intent")
            return payment_intent_object(session)

        return await self._serve(request, retrieve)

    async def create_refund(self, request: Request) -> Response:
        """``POST /v1/refunds``."""
        return await self._serve(request, self._refunds.create, delays_itself=True)

    async def list_refunds(self, request: Request) -> Response:
        """``GET /v1/refunds``."""
        return await self._serve(request, self._refunds.listed)

    async def retrieve_refund(self, request: Request, refund_id: str) -> Response:
        """``GET /v1/refunds/{id}``."""

        async def retrieve(repository: SandboxRepository, call: Call) -> dict[str, Any]:
            only(call.params, "expand")
            return await self._refunds.retrieve(repository, refund_id)

        return await self._serve(request, retrieve)

    async def unrecognised(self, request: Request) -> Response:
        """Anything that the stand-in has no part of."""

        async def refuse(_repository: SandboxRepository, _call: Call) -> dict[str, Any]:
            raise StripeRefusal(
                404, f"Unrecognized request URL ({request.method}: {_api_path(request)[:200]}): the sandbox lacks it."
            )

        return await self._serve(request, refuse)

    async def _serve(self, request: Request, action: Action, *, delays_itself: bool = False) -> Response:
        """Answer a call. ``delays_itself``: the action has a delay of its own, in what it does."""
        call = Call(FaultTarget.STRIPE, request.method, _api_path(request), request.headers.get("idempotency-key"))
        try:
            _check_key(request.headers.get("authorization"))
            call.params = parse_form(await _form_of(request))
            if call.key is not None and not 0 < len(call.key) <= 255:
                raise StripeRefusal(400, "Idempotency keys may be up to 255 characters long.")
            await take_fault(self._store, call)
            if call.fault is not FaultKind.DROP:
                async with self._store.transaction() as repository:
                    await self._act(repository, call, action, waits=call.is_late and not delays_itself)
        except StripeRefusal as refusal:
            call.status, call.body = refusal.status, refusal.body
        self._deliveries.wake()
        await note(self._store, call)
        return BrokenOff() if call.is_lost else _answer(call, request)

    async def _act(self, repository: SandboxRepository, call: Call, action: Action, *, waits: bool) -> None:
        """Do what is asked, once per idempotency key. Raises ``StripeRefusal``; nothing is saved then.

        Stripe saves the answers of calls that it began to execute, refused parameters not among them.
        """
        key = call.key if call.method == "POST" else None
        now_s = await now_ms(repository) // 1000
        if key is not None:
            if not await repository.occupy_key(key):
                raise _in_progress(key)
            saved = await repository.saved_answer(key, now_s - KEYS_KEPT_SECONDS)
            if saved is not None:
                if saved.fingerprint != call.fingerprint:
                    raise _other_parameters(key)
                call.status, call.body, call.replayed = saved.status, saved.body, True
                return
        if waits:
            # With the key held, so that a second call under it meets one in progress.
            await asyncio.sleep(calls.DELAY_SECONDS)
        if call.fault is FaultKind.ERROR:
            call.status, call.body = 500, _OUR_FAULT.body
        else:
            call.status, call.body = 200, await action(repository, call)
        if key is not None:
            await repository.save_answer(key, call.fingerprint, call.status, call.body, now_s)


_OUR_FAULT = StripeRefusal(
    500,
    "Sorry! There was an error while talking to one of our backends.",
    type="api_error",
)


def _in_progress(key: str) -> StripeRefusal:
    return StripeRefusal(
        409,
        "There is currently another in-progress request using this Idempotent Key (that probably means you submitted "
        f"twice, and the other request is still going through): {key}. Please try again later.",
        type="idempotency_error",
        code="idempotency_key_in_use",
    )


def _other_parameters(key: str) -> StripeRefusal:
    return StripeRefusal(
        400,
        "Keys for idempotent requests can only be used with the same parameters they were first used with. "
        f"Try using a key other than '{key}' if you meant to execute a different request.",
        type="idempotency_error",
    )


def _check_key(authorization: str | None) -> None:
    """Any secret or restricted key does, as bearer or as the name in basic authentication."""
    scheme, _, credentials = (authorization or "").partition(" ")
    if scheme.lower() == "basic":
        try:
            credentials = base64.b64decode(credentials, validate=True).decode().partition(":")[0]
        except (binascii.Error, UnicodeDecodeError):
            credentials = ""
    elif scheme.lower() != "bearer":
        credentials = ""
    if not credentials:
        raise StripeRefusal(401, "You did not provide an API key.")
    if not credentials.startswith(("sk_", "rk_")):
        raise StripeRefusal(401, "Invalid API Key provided.")


async def _form_of(request: Request) -> str:
    if request.method != "POST":
        return request.url.query
    try:
        return (await request.body()).decode("ascii")
    except UnicodeDecodeError as error:
        raise StripeRefusal(400, "Invalid request body: it is not form-encoded.") from error


def _api_path(request: Request) -> str:
    """The path as Stripe knows it, from ``/v1`` on; without NUL, which Postgres could not note."""
    path = request.url.path.replace("\0", "")
    return path[path.index("/v1/") :]


def _answer(call: Call, request: Request) -> Response:
    headers = {"Request-Id": f"req_{secrets.token_hex(7)}"}
    if call.key is not None:
        headers["Idempotency-Key"] = call.key
    if call.replayed:
        headers["Idempotent-Replayed"] = "true"
    if "stripe-version" in request.headers:
        headers["Stripe-Version"] = request.headers["stripe-version"]
    if call.status == 500:
        # A 500 is saved under its key, so a repeat would only be told the same.
        headers["Stripe-Should-Retry"] = "false"
    return json_answer(call.body, call.status or 500, headers)
