"""A server as a child process: started, asked whether it is ready, stopped by its own process id."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from api.servers.account import Account, leash_command

if TYPE_CHECKING:
    import signal
    from pathlib import Path

LOOPBACK = "127.0.0.1"
LARGEST_LOG_BYTES = 5_000_000
POLL_SECONDS = 0.02
PORT_ATTEMPTS = 3


class ServerFailed(RuntimeError):
    """A server did not start; the message ends with the last lines of its log."""


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen on ``port`` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT can be listened on
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


class ServerProcess(ABC):
    """A server that ends with this process; with the thread that starts it, to be exact, so take one that stays.

    Without ``port`` a free one is taken at the first start and kept over restarts.
    """

    name: str
    stop_signal: signal.Signals
    start_seconds = 60.0
    stop_seconds = 20.0

    def __init__(self, data_dir: Path, port: int | None = None) -> None:
        self.data_dir = data_dir.absolute()
        self._port = port
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port it listens on; raises RuntimeError while none is chosen yet."""
        if self._port is None:
            raise RuntimeError(f"{self.name} was never started, so it has no port yet")
        return self._port

    @property
    def pid(self) -> int:
        """Process id of the running child; raises RuntimeError when it was never started."""
        if self._child is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def log_path(self) -> Path:
        return self.data_dir.with_name(self.data_dir.name + ".log")

    @property
    @abstractmethod
    def url(self) -> str:
        """Address for the settings."""

    @abstractmethod
    def command(self) -> list[str]:
        """Command line of the server."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the data folder ready for a start."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether this very process answers; False while it is still coming up."""

    def account(self) -> Account:
        """Who it runs as."""
        return Account()

    def start(self) -> None:
        """Start and wait until it answers; raises ServerFailed, and then nothing is left running."""
        if self.alive:
            return
        picks_port = self._port is None
        for attempt in range(1, PORT_ATTEMPTS + 1):
            if picks_port:
                self._port = free_port()
            try:
                self._start_once()
                return
            except ServerFailed:
                # Between finding a free port and listening on it, another process may have taken it.
                if not picks_port or attempt == PORT_ATTEMPTS or port_is_free(self.port):
                    raise

    def launch(self) -> None:
        """Start without waiting; ``ready`` tells when it answers."""
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        self.prepare()
        if self.log_path.exists() and self.log_path.stat().st_size > LARGEST_LOG_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.old"))
        command = leash_command(self.command(), self.account(), self.stop_signal, os.getpid())
        with self.log_path.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                start_new_session=True,  # Ctrl-C in a terminal reaches us alone, and we stop them in order
            )

    def stop(self) -> None:
        """End it in good order, by force if that takes too long."""
        child = self._child
        if child is None:
            return
        if child.poll() is None:
            child.send_signal(self.stop_signal)
        try:
            child.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def restart(self) -> None:
        """Stop and start on the same port with the same data."""
        self.stop()
        self.start()

    def log_tail(self, lines: int = 12) -> str:
        """The last lines that it logged."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _start_once(self) -> None:
        self.launch()
        give_up_at = time.monotonic() + self.start_seconds
        while not self.ready():
            if not self.alive:
                raise ServerFailed(f"{self.name} ended while starting:\n{self.log_tail()}")
            if time.monotonic() > give_up_at:
                self.kill()
                raise ServerFailed(
                    f"{self.name} did not answer in {self.start_seconds:g} s:\n{self.log_tail()}"
                )
            time.sleep(POLL_SECONDS)
