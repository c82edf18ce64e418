"""``/v1/codes`` and ``/v1/products``: what is on offer, and how far codes are used up."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from api.answers import json_answer
from api.body import read_body
from api.dependencies import authorised, services_of
from api.openapi import takes
from api.schemas.catalogue import CodeBody, ProductBody, code_content, product_content, usage_content
from engine.catalogue import code_named
from engine.domain import IDENTIFIER_PATTERN, Scope

router = APIRouter(tags=["catalogue"])

ProductPath = Annotated[str, Path(pattern=IDENTIFIER_PATTERN)]


@router.put("/v1/codes/{code}", openapi_extra=takes(CodeBody))
async def put_code(request: Request, code: str) -> Response:
    """Replace the whole definition of a code; its present and later periods follow at once."""
    caller = await authorised(request, Scope.ADMIN)
    named = code_named(code)
    body = await read_body(request, CodeBody)
    definition = body.definition(caller.tenant, named)
    await services_of(request).catalogue.put_code(definition)
    return json_answer(code_content(definition))


@router.get("/v1/codes/{code}")
async def get_code(request: Request, code: str) -> Response:
    """A code, and how far it is used up in the present period."""
    caller = await authorised(request, Scope.READ)
    definition, usage = await services_of(request).catalogue.code(caller.tenant, code)
    return json_answer(code_content(definition) | {"usage": usage_content(usage)})


@router.get("/v1/codes/{code}/usage")
async def get_usage(request: Request, code: str, period: str | None = None) -> Response:
    """How far a code is used up in a period; the present one, if none is named."""
    caller = await authorised(request, Scope.READ)
    return json_answer(usage_content(await services_of(request).catalogue.usage(caller.tenant, code, period)))


@router.put("/v1/products/{product}", openapi_extra=takes(ProductBody))
async def put_product(request: Request, product: ProductPath) -> Response:
    """Replace the whole definition of a product; orders already made keep their price."""
    caller = await authorised(request, Scope.ADMIN)
    body = await read_body(request, ProductBody)
    stored = await services_of(request).catalogue.put_product(body.product(caller.tenant, product))
    return json_answer(product_content(stored))


@router.get("/v1/products/{product}")
async def get_product(request: Request, product: ProductPath) -> Response:
    """A product."""
    caller = await authorised(request, Scope.READ)
    return json_answer(product_content(await services_of(request).catalogue.product(caller.tenant, product)))
