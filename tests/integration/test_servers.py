"""Servers as children: they keep their data, survive a kill of their own, and end with whoever started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from api.servers import (
    PostgresBinaries,
    PostgresServer,
    RedisServer,
    ServerFailed,
    find_postgres,
    find_redis,
    free_port,
)
from api.servers.account import LEASH, Account, How, give_to, postgres_account, unprivileged
from api.servers.find import redis_binary
from tests.processes import children_of, gone, wait_for

POSTGRES = find_postgres()
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else to run Postgres")
only_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="user namespaces are Linux's")


def accounts() -> list[Account]:
    """The ways of running Postgres that this machine allows us."""
    ways = [postgres_account([])]
    if os.geteuid() == 0:
        ways += [Account(how, *unprivileged()) for how in (How.ACCOUNT, How.ACCOUNT_REACHING)]
    return ways


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account may pass."""
    folder = Path("/tmp", f"lastportion-test-{os.getpid()}-{free_port()}")  # noqa: S108 - tmp_path is closed to others
    folder.mkdir(mode=0o755)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)  # noqa: S607


def ask(server: PostgresServer, query: str) -> object:
    with server.connect("lastportion") as connection:
        row = connection.execute(query.encode()).fetchone()
    return None if row is None else row[0]


@pytest.mark.parametrize("binaries", POSTGRES, ids=lambda each: f"postgres-{each.version}")
def test_postgres_keeps_its_data_over_stop_and_kill(binaries: PostgresBinaries, tmp_path: Path) -> None:
    server = PostgresServer(binaries.bin_dir, tmp_path / "data")
    server.start()
    try:
        with server.connect("lastportion") as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS value")
        port = server.port
        server.restart()
        assert ask(server, "SELECT value FROM kept") == 7
        assert server.port == port
        server.kill()
        assert not server.alive
        server.start()
        assert ask(server, "SELECT value FROM kept") == 7
        assert ask(server, "SHOW timezone") == "UTC"
        assert ask(server, "SHOW listen_addresses") == "127.0.0.1"
    finally:
        server.stop()
    assert gone(server.pid)


@only_root
@only_linux
@pytest.mark.parametrize("account", accounts(), ids=lambda each: each.how.value)
def test_root_runs_postgres_in_each_way(account: Account, open_folder: Path) -> None:
    if account.how is How.ACCOUNT_REACHING:
        open_folder.chmod(0o700)
    server = PostgresServer(POSTGRES[0].bin_dir, open_folder / "data", account=account)
    server.start()
    try:
        assert ask(server, "SELECT 1") == 1
        assert server.data_dir.stat().st_uid == account.owner[0]
    finally:
        server.stop()


@only_root
@only_linux
def test_data_changes_hands_when_the_way_does(open_folder: Path) -> None:
    first = PostgresServer(POSTGRES[0].bin_dir, open_folder / "data", account=Account(How.ACCOUNT, *unprivileged()))
    first.start()
    with first.connect("lastportion") as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS value")
    first.stop()
    second = PostgresServer(POSTGRES[0].bin_dir, open_folder / "data")
    second.start()
    try:
        assert ask(second, "SELECT value FROM kept") == 7
    finally:
        second.stop()


@only_root
def test_an_interrupted_change_of_hands_begins_again(tmp_path: Path) -> None:
    uid, gid = unprivileged()
    (tmp_path / "inner").mkdir()
    os.chown(tmp_path / "inner", uid, gid)
    give_to(tmp_path, (uid, gid))
    assert {path.stat().st_uid for path in (tmp_path, tmp_path / "inner")} == {uid}


