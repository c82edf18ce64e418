"""A server as a child process, which is asked whether it is ready."""

from __future__ import annotations

import socket
import time
from abc import abstractmethod
from pathlib import Path

from api.servers.child import ChildProcess

LOOPBACK = "127.0.0.1"
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


class ServerProcess(ChildProcess):
    """A server on loopback with a data folder; its log lies beside that.

    Without ``port`` a free one is taken at the first start and kept over restarts.
    """

    start_seconds = 60.0

    def __init__(self, data_dir: Path, port: int | None = None) -> None:
        super().__init__()
        self.data_dir = data_dir.absolute()
        self.log_path = self.data_dir.with_name(self.data_dir.name + ".log")
        self._port = port

    @property
    def port(self) -> int:
        """The port it listens on; raises RuntimeError while none is chosen yet."""
        if self._port is None:
            raise RuntimeError(f"{self.name} was never started, so it has no port yet")
        return self._port

    @property
    @abstractmethod
    def url(self) -> str:
        """Address for the settings."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the data folder ready for a start."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether it answers; False while it is still coming up."""

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

    def log_tail(self, lines: int = 12) -> str:
        """The last lines that it logged."""
        if self.log_path is None or not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _start_once(self) -> None:
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        self.prepare()
        self.launch()
        give_up_at = time.monotonic() + self.start_seconds
        while not self.ready():
            if not self.alive:
                raise ServerFailed(f"{self.name} ended while starting:\n{self.log_tail()}")
            if time.monotonic() > give_up_at:
                self.kill()
                raise ServerFailed(f"{self.name} did not answer in {self.start_seconds:g} s:\n{self.log_tail()}")
            time.sleep(POLL_SECONDS)
