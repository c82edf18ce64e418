"""The app with one more route: a POST that authenticates and reads its body, and does nothing. Run by ``over_http``."""

from __future__ import annotations

import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response

from api.answers import json_answer
from api.app import create_app
from api.dependencies import authorised
from api.logs import configure_logs
from api.routing import DirectRoute, mount
from api.serving import settle_memory
from engine.domain import Scope
from engine.settings import Settings


async def noop(request: Request) -> Response:
    """What every authenticated POST of this app costs before it has a purpose."""
    await authorised(request, Scope.CHECKOUT)
    await request.body()
    return json_answer({}, 201)


def app_with_noop(settings: Settings) -> FastAPI:
    """The production app and the route that it is compared with."""
    app = create_app(settings)
    router = APIRouter(route_class=DirectRoute)
    router.add_api_route("/noop", noop, methods=["POST"])
    mount(app, router)
    return app


if __name__ == "__main__":
    chosen = Settings()
    configure_logs(chosen.log_format, chosen.log_level)
    config = uvicorn.Config(
        app_with_noop(chosen),
        host=chosen.host,
        port=chosen.port,
        http="httptools",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
    )
    settle_memory()
    uvicorn.Server(config).run()
