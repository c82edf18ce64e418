"""Sends what waits in one process to Redis together: one script call carries many reservations of one tenant.

Nothing waits for a timer. A request that finds no call under way goes at once; those that come meanwhile go together
with the next call, so batches grow with the load and a lone request pays nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from engine.domain import MOST_IN_ONE_CALL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from engine.calls import ReserveCall

MOST_CLAIMS_IN_ONE_CALL = 256
"""Keeps a script's run short and its lists within Lua's limit of about 8,000 values."""

MOST_CALLS_UNDER_WAY = 2
"""For each tenant: one call is on its way while the other's answers are handed out."""

Reply = tuple[str, int]
"""What a script answered, and the epoch that it ran under."""

_Waiting = tuple["ReserveCall", "asyncio.Future[Reply]"]


class Batcher:
    """Collects reservation requests by tenant and hands each its own reply."""

    def __init__(self, send: Callable[[str, Sequence[ReserveCall]], Awaitable[list[Reply]]]) -> None:
        """``send`` makes one call for one tenant and returns a reply for each request, in order."""
        self._send = send
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._under_way: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, call: ReserveCall) -> asyncio.Future[Reply]:
        """The reply to come. A caller that stops waiting does not take the request back: it may be on its way."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        tenant = call.request.tenant
        self._waiting.setdefault(tenant, deque()).append((call, future))
        if self._under_way.get(tenant, 0) < MOST_CALLS_UNDER_WAY:
            self._start(tenant)
        return future

    def _start(self, tenant: str) -> None:
        self._under_way[tenant] = self._under_way.get(tenant, 0) + 1
        task = asyncio.get_running_loop().create_task(self._drain(tenant))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self, tenant: str) -> list[_Waiting]:
        queue = self._waiting[tenant]
        batch: list[_Waiting] = []
        claims = 0
        while queue and len(batch) < MOST_IN_ONE_CALL:
            call, future = queue[0]
            if batch and claims + len(call.request.claims) > MOST_CLAIMS_IN_ONE_CALL:
                break
            queue.popleft()
            # Not sent yet, so a caller that has gone leaves nothing behind.
            if not future.done():
                batch.append((call, future))
                claims += len(call.request.claims)
        return batch

    async def _drain(self, tenant: str) -> None:
        try:
            while batch := self._take(tenant):
                await self._call(tenant, batch)
        finally:
            self._under_way[tenant] -= 1
            if not self._under_way[tenant]:
                del self._under_way[tenant]
                if not self._waiting[tenant]:
                    del self._waiting[tenant]

    async def _call(self, tenant: str, batch: list[_Waiting]) -> None:
        try:
            replies = await self._send(tenant, [call for call, _ in batch])
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error) if isinstance(error, Exception) else future.cancel()
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), reply in zip(batch, replies, strict=True):
            if not future.done():
                future.set_result(reply)
