"""The role that serves HTTP; the others are in ``api/roles.py`` and load none of this."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.app import create_app
from api.errors import error_answer
from engine.errors import MalformedBody
from engine.settings import Settings

GRACEFUL_SECONDS = 10
"""How long running requests may take to end; without a bound an open stream would keep the process alive."""
BACKLOG = 2048


class Protocol(HttpToolsProtocol):
    """Uvicorn's HTTP whose refusal of what is no HTTP has the contract's shape, like every other."""

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (uvicorn's signature)
        answer = error_answer(MalformedBody("The request is not HTTP/1.1 that can be read."))
        head = b"".join(b"%b: %b\r\n" % header for header in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n%bconnection: close\r\n\r\n%b" % (head, bytes(answer.body)))
        self.transport.close()


class Server(uvicorn.Server):
    """Uvicorn without its own signal handling: signals are the process's business, and it may run other roles."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def settle_memory() -> None:
    """Take what start-up made out of the garbage collector's sight.

    Modules, routes and schemas stay for the life of the process. Walking them held every request up for a tenth of a
    second, twice a second under load.
    """
    gc.collect()
    gc.freeze()


async def run_api(settings: Settings, stop: asyncio.Event) -> None:
    """Serve HTTP. Raises RuntimeError when it can't listen or its services don't start."""
    server = Server(
        uvicorn.Config(
            create_app(settings),
            host=settings.host,
            port=settings.port,
            http=Protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=GRACEFUL_SECONDS,
        )
    )
    settle_memory()
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
