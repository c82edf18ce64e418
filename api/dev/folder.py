"""What ``dev`` keeps in ``.lastportion``: the servers' data, its secrets, and who runs it now."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

FOLDER = ".lastportion"
RUNNING = "running.json"


class DevRefused(RuntimeError):
    """``dev`` can't run here; the message says what to do about it."""


def running_settings(parent: Path) -> dict[str, str]:
    """The settings that the roles of the ``dev`` run in this folder have, by field; raises DevRefused without one."""
    path = parent.absolute() / FOLDER
    try:
        with (path / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except BlockingIOError:
        settings = _read(path / RUNNING).get("settings")
        if isinstance(settings, dict):
            return settings
        raise DevRefused("Lastportion is still starting here: try again when it has printed its address.") from None
    raise DevRefused("No Lastportion runs in this folder: start one with `make run`.")


class DataFolder:
    """The folder ``.lastportion`` where ``dev`` was started. Raises DevRefused when it can't be ours."""

    def __init__(self, parent: Path) -> None:
        self.path = parent.absolute() / FOLDER
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise DevRefused(f"{self.path} can't be made: {error.strerror}.") from error
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise DevRefused(f"{self.path} belongs to another user: remove it, or run as that user.")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other ``dev`` out while the block runs; the lock goes with the process, however it ends."""
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                running = self._read(RUNNING)
                where = f" (process {running['pid']}, {running['url']})" if running else ""
                raise DevRefused(f"Lastportion already runs in this folder{where}: stop that one first.") from None
            self._clear()  # what a killed run left
            try:
                yield
            finally:
                self._clear()

    def _clear(self) -> None:
        (self.path / RUNNING).unlink(missing_ok=True)

    def announce(self, **facts: Any) -> None:
        """Write down where this run is reached and with what settings, for other commands in this folder.

        Secrets are among the settings, so the file is the owner's alone, and goes when the run ends.
        """
        self._write(RUNNING, {"pid": os.getpid(), **facts})

    def secrets(self) -> dict[str, str]:
        """Made once and kept, so that what was signed before a restart is still believed after it."""
        known = self._read("secrets.json")
        fresh = {
            "stripe_secret_key": f"sk_test_{token_hex(16)}",
            "stripe_webhook_secret": f"whsec_{token_hex(16)}",
            "paystack_secret_key": f"sk_test_{token_hex(16)}",
        }
        if not fresh.keys() <= known.keys():
            known = {**fresh, **known}
            self._write("secrets.json", known)
        return known

    def port_of(self, server: str) -> int | None:
        """The port that a server had the last time."""
        port = self._read("ports.json").get(server)
        return port if isinstance(port, int) else None

    def remember_ports(self, ports: Mapping[str, int]) -> None:
        self._write("ports.json", {**self._read("ports.json"), **ports})

    def _read(self, name: str) -> dict[str, Any]:
        return _read(self.path / name)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        """Readable to the owner alone, and never half written."""
        fresh = self.path / f"{name}.new"
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
        fresh.replace(self.path / name)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DevRefused(f"{path} is not JSON: remove it and start again.") from error
    if not isinstance(found, dict):
        raise DevRefused(f"{path} is not an object: remove it and start again.")
    return found
