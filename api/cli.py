"""The command line: ``lastportion --help``. Each command loads only what it runs, so that help comes at once."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from engine.domain import Scope
from engine.errors import LastportionError
from engine.settings import Settings, sentences_of, settings_from_environment

# ruff: noqa: PLC0415 (what a command does not run it does not load)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they would print local variables, secrets among them
)
keys = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys.")
app.add_typer(keys, name="keys")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lastportion {version('lastportion')}")
        raise typer.Exit


@app.callback()
def lastportion(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version and leave.")
    ] = False,
) -> None:
    """Lastportion: a reservation engine that sells no unit twice. Settings come from LASTPORTION_* variables."""


@app.command()
def dev() -> None:
    """Run everything in one go on this machine, its servers and a payment sandbox included."""
    from api.dev.command import run_dev

    raise typer.Exit(run_dev(Path.cwd()))


@app.command()
def serve(
    everything: Annotated[
        bool, typer.Option("--all", help="Run the persister and the jobs in this process too.")
    ] = False,
) -> None:
    """Run the HTTP API."""
    settings = _settings()
    from api.roles import run_persister, run_worker
    from api.running import run_roles
    from api.serving import run_api

    if everything:
        run_roles(settings, api=run_api, persister=run_persister, worker=run_worker)
    else:
        run_roles(settings, api=run_api)


@app.command()
def persist() -> None:
    """Run the persister, which moves what was decided in Redis to Postgres."""
    settings = _settings()
    from api.roles import run_persister
    from api.running import run_roles

    run_roles(settings, persister=run_persister)


@app.command()
def work() -> None:
    """Run the jobs."""
    settings = _settings()
    from api.roles import run_worker
    from api.running import run_roles

    run_roles(settings, worker=run_worker)


@app.command()
def migrate() -> None:
    """Bring the database to the newest schema; several at once wait for each other."""
    from api.logs import configure_logs
    from persistence.migrations import migrate as run

    settings = _settings()
    configure_logs(settings.log_format, settings.log_level)
    asyncio.run(run(settings))


@app.command()
def reconcile(
    days: Annotated[int, typer.Option(min=1, max=90, help="How far back to look, in days.")] = 3,
    of_dev: Annotated[
        bool, typer.Option("--dev", help="Take the settings of the `lastportion dev` that runs in this folder.")
    ] = False,
) -> None:
    """Find what was paid at a provider without our hearing of it, and settle it.

    Exits with 0 when nothing differed, 1 when something did, 2 when a provider or a server could not be asked.
    """
    from api.logs import configure_logs
    from api.reconcile_command import UNASKED, lines_of, status_of
    from api.reconcile_command import reconcile as run
    from persistence.identity import UnsafeRedis

    settings = _settings_of_dev() if of_dev else _settings()
    configure_logs(settings.log_format, "ERROR")
    try:
        findings = asyncio.run(run(settings, days))
    except (LastportionError, UnsafeRedis) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(UNASKED) from None
    for line in lines_of(findings, days):
        typer.echo(line)
    raise typer.Exit(status_of(findings))


@keys.command("create")
def keys_create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    tenant: Annotated[
        str | None, typer.Option(help="The tenant it belongs to; without one it is a platform's key.")
    ] = None,
    scope: Annotated[list[Scope] | None, typer.Option(help="What it may do; give it once per scope.")] = None,
) -> None:
    """Make a key and show it, this once."""
    from api.key_commands import create_key

    made = asyncio.run(create_key(_settings(), tenant, name, scope or []))
    typer.echo(f"id   {made.key.id}")
    typer.echo(f"key  {made.secret}")


@keys.command("list")
def keys_list() -> None:
    """Show every key, without its secret."""
    from rich.console import Console
    from rich.table import Column, Table

    from api.key_commands import ID_LENGTH, list_keys

    table = Table(Column("id", no_wrap=True, min_width=ID_LENGTH), "tenant", "name", "scopes", "created", "revoked")
    for key in asyncio.run(list_keys(_settings())):
        times = (str(moment or "") for moment in (key.created_at, key.revoked_at))
        table.add_row(key.id, key.tenant or "(all)", key.name, " ".join(sorted(key.scopes)), *times)
    Console().print(table)


@keys.command("revoke")
def keys_revoke(identifier: Annotated[str, typer.Argument(help="The key's id, from `keys list`.")]) -> None:
    """End a key; running processes take it for 30 s at most."""
    from api.key_commands import revoke_key

    asyncio.run(revoke_key(_settings(), identifier))
    typer.echo(f"revoked {identifier}")


def _settings() -> Settings:
    """The settings, or a sentence about each that is wrong and exit 2."""
    try:
        return settings_from_environment()
    except ValidationError as error:
        for sentence in sentences_of(error):
            typer.echo(sentence, err=True)
        raise typer.Exit(2) from None


def _settings_of_dev() -> Settings:
    """The settings of the dev run in this folder, or a sentence and exit 2."""
    from api.dev.folder import DevRefused, running_settings

    try:
        return Settings.model_validate(running_settings(Path.cwd()))
    except DevRefused as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


def main() -> None:
    """Entry of the ``lastportion`` command; what can't be done is said in a sentence, with exit 1."""
    try:
        app()
    except LastportionError as error:
        typer.echo(error.message, err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
