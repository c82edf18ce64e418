"""Who is calling: keys, their scopes, and the tenant that a request is about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from engine.domain import Scope
from engine.errors import StorageUnavailable, Unauthenticated
from persistence.repositories.keys import ApiKey, hash_of

FRESH_SECONDS: Final = 10.0
"""A key looked up this recently is taken as it was."""
STALE_SECONDS: Final = 30.0
"""Up to this age a key is still taken while it is looked up anew; a revocation is seen by then."""
UNKNOWN_SECONDS: Final = 2.0
"""A key that wasn't known is refused this long without another look, so a new key works soon."""
_RETRY_SECONDS: Final = 1.0
_MOST_KNOWN: Final = 10_000
_MOST_UNKNOWN: Final = 1_000
_MOST_LOOKUPS: Final = 4
"""Look-ups at a time, so that guessed keys can't use up the connections to Postgres."""
_LONGEST_KEY: Final = 200

DEV_KEY: Final = "lp_dev"
DEV_TENANT: Final = "demo"
_DEV = ApiKey(id="dev", tenant=DEV_TENANT, name="dev", scopes=frozenset(Scope))

FindKey = Callable[[str], Awaitable[ApiKey | None]]


@dataclass(slots=True)
class _Seen:
    """A key as last looked up. ``away`` says that Postgres didn't answer when it should have been looked up again."""

    key: ApiKey
    at: float
    ask_again_at: float
    away: bool = False


@dataclass(slots=True)
class KeyRing:
    """Keys in this process's memory, so that the hot path asks Postgres about once in ten seconds and key.

    While Postgres is away, a key that was known goes on being taken: reservations are to go on, and where nothing can
    be written nothing can be revoked either. ``find`` looks a hash up; ``dev`` also takes the well-known key of dev.
    """

    find: FindKey
    dev: bool = False
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, _Seen] = field(default_factory=dict)
    _unknown: dict[str, float] = field(default_factory=dict)
    _asking: dict[str, asyncio.Task[ApiKey | StorageUnavailable | None]] = field(default_factory=dict)
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_LOOKUPS))

    async def key_of(self, authorization: str | None) -> ApiKey:
        """The key in an Authorization header.

        Raises ``Unauthenticated`` when there is none that counts, ``StorageUnavailable`` when a key that this process
        doesn't know can't be looked up.
        """
        scheme, _, presented = (authorization or "").partition(" ")
        presented = presented.strip()
        if scheme.lower() != "bearer" or not presented or len(presented) > _LONGEST_KEY:
            raise Unauthenticated
        if self.dev and presented == DEV_KEY:
            return _DEV
        digest = hash_of(presented)
        seen = self._known.get(digest)
        key = await self._look_up(digest) if seen is None else await self._renewed(digest, seen)
        if key is None:
            raise Unauthenticated("This key is not known.")
        return key

    async def _look_up(self, digest: str) -> ApiKey | None:
        if self.clock() - self._unknown.get(digest, float("-inf")) < UNKNOWN_SECONDS:
            return None
        found = await asyncio.shield(self._ask(digest))
        if isinstance(found, StorageUnavailable):
            raise found
        return found

    async def _renewed(self, digest: str, seen: _Seen) -> ApiKey | None:
        now = self.clock()
        if now < seen.ask_again_at:
            return seen.key
        asking = self._ask(digest)
        if seen.away or now - seen.at < STALE_SECONDS:
            return seen.key
        found = await asyncio.shield(asking)
        return seen.key if isinstance(found, StorageUnavailable) else found

    def _ask(self, digest: str) -> asyncio.Task[ApiKey | StorageUnavailable | None]:
        asking = self._asking.get(digest)
        if asking is None:
            asking = self._asking[digest] = asyncio.create_task(self._answer(digest), name="key look-up")
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        return asking

    async def _answer(self, digest: str) -> ApiKey | StorageUnavailable | None:
        try:
            async with self._gate:
                key = await self.find(digest)
        except StorageUnavailable as error:
            seen = self._known.get(digest)
            if seen is not None:
                seen.away = True
                seen.ask_again_at = self.clock() + _RETRY_SECONDS
            return error
        self._remember(digest, key)
        return key

    def _remember(self, digest: str, key: ApiKey | None) -> None:
        now = self.clock()
        # Dicts keep the order of insertion, so what goes when the table is full is what was looked up longest ago.
        if key is None:
            self._known.pop(digest, None)
            self._unknown.pop(digest, None)
            if len(self._unknown) >= _MOST_UNKNOWN:
                del self._unknown[next(iter(self._unknown))]
            self._unknown[digest] = now
        else:
            self._known.pop(digest, None)
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[digest] = _Seen(key, now, now + FRESH_SECONDS)

    async def close(self) -> None:
        """Stop the look-ups that are under way."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
