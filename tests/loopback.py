"""An ASGI app served on loopback for the length of a test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from api.serving import Protocol


def listening_socket() -> socket.socket:
    """A listening socket on a free port: whoever connects before the server runs is queued."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener


@asynccontextmanager
async def served(app: ASGIApp, listener: socket.socket) -> AsyncIterator[str]:
    """Serve an app without lifespan; yields its address."""
    config = uvicorn.Config(app, http=Protocol, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()
