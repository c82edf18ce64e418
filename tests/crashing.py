"""A process that dies at one of its calls to anything outside it: before the call took effect, or after."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

MOST_CALLS = 60


class Crash(BaseException):
    """The process dies here."""


def die() -> None:
    """End as a killed process does."""
    raise Crash


class Fuse:
    """Counts the calls to everything outside the process, and blows at one of them."""

    def __init__(self, blow_at: int, *, after: bool, blow: Callable[[], object] = die) -> None:
        self.blow_at = blow_at
        self.after = after
        self.blow = blow
        self.calls = 0

    def around(self, target: Any) -> Any:
        return _Wrapped(target, self)


class _Wrapped:
    def __init__(self, target: Any, fuse: Fuse) -> None:
        self._target = target
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        method, fuse = getattr(self._target, name), self._fuse
        if not iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            fuse.calls += 1
            here = fuse.calls == fuse.blow_at
            if here and not fuse.after:
                fuse.blow()
            try:
                return await method(*args, **kwargs)
            finally:
                # An answer that says no is lost like any other.
                if here and fuse.after:
                    fuse.blow()

        return call
