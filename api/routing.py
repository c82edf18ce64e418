"""How requests reach their handlers: by the shortest way that FastAPI's documents still know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import request_response


class DirectRoute(APIRoute):
    """A route whose handler takes the request alone, and is called with it.

    FastAPI's own way resolves dependencies and opens two exit stacks for each request, although there is nothing to
    resolve and nothing to close. The route stands in the OpenAPI document like any other.
    """

    def __init__(self, path: str, endpoint: Callable[[Request], Awaitable[Response]], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = request_response(endpoint)


def mount(app: FastAPI, *routers: APIRouter) -> None:
    """Put the routers' routes into the app's own list, in this order.

    ``include_router`` would wrap each router and match a request twice, once to find the router and once inside it.
    """
    for router in routers:
        app.router.routes.extend(router.routes)
