"""API keys as Postgres has them: by hash alone, so that a copy of the table opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from sqlalchemy import RowMapping, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncEngine

from engine.domain import Scope
from persistence.database import transaction
from persistence.tables import ApiKey as Row
from persistence.tables import Tenant


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Who may do what. ``tenant`` None is a platform's key, whose caller names the tenant with each request."""

    id: str
    tenant: str | None
    name: str
    scopes: frozenset[Scope]
    created_at: datetime | None = None
    revoked_at: datetime | None = None


def hash_of(presented: str) -> str:
    """What is stored of a key. Keys are long and random, so a plain SHA-256 can't be searched backwards."""
    return sha256(presented.encode(errors="surrogatepass")).hexdigest()


class KeyRepository:
    """Reads and writes ``api_keys``. Every method raises ``StorageUnavailable`` when Postgres is away."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def find(self, key_hash: str) -> ApiKey | None:
        """The key with this hash, unless there is none or it was revoked."""
        query = select(Row.__table__).where(Row.key_hash == key_hash, Row.revoked_at.is_(None))
        async with transaction(self._engine) as connection:
            row = (await connection.execute(query)).mappings().one_or_none()
        return None if row is None else _key(row)

    async def add(self, key: ApiKey, key_hash: str) -> None:
        """Store a new key; its tenant comes into being with it."""
        async with transaction(self._engine) as connection:
            if key.tenant is not None:
                await connection.execute(upsert(Tenant).values(id=key.tenant).on_conflict_do_nothing())
            await connection.execute(
                insert(Row).values(
                    id=key.id, tenant=key.tenant, name=key.name, key_hash=key_hash, scopes=sorted(key.scopes)
                )
            )

    async def all(self) -> list[ApiKey]:
        """Every key, revoked ones too, oldest first."""
        async with transaction(self._engine) as connection:
            rows = await connection.execute(select(Row.__table__).order_by(Row.created_at, Row.id))
            return [_key(row) for row in rows.mappings()]

    async def revoke(self, identifier: str) -> bool:
        """End a key now; False when there is none of this id, or it had ended before."""
        statement = update(Row).where(Row.id == identifier, Row.revoked_at.is_(None)).values(revoked_at=func.now())
        async with transaction(self._engine) as connection:
            return (await connection.execute(statement)).rowcount == 1


def _key(row: RowMapping) -> ApiKey:
    return ApiKey(
        id=row["id"],
        tenant=row["tenant"],
        name=row["name"],
        scopes=frozenset(Scope(word) for word in row["scopes"]),
        created_at=row["created_at"],
        revoked_at=row["revoked_at"],
    )
