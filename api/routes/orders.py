"""``/v1/checkouts`` and ``/v1/orders``: paying for something, and what became of it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from api.answers import json_answer
from api.body import read_body
from api.dependencies import authorised, idempotency_key_of, services_of
from api.openapi import takes
from api.schemas.base import Customer
from api.schemas.orders import CheckoutBody, checkout_content, order_content
from api.shell import note
from engine.domain import IDENTIFIER_PATTERN, OrderStatus, Scope
from engine.orders import OrderFilter

router = APIRouter(tags=["orders"])

MOST_IN_A_LIST = 200

OrderPath = Annotated[str, Path(pattern=IDENTIFIER_PATTERN)]


@router.post("/v1/checkouts", openapi_extra=takes(CheckoutBody))
async def check_out(request: Request) -> Response:
    """Reserve, store the order and open a session to pay it: 201, or 200 where the same request was answered before.

    After ``payment_provider_timeout`` the units are still held: the same request again goes on where this one stood.
    """
    caller = await authorised(request, Scope.CHECKOUT)
    key = idempotency_key_of(request)
    body = await read_body(request, CheckoutBody)
    answer = await services_of(request).checkout.check_out(body.request(caller.tenant, key))
    note(request, order=answer.order.id, reservation=answer.order.reservation_id)
    return json_answer(checkout_content(answer), 201 if answer.created else 200)


@router.get("/v1/orders/{order}")
async def get_order(request: Request, order: OrderPath) -> Response:
    """An order with its payments and its history."""
    caller = await authorised(request, Scope.READ, Scope.CHECKOUT)
    note(request, order=order)
    return json_answer(order_content(await services_of(request).orders.order(caller.tenant, order)))


@router.get("/v1/orders")
async def list_orders(
    request: Request,
    status: OrderStatus | None = None,
    customer: Annotated[Customer | None, Query()] = None,
    after: Annotated[str | None, Query(pattern=IDENTIFIER_PATTERN)] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_IN_A_LIST)] = 50,
) -> Response:
    """Orders, oldest first; ``after`` is the id of the last one of the page before."""
    caller = await authorised(request, Scope.READ)
    wanted = OrderFilter(status=status, customer=customer, after=after, limit=limit)
    stories = await services_of(request).orders.orders(caller.tenant, wanted)
    return json_answer({"orders": [order_content(story) for story in stories]})
