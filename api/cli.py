"""The command line: ``lastportion --help``. Each command loads only what it runs, so that help comes at once."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version
from typing import Annotated

import typer
from pydantic import ValidationError

from engine.errors import LastportionError
from engine.settings import Settings, settings_from_environment

# ruff: noqa: PLC0415 (what a command does not run it does not load)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they would print local variables, secrets among them
)


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
def migrate() -> None:
    """Bring the database to the newest schema; several at once wait for each other."""
    from api.logs import configure_logs
    from persistence.migrations import migrate as run

    settings = _settings()
    configure_logs(settings)
    asyncio.run(run(settings))


def _settings() -> Settings:
    """The settings, or a sentence about each that is wrong (never its value, which may be secret) and exit 2."""
    try:
        return settings_from_environment()
    except ValidationError as error:
        for problem in error.errors(include_input=False, include_url=False):
            name = "_".join(("LASTPORTION", *(str(part).upper() for part in problem["loc"])))
            where = f"{name}: " if problem["loc"] else ""
            typer.echo(f"{where}{problem['msg'].removeprefix('Value error, ')}", err=True)
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
