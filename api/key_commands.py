"""What ``lastportion keys`` does: make, list and revoke keys."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex, token_urlsafe

from engine.domain import IDENTIFIER_PATTERN, Scope
from engine.errors import Invalid, Unknown
from engine.settings import Settings
from persistence.database import create_engine_from
from persistence.repositories.keys import ApiKey, KeyRepository, hash_of

_SECRET_BYTES = 32
_ID_BYTES = 8
ID_LENGTH = 2 * _ID_BYTES
"""Characters of a key's id."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key as it is shown once. ``secret`` is what callers present; only its hash is kept."""

    key: ApiKey
    secret: str


@asynccontextmanager
async def _repository(settings: Settings) -> AsyncIterator[KeyRepository]:
    engine = create_engine_from(settings, pool_size=1)
    try:
        yield KeyRepository(engine)
    finally:
        await engine.dispose()


async def create_key(settings: Settings, tenant: str | None, name: str, scopes: Collection[Scope]) -> NewKey:
    """Make a key for one tenant, or with ``tenant`` None for a platform.

    Raises ``Invalid`` for a tenant that is no id or for no scope at all, ``StorageUnavailable`` without Postgres.
    """
    if tenant is not None and re.fullmatch(IDENTIFIER_PATTERN, tenant) is None:
        raise Invalid("The tenant is not an id.", fields={"tenant": "should be an id: letters, digits, . _ - @ +"})
    if not scopes:
        raise Invalid("A key needs a scope.", fields={"scopes": "should name at least one scope"})
    secret = f"lp_{token_urlsafe(_SECRET_BYTES)}"
    key = ApiKey(id=token_hex(_ID_BYTES), tenant=tenant, name=name, scopes=frozenset(scopes))
    async with _repository(settings) as keys:
        await keys.add(key, hash_of(secret))
    return NewKey(key, secret)


async def list_keys(settings: Settings) -> list[ApiKey]:
    """Every key, revoked ones too, oldest first."""
    async with _repository(settings) as keys:
        return await keys.all()


async def revoke_key(settings: Settings, identifier: str) -> None:
    """End a key; running processes take it for 30 s at most. Raises ``Unknown`` when no live key has this id."""
    async with _repository(settings) as keys:
        if not await keys.revoke(identifier):
            raise Unknown("key", identifier)
