"""What a load balancer, a scraper and an operator ask; none of it needs a key."""

from __future__ import annotations

import structlog
from fastapi import APIRouter, Request, Response

from api import metrics
from api.answers import json_answer
from api.dependencies import services_of
from api.openapi import OPEN
from api.readiness import Readiness, readiness_of
from api.services import Services
from engine.errors import StorageUnavailable

router = APIRouter(tags=["operations"])
log = structlog.get_logger("api")


@router.get("/healthz", openapi_extra=OPEN)
async def healthz() -> Response:
    """The process is up."""
    return json_answer({"status": "up"})


@router.get("/readyz", openapi_extra=OPEN)
async def readyz(request: Request) -> Response:
    """200 while it can reserve and persist, with overdue jobs named; else 503 naming what is missing."""
    readiness = await _look(request)
    return json_answer(readiness.content(), 200 if readiness.ready else 503)


@router.get("/metrics", openapi_extra=OPEN)
async def exposition(request: Request) -> Response:
    """This process's metrics for Prometheus, and how the deployment's jobs go."""
    await _look(request)
    await _look_at_money(services_of(request))
    return Response(metrics.exposition(), media_type=metrics.CONTENT_TYPE_LATEST)


async def _look(request: Request) -> Readiness:
    services = services_of(request)
    readiness = await readiness_of(services.database, services.state)
    metrics.report_readiness(readiness)
    return readiness


async def _look_at_money(services: Services) -> None:
    try:
        metrics.report_money(await services.refunds.owed(), await services.reconciler.count_unmatched())
    except StorageUnavailable as error:
        # A scrape must not fail with Postgres: `lastportion_ready` says that it is away.
        log.info("money_unreported", reason=error.code)
