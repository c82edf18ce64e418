"""A proxy between a client and Redis that can keep answers back, or lose them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CHUNK = 65_536


class Proxy:
    """Passes everything on. ``hold`` keeps what the server says until ``let_go``; ``lose`` drops it for good."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = asyncio.Event()
        self._open.set()
        self._asked = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests = 0
        """Chunks that clients sent; each of the tests' calls is one."""
        self.losing = 0
        """So many of the next answers are lost; their connection stays open and silent."""

    def hold(self) -> None:
        """Keep answers back from now on."""
        self._open.clear()

    def let_go(self) -> None:
        """Let them through again, in their order."""
        self._open.set()

    async def asked(self, requests: int) -> None:
        """Wait until clients have sent so much."""
        async with self._asked, asyncio.timeout(10):
            await self._asked.wait_for(lambda: self.requests >= requests)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, and one to the server for it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_questions(reader, server_writer))
                group.create_task(self._pass_answers(server_reader, writer))
        except* ConnectionError:
            pass  # the client gave this connection up, which is what the tests are about
        finally:
            self._tasks.discard(task)
            for each in (server_writer, writer):
                each.close()

    async def _pass_questions(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
            async with self._asked:
                self.requests += 1
                self._asked.notify_all()
        raise ConnectionResetError

    async def _pass_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await self._open.wait()
            if self.losing:
                self.losing -= 1
                await reader.read()
                return
            writer.write(data)
            await writer.drain()

    async def close(self) -> None:
        """End what is still open."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxied(port: int) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy before the Redis on this port, and the URL to reach it by."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
