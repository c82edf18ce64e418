"""Which Redis this is, and whether it may be trusted with reservations at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from redis.asyncio import Redis

from engine.errors import NotReady
from engine.redis_client import is_fake
from engine.settings import Settings


class UnsafeRedis(RuntimeError):
    """Redis may evict keys or keeps no append-only file, and the operator has not said that this is meant."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One run of one server with one history: changes when it restarts, is promoted or resynchronised."""

    server: str
    run_id: str
    replication_id: str


async def read_identity(redis: Redis, settings: Settings) -> Identity:
    """Who answers now. Raises ``NotReady`` when it is a replica, which may be behind its master."""
    if is_fake(settings):
        return await _fake_identity(redis, settings)
    pipeline = redis.pipeline(transaction=False)
    pipeline.info("server")
    pipeline.info("replication")
    server, replication = await pipeline.execute()
    if replication.get("role") != "master":
        raise NotReady(f"Redis is a {replication.get('role')}, not a master.")
    return Identity(
        f"redis {server.get('redis_version', '')}".strip(),
        str(server.get("run_id", "")),
        str(replication.get("master_replid", "")),
    )


async def _fake_identity(redis: Redis, settings: Settings) -> Identity:
    # The stand-in has no INFO: a random id that lives as long as its data stands for the identity.
    key = f"{settings.prefix}:identity"
    await redis.set(key, uuid4().hex, nx=True)
    identity = str(await redis.get(key))
    return Identity("fakeredis", identity, identity)


async def check_safety(redis: Redis, settings: Settings) -> None:
    """Raises :class:`UnsafeRedis`, naming what to change, unless reservations survive memory pressure and a restart."""
    if is_fake(settings) or settings.redis_allow_unsafe:
        return
    pipeline = redis.pipeline(transaction=False)
    pipeline.info("memory")
    pipeline.info("persistence")
    memory, persistence = await pipeline.execute()
    problems = _problems(memory, persistence)
    if problems:
        raise UnsafeRedis(
            f"This Redis can't be trusted with reservations: {' and '.join(problems)}. "
            "Change that, or set LASTPORTION_REDIS_ALLOW_UNSAFE=true if losing them is acceptable."
        )


def _problems(memory: dict[str, Any], persistence: dict[str, Any]) -> list[str]:
    problems = []
    policy = memory.get("maxmemory_policy")
    if policy != "noeviction":
        problems.append(f"its maxmemory-policy is {policy!r} and must be 'noeviction', or it deletes reservations")
    if not persistence.get("aof_enabled"):
        problems.append("its appendonly is 'no' and must be 'yes', or a restart loses what Postgres does not have yet")
    return problems
