"""A PostgreSQL server of our own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import psycopg
from psycopg import sql

from api.servers.account import Account, give_to, leash_command, postgres_account
from api.servers.process import LOOPBACK, POLL_SECONDS, ServerFailed, ServerProcess

SUPERUSER = "lastportion"
DATABASE = "lastportion"
ASK_SECONDS = 2
INITDB_SECONDS = 120.0


class PostgresServer(ServerProcess):
    """A private PostgreSQL on loopback, in UTC, without Unix sockets, whose paths must be short.

    ``options`` are server settings for the command line. ``account`` overrides the choice of who it runs as.
    """

    name = "Postgres"
    # SIGINT ends sessions and writes everything; SIGTERM would wait for the sessions.
    stop_signal = death_signal = signal.SIGINT

    def __init__(
        self,
        bin_dir: Path,
        data_dir: Path,
        port: int | None = None,
        *,
        options: Mapping[str, str] | None = None,
        account: Account | None = None,
    ) -> None:
        super().__init__(data_dir, port)
        self.bin_dir = bin_dir
        self.options = dict(options or {})
        self._account = account

    @property
    def url(self) -> str:
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """Address of one of its databases, for the settings."""
        return f"postgresql+psycopg://{SUPERUSER}@{LOOPBACK}:{self.port}/{database}"

    def account(self) -> Account:
        if self._account is None:
            self._account = postgres_account([self.bin_dir / "postgres", self.data_dir])
        return self._account

    def command(self) -> list[str]:
        options = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **self.options,
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return [str(self.bin_dir / "postgres"), "-D", str(self.data_dir), *settings]

    def prepare(self) -> None:
        if not (self.data_dir / "PG_VERSION").exists():
            self._initialise()
        give_to(self.data_dir, self.account().owner)
        self._clear_stale_lock()

    def ready(self) -> bool:
        try:
            lines = (self.data_dir / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # The eighth line is the server's own word for how far it is.
        if len(lines) < 8 or lines[7].strip() != "ready":
            return False
        try:
            self.ensure_database(DATABASE)
        except psycopg.OperationalError:
            return False
        return self.alive

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        """A plain connection in autocommit mode, for whoever looks after the server."""
        return psycopg.connect(
            host=LOOPBACK,
            port=self.port,
            user=SUPERUSER,
            dbname=database,
            autocommit=True,
            connect_timeout=ASK_SECONDS,
        )

    def ensure_database(self, name: str) -> None:
        """Create a database where it is missing."""
        with self.connect() as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
            if known is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def _initialise(self) -> None:
        """Make the cluster beside its place and move it there whole, so that no half one is ever used."""
        fresh = self.data_dir.with_name(self.data_dir.name + ".new")
        if fresh.exists():
            shutil.rmtree(fresh)
        fresh.mkdir(mode=0o700)
        give_to(fresh, self.account().owner)
        command = [
            *(str(self.bin_dir / "initdb"), "-D", str(fresh), "-U", SUPERUSER),
            *("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
        ]
        done = subprocess.run(
            leash_command(command, self.account(), signal.SIGKILL, os.getpid()),
            capture_output=True,
            text=True,
            cwd="/",
            timeout=INITDB_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise ServerFailed(f"initdb failed:\n{done.stdout}{done.stderr}")
        if self.data_dir.exists():
            self.data_dir.rmdir()
        fresh.rename(self.data_dir)

    def _clear_stale_lock(self) -> None:
        """Remove the lock file of a run that was killed, once no server of this folder is left.

        Postgres does so itself unless the process id went to something else meanwhile, which is the rule
        rather than the exception after a reboot or in a fresh container.
        """
        lock = self.data_dir / "postmaster.pid"
        give_up_at = time.monotonic() + self.stop_seconds
        while lock.exists():
            first = lock.read_text().split("\n", 1)[0].strip()
            if not first.isdigit() or not self._is_ours(int(first)):
                lock.unlink(missing_ok=True)
                return
            if time.monotonic() > give_up_at:
                raise ServerFailed(f"A Postgres (process {first}) is already running on {self.data_dir}.")
            time.sleep(POLL_SECONDS)

    def _is_ours(self, pid: int) -> bool:
        return str(self.data_dir) in _command_line_of(pid)


def _command_line_of(pid: int) -> str:
    """How a process was started; empty when there is none."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return ""
    asked = ["ps", "-ww", "-o", "args=", "-p", str(pid)]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout
