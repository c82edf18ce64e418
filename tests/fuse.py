"""Kills a process, as far as its servers can tell, at any call that it makes to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from sqlalchemy.ext.asyncio import AsyncConnection


class Interrupted(Exception):
    """The process was killed here."""


class Fuse:
    """Lets so many calls to either server through, and fails the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        for owner, name in ((Redis, "execute_command"), (Pipeline, "execute"), (AsyncConnection, "execute")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def counted(*arguments: object, **options: object) -> object:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise Interrupted
            return await call(*arguments, **options)

        return counted
