"""``/v1/checkouts`` and ``/v1/orders``: paying for something, and what became of it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from api.answers import json_answer
from api.body import read_body
from api.dependencies import authorised, idempotency_key_of, services_of
from api.openapi import makes, takes
from api.schemas.base import Customer
from api.schemas.orders import (
    CancelOrderBody,
    CheckoutBody,
    ConfirmOrderBody,
    RefundBody,
    checkout_content,
    order_content,
)
from api.shell import note
from engine.domain import IDENTIFIER_PATTERN, OrderStatus, Scope
from engine.orders import OrderFilter

router = APIRouter(tags=["orders"])

MOST_IN_A_LIST = 200

OrderPath = Annotated[str, Path(pattern=IDENTIFIER_PATTERN)]


@router.post("/v1/checkouts", openapi_extra=makes(CheckoutBody))
async def check_out(request: Request) -> Response:
    """Reserve, store the order and open a session to pay it: 201, or 200 where the same request was answered before.

    After ``payment_provider_timeout`` the units are still held: the same request again goes on where this one stood.
    """
    caller = await authorised(request, Scope.CHECKOUT)
    key = idempotency_key_of(request)
    body = await read_body(request, CheckoutBody)
    services = services_of(request)
    answer = await services.checkout.check_out(body.request(caller.tenant, key, services.settings.provider))
    note(request, order=answer.order.id, reservation=answer.order.reservation_id)
    return json_answer(checkout_content(answer), 201 if answer.created else 200)


@router.get("/v1/orders/{order}")
async def get_order(request: Request, order: OrderPath) -> Response:
    """An order with its payments and its history."""
    caller = await authorised(request, Scope.READ, Scope.CHECKOUT)
    note(request, order=order)
    return json_answer(order_content(await services_of(request).orders.order(caller.tenant, order)))


@router.post("/v1/orders/{order}/confirm", openapi_extra=takes(ConfirmOrderBody, required=False))
async def confirm_order(request: Request, order: OrderPath) -> Response:
    """Say that a paid order will be served."""
    caller = await authorised(request, Scope.SETTLE)
    await read_body(request, ConfirmOrderBody, may_be_empty=True)
    note(request, order=order)
    await services_of(request).acts.confirm(caller.tenant, order)
    return await _order(request, caller.tenant, order)


@router.post("/v1/orders/{order}/cancel", openapi_extra=takes(CancelOrderBody))
async def cancel_order(request: Request, order: OrderPath) -> Response:
    """Take an order back. What was paid is owed back at once and refunded within moments."""
    caller = await authorised(request, Scope.SETTLE)
    body = await read_body(request, CancelOrderBody)
    note(request, order=order)
    await services_of(request).acts.cancel(caller.tenant, order, restock=body.restock)
    return await _order(request, caller.tenant, order)


@router.post("/v1/orders/{order}/refund", openapi_extra=takes(RefundBody))
async def refund_order(request: Request, order: OrderPath) -> Response:
    """Send money back, all or a part of it; the order keeps its units, and its status until all is back."""
    caller = await authorised(request, Scope.SETTLE)
    body = await read_body(request, RefundBody)
    note(request, order=order)
    await services_of(request).refunds.request(caller.tenant, order, body.id, body.amount_minor, body.reason)
    return await _order(request, caller.tenant, order)


async def _order(request: Request, tenant: str, order: str) -> Response:
    return json_answer(order_content(await services_of(request).orders.order(tenant, order)))


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
