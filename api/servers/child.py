"""A child process that ends with this one, stopped by its own process id."""

from __future__ import annotations

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from api.servers.account import Account, leash_command

LARGEST_LOG_BYTES = 5_000_000


class ChildProcess(ABC):
    """A process that ends with this one (to be exact: with the thread that starts it).

    ``stop_signal`` asks it to end in good order, ``death_signal`` is what the kernel sends it when we are gone.
    Its output goes to ``log_path``, or where ours goes when that is None.
    """

    name: str
    stop_signal = signal.SIGTERM
    death_signal = signal.SIGTERM
    stop_seconds = 20.0
    log_path: Path | None = None
    environment: Mapping[str, str] | None = None

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """Its command line."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it serves where it can be asked."""

    def account(self) -> Account:
        """Who it runs as."""
        return Account()

    @property
    def pid(self) -> int:
        """Process id of the last child started; raises RuntimeError when there was none."""
        if self._child is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended (minus the signal that ended it); None while it runs or before it was started."""
        return None if self._child is None else self._child.poll()

    def launch(self) -> None:
        """Start without waiting."""
        command = leash_command(self.command(), self.account(), self.death_signal, os.getpid())
        if self.log_path is None:
            self._child = self._spawn(command, None)
            return
        if self.log_path.exists() and self.log_path.stat().st_size > LARGEST_LOG_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.old"))
        with self.log_path.open("ab") as log:
            self._child = self._spawn(command, log.fileno())

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
            self.kill()

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def restart(self) -> None:
        """Stop and start again."""
        self.stop()
        self.start()

    def _spawn(self, command: list[str], output: int | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            cwd="/" if output is not None else None,
            env=None if self.environment is None else dict(self.environment),
            start_new_session=True,  # Ctrl-C in a terminal reaches us alone, and we stop them in order
        )
