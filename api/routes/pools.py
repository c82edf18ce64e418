"""``/v1/pools``: limited supplies, defined by their owner and read as they stand."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from api.answers import json_answer
from api.body import read_body
from api.dependencies import authorised, services_of
from api.openapi import takes
from api.schemas.pools import PoolBody, pool_content
from engine.domain import POOL_PATTERN, Scope

router = APIRouter(prefix="/v1/pools", tags=["pools"])

PoolPath = Annotated[str, Path(pattern=POOL_PATTERN)]


@router.put("/{pool:path}", openapi_extra=takes(PoolBody))
async def put_pool(request: Request, pool: PoolPath) -> Response:
    """Replace the whole definition of a pool, and answer with the pool as it then stands."""
    caller = await authorised(request, Scope.ADMIN)
    body = await read_body(request, PoolBody)
    state = await services_of(request).definitions.put(caller.tenant, body.definition(caller.tenant, pool))
    return json_answer(pool_content(state))


@router.get("/{pool:path}")
async def get_pool(request: Request, pool: PoolPath) -> Response:
    """A pool: its definition, what is completed and reserved, and what is left."""
    caller = await authorised(request, Scope.READ)
    return json_answer(pool_content(await services_of(request).engine.read_pool(caller.tenant, pool)))
