"""The HTTP application: routes, errors and the life of its services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI

from api.errors import answer_errors
from api.openapi import DescribedApp
from api.routes import catalogue, operations, orders, pools, reservations, webhooks
from api.routing import mount
from api.services import Services, build_services
from api.shell import Shell
from engine.settings import Settings

DESCRIPTION = "No unit sold twice, no paid order lost: reservations decided in Redis, kept in Postgres."


def create_app(settings: Settings) -> FastAPI:
    """The app; its connections are opened when it starts and put away when it stops."""
    services = build_services(settings)
    app = DescribedApp(
        title="Lastportion",
        version=_version(),
        description=DESCRIPTION,
        lifespan=_lifespan,
        redirect_slashes=False,
        redoc_url=None,
    )
    app.state.services = services
    app.add_middleware(Shell, body_limit_bytes=settings.body_limit_bytes)
    answer_errors(app)
    mount(app, reservations.hot, reservations.router, pools.router, orders.router, catalogue.router)
    mount(app, webhooks.router, operations.router)
    if services.sandbox is not None:
        app.include_router(services.sandbox.router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    async with services.running():
        yield


def _version() -> str:
    try:
        return version("lastportion")
    except PackageNotFoundError:  # run from its source folder, without being installed
        return "uninstalled"
