"""The command line as an operator meets it: what it offers, what it says of wrong settings, keys from end to end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def lastportion(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: text for name, text in os.environ.items() if not name.upper().startswith("LASTPORTION_")}
    return subprocess.run(
        [sys.executable, "-m", "api.cli", *arguments],
        cwd=REPOSITORY,
        env={**inherited, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("command", ["dev", "serve", "persist", "work", "migrate", "keys"])
def test_help_names_every_command(command: str) -> None:
    shown = lastportion("--help")
    assert shown.returncode == 0
    assert re.search(rf"^\W*{command}\s+\w", shown.stdout, re.MULTILINE)
    assert lastportion(command, "--help").returncode == 0


def test_the_two_clocks_out_of_order_are_refused_with_the_reason() -> None:
    said = lastportion("serve", LASTPORTION_SESSION_TTL_SECONDS="2400", LASTPORTION_RESERVATION_TTL_SECONDS="2400")
    assert said.returncode == 2
    assert "must be smaller than LASTPORTION_RESERVATION_TTL_SECONDS" in said.stderr
    assert "takes money for units that somebody else may hold" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_wrong_setting_is_named_without_its_value() -> None:
    said = lastportion("migrate", LASTPORTION_PARTITIONS="hush-hush")
    assert said.returncode == 2
    assert "LASTPORTION_PARTITIONS: Input should be a valid integer" in said.stderr
    assert "hush-hush" not in said.stderr + said.stdout


def test_a_database_that_is_away_is_said_in_a_sentence() -> None:
    said = lastportion("migrate", LASTPORTION_DATABASE_URL="postgresql://me:hush@127.0.0.1:1/db")
    assert said.returncode == 1
    assert said.stderr == "Postgres can't be reached.\n"


def test_migrating_again_changes_nothing(database_url: str) -> None:
    def tables() -> list[tuple[str, str]]:
        with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
            query = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
            return sorted(connection.execute(query).fetchall())

    before = tables()
    assert lastportion("migrate", LASTPORTION_DATABASE_URL=database_url).returncode == 0
    assert tables() == before != []


def test_a_key_is_made_shown_once_listed_and_revoked(database_url: str) -> None:
    def keys(*arguments: str) -> subprocess.CompletedProcess[str]:
        return lastportion("keys", *arguments, LASTPORTION_DATABASE_URL=database_url)

    made = keys("create", "till", "--tenant", "shop", "--scope", "read", "--scope", "checkout")
    assert made.returncode == 0, made.stderr
    identifier, secret = re.fullmatch(r"id   (\S+)\nkey  (lp_\S{40,})\n", made.stdout).groups()
    listed = keys("list").stdout
    assert identifier in listed
    assert "checkout read" in listed
    # Also where the output is narrow: the id is what `keys revoke` takes.
    narrow = lastportion("keys", "list", LASTPORTION_DATABASE_URL=database_url, COLUMNS="60").stdout
    assert identifier in narrow
    assert secret not in listed
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        stored = str(connection.execute("SELECT * FROM api_keys").fetchall())
    assert secret not in stored
    assert keys("revoke", identifier).returncode == 0
    again = keys("revoke", identifier)
    assert again.returncode == 1
    assert identifier in again.stderr
    refused = keys("create", "nothing", "--tenant", "shop")
    assert (refused.returncode, refused.stderr) == (1, "A key needs a scope.\n")
