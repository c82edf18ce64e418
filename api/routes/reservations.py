"""``/v1/reservations``: the primitive. Reserving is the hot path: no dependency chain, no second parse, one script."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import JsonValue, ValidationError

from api import metrics
from api.answers import json_answer
from api.body import read_body
from api.dependencies import Caller, authorised, idempotency_key_of, services_of
from api.errors import error_of, invalid_from, status_of
from api.openapi import makes, takes
from api.routing import DirectRoute
from api.schemas.reservations import (
    BatchBody,
    CancelBody,
    CompleteBody,
    ExtendBody,
    ReleaseBody,
    ReservationBody,
    reservation_content,
)
from api.shell import note
from engine.domain import IDENTIFIER_PATTERN, Granted, Outcome, ReservationRequest, Scope, Settled
from engine.errors import LastportionError
from engine.identifiers import derived_id, new_id

router = APIRouter(tags=["reservations"])
hot = APIRouter(tags=["reservations"], route_class=DirectRoute)

ReservationPath = Annotated[str, Path(pattern=IDENTIFIER_PATTERN)]


@hot.post("/v1/reservations", openapi_extra=makes(ReservationBody))
async def reserve(request: Request) -> Response:
    """Reserve units of one or several pools, all or nothing: 201, or 200 where the same request was granted before.

    The id is the idempotency key: the one given, else one derived from ``Idempotency-Key``, else a new one.
    """
    caller = await authorised(request, Scope.CHECKOUT)
    key = idempotency_key_of(request)
    body = await read_body(request, ReservationBody)
    services = services_of(request)
    identifier = body.id or (new_id() if key is None else derived_id("reservation", caller.tenant, key))
    note(request, reservation=identifier)
    try:
        granted = await services.engine.reserve(
            body.request(caller.tenant, identifier, services.settings.default_ttl_seconds)
        )
    except LastportionError as error:
        metrics.count_reservation(error.code)
        raise
    return json_answer(reservation_content(granted.reservation), _counted_status(granted))


@hot.post("/v1/reservations:batch", openapi_extra=takes(BatchBody))
async def reserve_batch(request: Request) -> Response:
    """Up to 500 reservations, each judged on its own, in the order in which they stand."""
    caller = await authorised(request, Scope.CHECKOUT)
    key = idempotency_key_of(request)
    body = await read_body(request, BatchBody)
    services = services_of(request)
    read = [
        _element(element, caller, None if key is None else f"{key}\0{place}", services.settings.default_ttl_seconds)
        for place, element in enumerate(body.reservations)
    ]
    asked = [element for element in read if isinstance(element, ReservationRequest)]
    answers = iter(await services.engine.reserve_many(asked))
    results = [_result(next(answers) if isinstance(element, ReservationRequest) else element) for element in read]
    note(request, reservations=len(results))
    return json_answer({"results": results})


def _element(
    element: JsonValue, caller: Caller, key: str | None, default_ttl_seconds: int
) -> ReservationRequest | LastportionError:
    try:
        body = ReservationBody.model_validate(element)
    except ValidationError as error:
        return invalid_from(error.errors(include_url=False, include_input=False))
    identifier = body.id or (new_id() if key is None else derived_id("reservation", caller.tenant, key))
    return body.request(caller.tenant, identifier, default_ttl_seconds)


def _result(answer: Granted | LastportionError) -> dict[str, Any]:
    if isinstance(answer, Granted):
        return {"status": _counted_status(answer), "reservation": reservation_content(answer.reservation)}
    metrics.count_reservation(answer.code)
    error = error_of(answer)
    return {"status": status_of(error["code"]), "error": error}


def _counted_status(granted: Granted) -> int:
    metrics.count_reservation((Outcome.GRANTED if granted.created else Outcome.EXISTING).value)
    return 201 if granted.created else 200


@router.get("/v1/reservations/{reservation}")
async def get_reservation(request: Request, reservation: ReservationPath) -> Response:
    """A reservation as it stands."""
    caller = await authorised(request, Scope.READ, Scope.CHECKOUT)
    note(request, reservation=reservation)
    return json_answer(reservation_content(await services_of(request).engine.read(caller.tenant, reservation)))


@router.post("/v1/reservations/{reservation}/complete", openapi_extra=takes(CompleteBody, required=False))
async def complete(request: Request, reservation: ReservationPath) -> Response:
    """Sell what was reserved. A 200 is durable: the settlement is in Postgres before it is applied."""
    caller = await authorised(request, Scope.SETTLE)
    body = await read_body(request, CompleteBody, may_be_empty=True)
    note(request, reservation=reservation)
    settlement = services_of(request).settlement
    return _settled(await settlement.complete(caller.tenant, reservation, body.payment_ref or ""))


@router.post("/v1/reservations/{reservation}/release", openapi_extra=takes(ReleaseBody, required=False))
async def release(request: Request, reservation: ReservationPath) -> Response:
    """Give the units back. What was completed stays completed, and says so."""
    caller = await authorised(request, Scope.CHECKOUT)
    await read_body(request, ReleaseBody, may_be_empty=True)
    note(request, reservation=reservation)
    return _settled(await services_of(request).engine.release(caller.tenant, reservation))


@router.post("/v1/reservations/{reservation}/extend", openapi_extra=takes(ExtendBody))
async def extend(request: Request, reservation: ReservationPath) -> Response:
    """Hold the units until the later of their end and now + ttl; only while they are held."""
    caller = await authorised(request, Scope.SETTLE)
    body = await read_body(request, ExtendBody)
    note(request, reservation=reservation)
    extended = await services_of(request).engine.extend(caller.tenant, reservation, body.ttl_seconds * 1000)
    return json_answer(reservation_content(extended))


@router.post("/v1/reservations/{reservation}/cancel", openapi_extra=takes(CancelBody))
async def cancel(request: Request, reservation: ReservationPath) -> Response:
    """Undo a completed reservation, with its units back on sale or not."""
    caller = await authorised(request, Scope.SETTLE)
    body = await read_body(request, CancelBody)
    note(request, reservation=reservation)
    return _settled(await services_of(request).settlement.cancel(caller.tenant, reservation, body.restock))


def _settled(settled: Settled) -> Response:
    return json_answer({"outcome": settled.outcome.value, "reservation": reservation_content(settled.reservation)})
