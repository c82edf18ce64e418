"""The stand-in's side of Paystack's API. There are no idempotency keys: two calls are two things done."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from api.answers import json_answer
from api.sandbox import calls
from api.sandbox.calls import BrokenOff, Call, note, take_fault
from api.sandbox.clock import now_ms
from api.sandbox.deliveries import Deliveries
from api.sandbox.paystack_objects import queued_refund, refund_object, transaction_object, transaction_status
from api.sandbox.paystack_params import (
    LEAST,
    CreateRefund,
    Initialize,
    ListRefunds,
    ListTransactions,
    Nothing,
    PaystackRefusal,
    asked,
    checked,
)
from api.sandbox.refunds import StandInRefunds, find_refund, refunded_of
from engine.domain import Provider
from persistence.repositories.sandbox import SandboxRepository, SandboxStore
from persistence.tables.sandbox import FaultKind, FaultTarget, SandboxSession, StandInState

Action = Callable[[SandboxRepository, Call], Awaitable[dict[str, Any]]]


class PaystackApi:
    """Routes under ``/paystack``. Every call is noted, whatever comes of it."""

    def __init__(self, store: SandboxStore, refunds: StandInRefunds, deliveries: Deliveries, base_url: str) -> None:
        self._store = store
        self._refunds = refunds
        self._deliveries = deliveries
        self._base_url = base_url
        self.router = APIRouter(prefix="/paystack", include_in_schema=False)
        add = self.router.add_api_route
        add("/transaction/initialize", self.initialize, methods=["POST"])
        add("/transaction/verify/{reference}", self.verify, methods=["GET"])
        add("/transaction", self.list_transactions, methods=["GET"])
        add("/refund", self.create_refund, methods=["POST"])
        add("/refund", self.list_refunds, methods=["GET"])
        add("/refund/{refund_id}", self.fetch_refund, methods=["GET"])
        add("/{rest:path}", self.unrecognised, methods=["GET", "POST", "PUT", "DELETE"])

    async def initialize(self, request: Request) -> Response:
        """``POST /transaction/initialize``."""
        return await self._serve(request, self._initialize)

    async def verify(self, request: Request, reference: str) -> Response:
        """``GET /transaction/verify/{reference}``."""

        async def verify(repository: SandboxRepository, call: Call) -> dict[str, Any]:
            checked(Nothing, call.params)
            session = await _transaction(repository, reference)
            found = transaction_object(session, await refunded_of(repository, session.id))
            return _answered("Verification successful", found)

        return await self._serve(request, verify)

    async def list_transactions(self, request: Request) -> Response:
        """``GET /transaction``, newest first."""
        return await self._serve(request, self._list_transactions)

    async def create_refund(self, request: Request) -> Response:
        """``POST /refund``."""
        return await self._serve(request, self._refund, delays_itself=True)

    async def list_refunds(self, request: Request) -> Response:
        """``GET /refund``, newest first."""
        return await self._serve(request, self._list_refunds)

    async def fetch_refund(self, request: Request, refund_id: str) -> Response:
        """``GET /refund/{id}``."""

        async def fetch(repository: SandboxRepository, call: Call) -> dict[str, Any]:
            checked(Nothing, call.params)
            found = await find_refund(repository, refund_id) if refund_id.isdigit() else None
            if found is None:
                raise PaystackRefusal(404, "Refund not found", "not_found")
            return _answered("Refund retrieved", refund_object(*found))

        return await self._serve(request, fetch)

    async def unrecognised(self, request: Request) -> Response:
        """Anything that the stand-in has no part of."""

        async def refuse(_repository: SandboxRepository, _call: Call) -> dict[str, Any]:
            raise PaystackRefusal(404, "Route not found: the sandbox lacks it", "not_found")

        return await self._serve(request, refuse)

    async def _serve(self, request: Request, action: Action, *, delays_itself: bool = False) -> Response:
        """Answer a call. ``delays_itself``: the action has a delay of its own, in what it does."""
        path = request.url.path.replace("\0", "")
        call = Call(FaultTarget.PAYSTACK, request.method, path[path.index("/paystack/") + len("/paystack") :])
        try:
            _check_key(request.headers.get("authorization"))
            call.params = asked(request.method, request.url.query, await request.body())
            await take_fault(self._store, call)
            if call.is_late and not delays_itself:
                await asyncio.sleep(calls.DELAY_SECONDS)
            if call.fault is FaultKind.ERROR:
                raise PaystackRefusal(500, "An error occurred", "unknown", "api_error")
            if call.fault is not FaultKind.DROP:
                async with self._store.transaction() as repository:
                    call.status, call.body = 200, await action(repository, call)
        except PaystackRefusal as refusal:
            call.status, call.body = refusal.status, refusal.body
        self._deliveries.wake()
        await note(self._store, call)
        return BrokenOff() if call.is_lost else json_answer(call.body, call.status or 500)

    async def _initialize(self, repository: SandboxRepository, call: Call) -> dict[str, Any]:
        wanted = checked(Initialize, call.params)
        if wanted.amount < LEAST[wanted.currency]:
            raise PaystackRefusal(400, f"Amount is less than {LEAST[wanted.currency]}", "invalid_params")
        reference = wanted.reference or secrets.token_hex(10)
        # Held to the end of the transaction: of two calls with one reference at once, one is a duplicate.
        is_first = await repository.occupy_key(f"paystack:{reference}")
        if not is_first or await repository.session(reference) is not None:
            raise PaystackRefusal(400, "Duplicate Transaction Reference", "duplicate_reference")
        access_code = secrets.token_hex(8)
        await repository.add_session(
            SandboxSession(
                id=reference,
                provider=Provider.PAYSTACK,
                state=StandInState.OPEN,
                amount_total=wanted.amount,
                currency=wanted.currency.lower(),
                created_s=await now_ms(repository) // 1000,
                expires_at_s=None,
                payment_intent=None,
                declines=0,
                params=wanted.model_dump(exclude_none=True),
            )
        )
        data = {
            "authorization_url": f"{self._base_url}/sandbox/pay/{reference}",
            "access_code": access_code,
            "reference": reference,
        }
        return _answered("Authorization URL created", data)

    async def _list_transactions(self, repository: SandboxRepository, call: Call) -> dict[str, Any]:
        wanted = checked(ListTransactions, call.params)
        back = await repository.refunded_by_session(Provider.PAYSTACK)
        rows = [
            transaction_object(session, back.get(session.id, 0))
            for session in await repository.sessions(Provider.PAYSTACK)
            if wanted.status in (None, transaction_status(session, back.get(session.id, 0)))
            and wanted.amount in (None, session.amount_total)
            and _is_within(session.created_s, wanted)
        ]
        return _page("Transactions retrieved", rows, wanted)

    async def _refund(self, repository: SandboxRepository, call: Call) -> dict[str, Any]:
        wanted = checked(CreateRefund, call.params)
        session = await _transaction(repository, wanted.transaction)
        if wanted.currency is not None and wanted.currency != session.currency.upper():
            raise PaystackRefusal(400, "Currency is not that of the transaction", "invalid_params")
        left = await self._refunds.left(repository, session)
        if left is None:
            raise PaystackRefusal(400, "Transaction is not successful, and can't be refunded", "invalid_transaction")
        if left == 0:
            raise PaystackRefusal(400, "Transaction has been fully reversed", "transaction_reversed")
        amount = wanted.amount if wanted.amount is not None else left
        if amount > left:
            raise PaystackRefusal(
                400, "Refund amount cannot be more than what is left of the transaction", "invalid_amount"
            )
        params = wanted.model_dump(include={"customer_note", "merchant_note"}, exclude_none=True)
        refund, _ = await self._refunds.make(repository, session, amount, params, later=call.is_late)
        return _answered("Refund has been queued for processing", queued_refund(refund, session))

    async def _list_refunds(self, repository: SandboxRepository, call: Call) -> dict[str, Any]:
        wanted = checked(ListRefunds, call.params)
        rows = [
            refund_object(refund, session)
            for refund, session in await repository.refunds(Provider.PAYSTACK)
            if wanted.transaction in (None, str(session.number))
            and wanted.reference in (None, session.id)
            and wanted.currency in (None, session.currency.upper())
            and _is_within(refund.created_s, wanted)
        ]
        return _page("Refunds retrieved", rows, wanted)


async def _transaction(repository: SandboxRepository, which: str | int) -> SandboxSession:
    """The transaction of a reference, or of Paystack's own id, locked. Raises ``PaystackRefusal``."""
    session: SandboxSession | None = None
    if isinstance(which, int):
        if 0 < which < 2**63:
            session = await repository.session_numbered(Provider.PAYSTACK, which)
    elif "\0" not in which:
        session = await repository.session(which)
        if session is None and which.isascii() and which.isdigit() and len(which) <= 18:
            session = await repository.session_numbered(Provider.PAYSTACK, int(which))
    if session is None or session.provider != Provider.PAYSTACK:
        raise PaystackRefusal(400, "Transaction reference not found.", "transaction_not_found")
    return session


def _answered(message: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"status": True, "message": message, "data": data}


def _page(message: str, rows: list[dict[str, Any]], wanted: ListTransactions | ListRefunds) -> dict[str, Any]:
    first = (wanted.page - 1) * wanted.per_page
    meta = {
        "total": len(rows),
        "skipped": first,
        "perPage": wanted.per_page,
        "page": wanted.page,
        "pageCount": -(-len(rows) // wanted.per_page),
    }
    return {"status": True, "message": message, "data": rows[first : first + wanted.per_page], "meta": meta}


def _is_within(created_s: int, wanted: ListTransactions | ListRefunds) -> bool:
    since, until = wanted.from_, wanted.to
    return (since is None or created_s >= since.timestamp()) and (until is None or created_s <= until.timestamp())


def _check_key(authorization: str | None) -> None:
    """Any secret key does."""
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key.startswith("sk_"):
        raise PaystackRefusal(401, "Invalid key", "invalid_Key")
