"""The Redis clients: time-outs, retries and protocol set explicitly, since redis-py's defaults retry ten times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

if TYPE_CHECKING:
    from engine.settings import Settings

FAKE_SCHEME = "fakeredis"
BROKEN_TEXT = "replace"
"""An entry that somebody wrote without UTF-8 must not stop persister and admission for good: it is read, found to be
broken and set aside. What we write ourselves is always UTF-8."""

_fake_servers: dict[str, Any] = {}


def create_redis(settings: Settings, *, blocking: bool = False, connections: int | None = None) -> Redis:
    """A client of ``settings.redis_url``. Answers are text.

    ``blocking`` is for readers that wait on a stream: no socket time-out and no retries. Every other client gives up
    after ``redis_timeout_seconds`` and repeats a lost call ``redis_retries`` times, which is safe because every
    mutating script is idempotent by id. ``fakeredis://name`` gives an in-process server, the same for one name.
    """
    if urlsplit(settings.redis_url).scheme == FAKE_SCHEME:
        return _fake_redis(settings.redis_url)
    retries = 0 if blocking else settings.redis_retries
    pool = BlockingConnectionPool.from_url(
        settings.redis_url,
        max_connections=connections or settings.redis_connections,
        timeout=settings.redis_timeout_seconds,
        decode_responses=True,
        encoding_errors=BROKEN_TEXT,
        protocol=3,
        socket_connect_timeout=settings.redis_timeout_seconds,
        socket_timeout=None if blocking else settings.redis_timeout_seconds,
        socket_keepalive=True,
        health_check_interval=0,
        retry=Retry(ExponentialBackoff(cap=0.1, base=0.01), retries),
        retry_on_error=[RedisConnectionError, RedisTimeoutError] if retries else [],
    )
    return Redis.from_pool(pool)


def _fake_redis(url: str) -> Redis:
    # Imported here: fakeredis belongs to the `embedded` extra and production does not install it.
    from fakeredis import FakeAsyncRedis, FakeServer  # noqa: PLC0415

    server = _fake_servers.setdefault(url, FakeServer(version=(7,)))
    # A connection costs nothing here, and the default of 100 refuses calls where the real pool lets them wait.
    return FakeAsyncRedis(server=server, decode_responses=True, encoding_errors=BROKEN_TEXT, max_connections=1_000_000)


def is_fake(settings: Settings) -> bool:
    """Whether this deployment runs on the in-process stand-in, which has no INFO and no persistence."""
    return urlsplit(settings.redis_url).scheme == FAKE_SCHEME