def test_a_lock_file_of_a_run_that_is_gone_does_not_block(tmp_path: Path) -> None:
    server = PostgresServer(POSTGRES[0].bin_dir, tmp_path / "data")
    server.start()
    server.stop()
    # The number now belongs to another process that lives: this one.
    (tmp_path / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n{tmp_path / 'data'}\n1\n5432\n\n\n\n")
    server.start()
    try:
        assert ask(server, "SELECT 1") == 1
    finally:
        server.stop()


def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    first = PostgresServer(POSTGRES[0].bin_dir, tmp_path / "data")
    first.start()
    second = PostgresServer(POSTGRES[0].bin_dir, tmp_path / "data")
    second.stop_seconds = 0.2
    try:
        with pytest.raises(ServerFailed, match=f"process {first.pid}.* is already running"):
            second.start()
        assert ask(first, "SELECT 1") == 1
    finally:
        first.stop()


def test_an_interrupted_initdb_is_begun_again(tmp_path: Path) -> None:
    half = tmp_path / "data.new"
    half.mkdir()
    (half / "PG_VERSION").write_text("15\n")
    server = PostgresServer(POSTGRES[0].bin_dir, tmp_path / "data")
    server.start()
    try:
        assert ask(server, "SELECT 1") == 1
        assert not half.exists()
    finally:
        server.stop()


def test_redis_keeps_its_data_and_its_port_over_stop_and_kill(own_redis_server: RedisServer) -> None:
    server, port = own_redis_server, own_redis_server.port
    with redis.Redis(port=port, protocol=2, decode_responses=True) as client:
        client.set("kept", "7")
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        assert client.config_get("appendonly")["appendonly"] == "yes"
        assert client.config_get("appendfsync")["appendfsync"] == "everysec"
        assert client.config_get("bind")["bind"] == "127.0.0.1"
    server.restart()
    server.kill()
    server.start()
    assert server.port == port
    with redis.Redis(port=port, protocol=2, decode_responses=True) as client:
        assert client.get("kept") == "7"


def test_a_server_that_cannot_start_says_why(tmp_path: Path, own_redis_server: RedisServer) -> None:
    server = RedisServer(own_redis_server.binary, tmp_path / "second", own_redis_server.port)
    with pytest.raises(ServerFailed, match="Address already in use"):
        server.start()
    assert not server.alive


def test_binaries_are_judged_by_what_they_say(tmp_path: Path) -> None:
    def binary(says: str) -> Path:
        path = tmp_path / f"server-{abs(hash(says))}"
        path.write_text(f"#!/bin/sh\necho '{says}'\n")
        path.chmod(0o755)
        return path

    assert redis_binary(binary("Redis server v=6.2.14 sha=0")) is None
    assert redis_binary(binary("something else")) is None
    assert redis_binary(tmp_path / "missing") is None
    valkey = redis_binary(binary("Valkey server v=8.0.1 sha=0"))
    assert valkey is not None
    assert (valkey.label, valkey.major) == ("valkey-8.0.1", 8)
    assert all(found.major >= 7 for found in find_redis())
    assert all(found.major >= 15 for found in POSTGRES)


STARTER = """
import sys
from pathlib import Path
from api.servers import PostgresServer, RedisServer, find_postgres, find_redis
folder = Path(sys.argv[1])
servers = [PostgresServer(find_postgres()[0].bin_dir, folder / "postgres")]
servers += [RedisServer(found.path, folder / "redis") for found in find_redis()[:1]]
for server in servers:
    server.start()
print(*(server.pid for server in servers), flush=True)
sys.stdin.read()
"""


def test_servers_end_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pids = [int(text) for text in starter.stdout.readline().split()]
        assert pids
        inner = [pid for server in pids for pid in children_of(server)]
        starter.kill()
    wait_for(lambda: all(gone(pid) for pid in [*pids, *inner]), "the servers to end with their starter")


@pytest.mark.parametrize("watch", [[], ["--watch"]], ids=["tied", "watched"])
def test_the_leash_ends_its_command_with_the_parent(watch: list[str]) -> None:
    if not watch and not sys.platform.startswith("linux"):
        pytest.skip("only Linux ties a process to its parent")
    code = (
        "import os, subprocess, sys; "
        "child = subprocess.Popen([sys.executable, sys.argv[1], '--parent', str(os.getpid()), '--signal', '15', "
        "*sys.argv[2:], '--', 'sleep', '600']); print(child.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(LEASH), *watch], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        leash = int(parent.stdout.readline())
        if watch:
            wait_for(lambda: bool(children_of(leash)), "the watched command to start")
        processes = [leash, *children_of(leash)]
        parent.kill()
    wait_for(lambda: all(gone(pid) for pid in processes), "the command to end with its parent")


def test_the_watching_leash_passes_signals_and_the_exit_status_on() -> None:
    script = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [
            *(sys.executable, str(LEASH), "--parent", str(os.getpid()), "--signal", "15", "--watch"),
            *("--", "sh", "-c", script),
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as leash:
        assert leash.stdout is not None
        assert leash.stdout.readline() == "ready\n"
        leash.send_signal(signal.SIGTERM)
        assert leash.wait(10) == 7


def test_a_leash_whose_parent_is_gone_starts_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux ties a process to its parent")
    done = subprocess.run(
        [sys.executable, str(LEASH), "--parent", "999999999", "--signal", "15", "--", "touch", str(mark)],
        timeout=30,
        check=False,
    )
    assert done.returncode == 0
    assert not mark.exists()


def test_readiness_means_a_server_that_answers(tmp_path: Path) -> None:
    server = PostgresServer(POSTGRES[0].bin_dir, tmp_path / "data")
    assert not server.ready()
    server.start()
    try:
        assert server.ready()
        with psycopg.connect(server.url.replace("+psycopg", "")) as connection:
            assert connection.info.dbname == "lastportion"
    finally:
        server.stop()
    assert not server.ready()
