"""The role that serves HTTP; the others are in ``api/roles.py`` and load none of this."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import uvicorn

from api.app import create_app
from engine.settings import Settings

GRACEFUL_SECONDS = 10
"""How long running requests may take to end; without a bound an open stream would keep the process alive."""
BACKLOG = 2048


class Server(uvicorn.Server):
    """Uvicorn without its own signal handling: signals are the process's business, and it may run other roles."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def run_api(settings: Settings, stop: asyncio.Event) -> None:
    """Serve HTTP. Raises RuntimeError when it can't listen or its services don't start."""
    server = Server(
        uvicorn.Config(
            create_app(settings),
            host=settings.host,
            port=settings.port,
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=GRACEFUL_SECONDS,
        )
    )
    serving = asyncio.create_task(server.serve())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
    except SystemExit as error:
        raise RuntimeError(f"The API can't serve on {settings.host}:{settings.port}; the reason is logged.") from error
    finally:
        stopping.cancel()
