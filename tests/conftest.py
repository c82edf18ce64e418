"""Servers and databases that the tests run on. Everything is started here, on loopback, and ends with the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import redis
from psycopg import sql

from api.servers import (
    PostgresServer,
    RedisBinary,
    RedisServer,
    find_postgres,
    find_redis,
    redis_binary,
)

REPOSITORY = Path(__file__).resolve().parent.parent
FAKEREDIS = "fakeredis"
EXTRA_REDIS = "LASTPORTION_TEST_REDIS"
"""Environment variable: further Redis or Valkey binaries to run the contract tests on, separated as in PATH."""

TEMPLATE = "lastportion_template"
QUICK_POSTGRES = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "200",
}


def real_redis_binaries() -> list[RedisBinary]:
    """The best Redis found, those named in the environment, and Valkey where it is on the PATH; each label once."""
    named = [Path(text) for text in os.environ.get(EXTRA_REDIS, "").split(os.pathsep) if text]
    extra = [redis_binary(path) for path in named]
    missing = [str(path) for path, binary in zip(named, extra, strict=True) if binary is None]
    if missing:
        raise pytest.UsageError(f"{EXTRA_REDIS} names what is not a Redis 7 or later: {', '.join(missing)}")
    valkey = shutil.which("valkey-server")
    candidates = [*find_redis()[:1], *extra, redis_binary(Path(valkey)) if valkey else None]
    by_label = {binary.label: binary for binary in reversed(candidates) if binary is not None}
    return list(reversed(by_label.values()))


REAL_REDIS = {binary.label: binary for binary in real_redis_binaries()}


@dataclass(frozen=True, slots=True)
class RedisBackend:
    """One kind of Redis to run a test on, empty. ``kind`` is ``fakeredis`` or a label such as ``redis-8.2.3``."""

    kind: str
    url: str

    @property
    def real(self) -> bool:
        return self.kind != FAKEREDIS


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """The PostgreSQL of this run: fast, and careless of a power cut."""
    server = _postgres(tmp_path_factory.mktemp("postgres") / "data")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def database_template(postgres_server: PostgresServer) -> str:
    """Name of a migrated database that is copied for each test; made by the real ``migrate`` command."""
    postgres_server.ensure_database(TEMPLATE)
    migrate(postgres_server.url_of(TEMPLATE))
    return TEMPLATE


@pytest.fixture
def database_url(postgres_server: PostgresServer, database_template: str) -> Iterator[str]:
    """A migrated database of the test's own."""
    name = f"test_{uuid4().hex[:12]}"
    with postgres_server.connect() as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(database_template))
        )
    yield postgres_server.url_of(name)
    with postgres_server.connect() as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def own_postgres_server(tmp_path: Path) -> Iterator[PostgresServer]:
    """A running, migrated PostgreSQL that the test may stop, kill and restart."""
    server = _postgres(tmp_path / "own-postgres")
    server.start()
    migrate(server.url)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_servers() -> Iterator[dict[str, RedisServer]]:
    """The running servers by label; a test's fixtures add to it what they need."""
    servers: dict[str, RedisServer] = {}
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture
def redis_server(redis_servers: dict[str, RedisServer], tmp_path_factory: pytest.TempPathFactory) -> RedisServer:
    """The best real Redis found, empty."""
    if not REAL_REDIS:
        pytest.skip("there is no Redis binary for this platform")
    return _empty_server(next(iter(REAL_REDIS)), redis_servers, tmp_path_factory)


@pytest.fixture
def own_redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running real Redis that the test may kill, restart and flush."""
    if not REAL_REDIS:
        pytest.skip("there is no Redis binary for this platform")
    server = RedisServer(next(iter(REAL_REDIS.values())).path, tmp_path / "own-redis")
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=[FAKEREDIS, *REAL_REDIS])
def redis_backend(
    request: pytest.FixtureRequest,
    redis_servers: dict[str, RedisServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> RedisBackend:
    """Every kind of Redis there is, one after the other, each empty."""
    kind: str = request.param
    if kind == FAKEREDIS:
        return RedisBackend(kind, f"fakeredis://{uuid4().hex}")
    return RedisBackend(kind, _empty_server(kind, redis_servers, tmp_path_factory).url)


def migrate(database_url: str) -> None:
    """Run ``lastportion migrate`` against a database, as an operator would."""
    done = subprocess.run(
        [sys.executable, "-m", "api.cli", "migrate"],
        cwd=REPOSITORY,
        env={**os.environ, "LASTPORTION_DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _postgres(data_dir: Path) -> PostgresServer:
    found = find_postgres()
    if not found:
        raise pytest.UsageError("The tests need PostgreSQL 15 or later: pip install 'lastportion[embedded]'.")
    return PostgresServer(found[0].bin_dir, data_dir, options=QUICK_POSTGRES)


def _empty_server(label: str, servers: dict[str, RedisServer], tmp_path_factory: pytest.TempPathFactory) -> RedisServer:
    server = servers.get(label)
    if server is None:
        server = RedisServer(REAL_REDIS[label].path, tmp_path_factory.mktemp(label) / "data")
        servers[label] = server
    server.start()
    with redis.Redis(host="127.0.0.1", port=server.port, protocol=2) as client:
        client.flushall()
        client.script_flush()
    return server
