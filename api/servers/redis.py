"""A Redis (or Valkey) server of our own."""

from __future__ import annotations

from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from api.servers.process import LOOPBACK, ServerProcess

ASK_SECONDS = 2.0


class RedisServer(ServerProcess):
    """A private Redis on loopback that never evicts and keeps an append-only file.

    ``fsync`` says when that is written to disk: ``always``, ``everysec`` or ``no``.
    """

    name = "Redis"

    def __init__(self, binary: Path, data_dir: Path, port: int | None = None, *, fsync: str = "everysec") -> None:
        super().__init__(data_dir, port)
        self.binary = binary
        self.fsync = fsync

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def command(self) -> list[str]:
        options = {
            "bind": LOOPBACK,
            "port": str(self.port),
            "dir": str(self.data_dir),
            "appendonly": "yes",
            "appendfsync": self.fsync,
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "logfile": "",
        }
        return [str(self.binary), *(part for name, value in options.items() for part in (f"--{name}", value))]

    def prepare(self) -> None:
        self.data_dir.mkdir(mode=0o700, exist_ok=True)

    def ready(self) -> bool:
        try:
            with redis.Redis(
                host=LOOPBACK,
                port=self.port,
                protocol=2,
                socket_timeout=ASK_SECONDS,
                retry=Retry(NoBackoff(), 0),
            ) as client:
                client.ping()  # refused while it still loads its data
                answers_from = client.config_get("dir")["dir"]
        except (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError):
            return False
        # Another server may have the port, and answer while ours is on its way out.
        return self.alive and Path(answers_from) == self.data_dir.resolve()
