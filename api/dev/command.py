"""The ``dev`` command: servers, migrations, roles and samples, kept running until somebody says stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from shutil import which
from types import FrameType
from typing import NoReturn

import httpx
from pydantic import ValidationError

from api.authentication import DEV_KEY, DEV_TENANT
from api.dev.folder import DataFolder, DevRefused
from api.dev.plan import PREFIX, Plan, make_plan
from api.dev.samples import PAYSTACK, STRIPE, curl_line, load_samples
from api.dev.supervisor import Supervisor
from api.logs import configure_logs
from api.servers import ChildProcess, NoAccount, PostgresServer, RedisServer, ServerFailed
from engine.errors import StorageUnavailable
from engine.settings import LogFormat, Settings, sentences_of
from persistence.migrations import migrate

LOOK_SECONDS = 0.2
READY_SECONDS = 90.0
MOST_EARLY_DEATHS = 3
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Somebody asked us to stop; raised wherever we are, so that no wait is too long to be left."""


class RoleProcess(ChildProcess):
    """One role of Lastportion, as production would run it, with its output where ours goes."""

    # A role must bear being killed at any moment, and one that hangs must not outlive us.
    death_signal = signal.SIGKILL

    def __init__(self, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        super().__init__()
        self.name = name
        self.arguments = arguments
        self.environment = environment

    def command(self) -> list[str]:
        return [sys.executable, "-m", "api.cli", *self.arguments]

    def start(self) -> None:
        self.launch()


def run_dev(parent: Path) -> int:
    """Run everything below ``parent`` until Ctrl-C or SIGTERM; the exit status says whether that went well."""
    configure_logs(LogFormat.CONSOLE, "INFO")
    supervisor = Supervisor()
    for number in STOP_SIGNALS:
        signal.signal(number, _stop)
    try:
        folder = DataFolder(parent)
        with folder.held():
            try:
                _run(folder, supervisor)
            finally:
                # From here on we are stopping, and a second Ctrl-C would only leave that half done.
                for number in STOP_SIGNALS:
                    signal.signal(number, signal.SIG_IGN)
                supervisor.stop()
    except (DevRefused, NoAccount, ServerFailed, StorageUnavailable, httpx.HTTPError) as error:
        print(error, file=sys.stderr)
        return 1
    except Stopped:
        print("Stopped.", file=sys.stderr)
        return 0


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Stopped


def _run(folder: DataFolder, supervisor: Supervisor) -> NoReturn:
    plan = make_plan(folder, os.environ)
    for notice in plan.notices:
        print(notice, flush=True)
    _start_servers(plan, folder, supervisor)
    settings = _settings(plan)
    asyncio.run(migrate(settings))
    _start_roles(plan, supervisor)
    _wait_until_ready(plan, supervisor)
    load_samples(plan.url, DEV_KEY)
    folder.announce(url=plan.url, settings=_given(plan))
    print(_greeting(plan), flush=True)
    while True:
        time.sleep(LOOK_SECONDS)
        supervisor.look()


def _start_servers(plan: Plan, folder: DataFolder, supervisor: Supervisor) -> None:
    for server in plan.servers:
        print(f"Starting {plan.described[server.name]} …", flush=True)
        supervisor.start(server)
        match server:
            case RedisServer():
                plan.environment["LASTPORTION_REDIS_URL"] = server.url
            case PostgresServer():
                plan.environment["LASTPORTION_DATABASE_URL"] = server.url
    folder.remember_ports({server.name: server.port for server in plan.servers})


def _settings(plan: Plan) -> Settings:
    """The settings that the roles will read; raises DevRefused where one is wrong, before anything tries them."""
    try:
        return Settings.model_validate(_given(plan))
    except ValidationError as error:
        raise DevRefused("\n".join(sentences_of(error))) from error


def _given(plan: Plan) -> dict[str, str]:
    return {name.removeprefix(PREFIX).lower(): text for name, text in plan.environment.items() if PREFIX in name}


def _start_roles(plan: Plan, supervisor: Supervisor) -> None:
    if plan.one_process:
        supervisor.start(RoleProcess("API, persister and jobs", ["serve", "--all"], plan.environment))
        return
    for name, command in (("persister", "persist"), ("jobs", "work"), ("API", "serve")):
        supervisor.start(RoleProcess(name, [command], plan.environment))


def _wait_until_ready(plan: Plan, supervisor: Supervisor) -> None:
    give_up_at = time.monotonic() + READY_SECONDS
    said = "it does not answer"
    while time.monotonic() < give_up_at:
        try:
            answer = httpx.get(f"{plan.url}/readyz", timeout=5, trust_env=False)
        except httpx.TransportError as error:
            said = str(error)
        else:
            if answer.is_success:
                return
            said = answer.text
        supervisor.look()
        for kept in supervisor.kept:
            if kept.deaths >= MOST_EARLY_DEATHS:
                raise DevRefused(f"The {kept.child.name} ends as soon as it is started; its words are above.")
        time.sleep(LOOK_SECONDS)
    raise DevRefused(f"Lastportion was not ready after {READY_SECONDS:g} s: {said}")


def _psql(plan: Plan) -> str:
    """A client that is there: the one on the PATH, else the one that came with the server."""
    beside = [server.bin_dir / "psql" for server in plan.servers if isinstance(server, PostgresServer)]
    return "psql" if which("psql") or not beside else str(beside[0])


def _greeting(plan: Plan) -> str:
    database = plan.environment["LASTPORTION_DATABASE_URL"].replace("+psycopg", "")
    return f"""
Lastportion runs at {plan.url} (reference at {plan.url}/docs). Ctrl-C stops all of it.

  API key    {DEV_KEY}  (tenant {DEV_TENANT}, every scope)
  Redis      {plan.described["Redis"]}
             {plan.environment["LASTPORTION_REDIS_URL"]}
  Postgres   {plan.described["Postgres"]}
             {_psql(plan)} {database}

Redeem a place of the school code SCHOOL10, then open the checkout_url of the answer and pay in the sandbox:

  {curl_line(plan.url, DEV_KEY, STRIPE)}

The same through Paystack, in naira:

  {curl_line(plan.url, DEV_KEY, PAYSTACK)}
"""
