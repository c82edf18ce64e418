"""What a dev run decides before it starts anything: settings honoured, settings forced, servers chosen."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from api.dev import plan as planning
from api.dev.folder import DataFolder, DevRefused, running_settings
from api.dev.plan import make_plan, without_password
from api.servers import RedisBinary, free_port

EVERYBODY = "0.0.0.0"  # noqa: S104 - nothing listens there in these tests
GIVEN = {
    "LASTPORTION_REDIS_URL": "redis://:hush@127.0.0.1:1/0",
    "LASTPORTION_DATABASE_URL": "postgresql://me:hush@127.0.0.1:1/db",
}


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path)


def environment(folder: DataFolder, **given: str) -> dict[str, str]:
    return make_plan(folder, {"PORT": str(free_port()), **GIVEN, **given}).environment


def test_settings_of_the_environment_are_honoured(folder: DataFolder) -> None:
    made = environment(
        folder,
        LASTPORTION_STRIPE_WEBHOOK_SECRET="whsec_outside",
        LASTPORTION_PAYSTACK_SECRET_KEY="sk_outside",
        LASTPORTION_SESSION_TTL_SECONDS="1900",
        OTHER="left as it is",
    )
    assert made["LASTPORTION_STRIPE_WEBHOOK_SECRET"] == "whsec_outside"
    assert made["LASTPORTION_PAYSTACK_SECRET_KEY"] == "sk_outside"
    assert made["LASTPORTION_SESSION_TTL_SECONDS"] == "1900"
    assert made["LASTPORTION_REDIS_URL"] == GIVEN["LASTPORTION_REDIS_URL"]
    assert made["OTHER"] == "left as it is"


@pytest.mark.parametrize("spell", [str.upper, str.lower])
def test_no_setting_leads_a_dev_run_to_a_real_provider(folder: DataFolder, spell: Callable[[str], str]) -> None:
    given = {
        spell("LASTPORTION_STRIPE_SECRET_KEY"): "sk_live_real",
        spell("LASTPORTION_STRIPE_API_BASE"): "https://stripe.example",
        spell("LASTPORTION_PAYSTACK_API_BASE"): "https://paystack.example",
        spell("LASTPORTION_SANDBOX"): "false",
    }
    made = environment(folder, **given)
    assert "sk_live_real" not in made.values()
    assert made["LASTPORTION_STRIPE_API_BASE"] == f"http://127.0.0.1:{made['LASTPORTION_PORT']}/sandbox/stripe"
    assert made["LASTPORTION_PAYSTACK_API_BASE"] == f"http://127.0.0.1:{made['LASTPORTION_PORT']}/sandbox/paystack"
    assert made["LASTPORTION_SANDBOX"] == "true"
    # Settings read names in any case, so another spelling must not be passed on beside ours.
    assert [name for name in made if name.upper().startswith("LASTPORTION_") and not name.isupper()] == []


def test_secrets_are_made_once_and_kept_for_the_owner_alone(folder: DataFolder, tmp_path: Path) -> None:
    first = environment(folder)
    second = environment(DataFolder(tmp_path))
    assert first["LASTPORTION_STRIPE_WEBHOOK_SECRET"].startswith("whsec_")
    assert first["LASTPORTION_STRIPE_WEBHOOK_SECRET"] == second["LASTPORTION_STRIPE_WEBHOOK_SECRET"]
    assert first["LASTPORTION_STRIPE_SECRET_KEY"] == second["LASTPORTION_STRIPE_SECRET_KEY"]
    assert (folder.path / "secrets.json").stat().st_mode & 0o777 == 0o600
    assert environment(DataFolder(_other(tmp_path)))["LASTPORTION_STRIPE_WEBHOOK_SECRET"] not in first.values()


def _other(tmp_path: Path) -> Path:
    other = tmp_path / "other"
    other.mkdir()
    return other


def test_the_port_is_the_one_asked_for(folder: DataFolder) -> None:
    one, other = free_port(), free_port()
    assert make_plan(folder, {**GIVEN, "LASTPORTION_PORT": str(one)}).port == one
    assert make_plan(folder, {**GIVEN, "LASTPORTION_PORT": str(one), "PORT": str(other)}).port == other


@pytest.mark.parametrize("text", ["", "0", "65536", "-1", "80a", "٣"])
def test_what_is_no_port_is_refused(folder: DataFolder, text: str) -> None:
    with pytest.raises(DevRefused, match="is not a port"):
        make_plan(folder, {**GIVEN, "LASTPORTION_PORT": text})


def test_a_taken_port_is_named_before_anything_starts(folder: DataFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DevRefused, match=f"Port {port} is taken"):
            make_plan(folder, {**GIVEN, "PORT": str(port)})


def test_an_api_for_everybody_is_still_reached_over_loopback(folder: DataFolder) -> None:
    made = environment(folder, LASTPORTION_HOST=EVERYBODY)
    assert made["LASTPORTION_HOST"] == EVERYBODY
    assert made["LASTPORTION_STRIPE_API_BASE"].startswith("http://127.0.0.1:")
    assert made["LASTPORTION_PUBLIC_URL"].startswith("http://127.0.0.1:")


def test_without_any_redis_the_stand_in_is_used_with_a_notice(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "find_redis", list)
    made = make_plan(folder, {"PORT": str(free_port()), "LASTPORTION_DATABASE_URL": GIVEN["LASTPORTION_DATABASE_URL"]})
    assert made.one_process
    assert made.environment["LASTPORTION_REDIS_URL"] == "fakeredis://dev"
    assert "stand-in" in made.notices[0]
    assert made.servers == []


def test_data_that_exists_is_preferred_to_a_newer_server(folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    newer, older = RedisBinary(Path("/new"), "redis", "9.0.0"), RedisBinary(Path("/old"), "redis", "7.2.1")
    monkeypatch.setattr(planning, "find_redis", lambda: [newer, older])
    given = {"PORT": str(free_port()), "LASTPORTION_DATABASE_URL": GIVEN["LASTPORTION_DATABASE_URL"]}
    assert make_plan(folder, given).servers[0].data_dir.name == "redis-9"
    (folder.path / "redis-7").mkdir()
    assert make_plan(folder, given).servers[0].data_dir.name == "redis-7"


def test_a_second_run_in_the_same_folder_is_told_of_the_first(folder: DataFolder, tmp_path: Path) -> None:
    with folder.held():
        folder.announce(url="http://127.0.0.1:8123")
        told = r"already runs in this folder \(process \d+, http://127.0.0.1:8123\)"
        with pytest.raises(DevRefused, match=told), DataFolder(tmp_path).held():
            pytest.fail("two runs in one folder")
    with DataFolder(tmp_path).held():
        assert not (folder.path / "running.json").exists()


def test_another_command_has_the_settings_of_a_run_while_it_runs(folder: DataFolder, tmp_path: Path) -> None:
    with pytest.raises(DevRefused, match="No Lastportion runs in this folder"):
        running_settings(tmp_path)
    with folder.held():
        with pytest.raises(DevRefused, match="still starting"):
            running_settings(tmp_path)
        folder.announce(url="http://127.0.0.1:8123", settings={"paystack_secret_key": "sk_test_1"})
        assert running_settings(tmp_path) == {"paystack_secret_key": "sk_test_1"}
        assert (folder.path / "running.json").stat().st_mode & 0o777 == 0o600
    assert not (folder.path / "running.json").exists()
    # What a run that was killed left says nothing: nobody holds the lock.
    folder.announce(url="http://127.0.0.1:8123", settings={"paystack_secret_key": "sk_test_1"})
    with pytest.raises(DevRefused, match="No Lastportion runs in this folder"):
        running_settings(tmp_path)


def test_a_broken_file_is_named(folder: DataFolder) -> None:
    (folder.path / "secrets.json").write_text("{")
    with pytest.raises(DevRefused, match=r"secrets\.json is not JSON"):
        folder.secrets()
    (folder.path / "secrets.json").write_text(json.dumps([1]))
    with pytest.raises(DevRefused, match=r"secrets\.json is not an object"):
        folder.secrets()


def test_passwords_are_not_shown(folder: DataFolder) -> None:
    assert without_password("redis://:hush@host:1/0") == "redis://:***@host:1/0"
    assert without_password("postgresql://me:hu%40sh@host:1/db") == "postgresql://me:***@host:1/db"
    assert without_password("redis://host:1/0") == "redis://host:1/0"
    described = make_plan(folder, {"PORT": str(free_port()), **GIVEN}).described
    assert "hush" not in " ".join(described.values())
