"""``lastportion dev`` as a stranger runs it: a real process in an empty folder, its servers, a checkout, its end."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import stripe

from api.servers import free_port
from tests.processes import children_of, command_of, descendants_of, gone, wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
KEY = {"Authorization": "Bearer lp_dev"}


class DevRun:
    """One run of ``dev`` in a folder; ``lines`` is what it has printed."""

    def __init__(self, folder: Path, port: int, **environment: str) -> None:
        self.folder = folder
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.output = folder / f"output-{port}.txt"
        inherited = {name: text for name, text in os.environ.items() if not name.upper().startswith("LASTPORTION_")}
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "api.cli", "dev"],
                cwd=folder,
                env={**inherited, "PYTHONPATH": str(REPOSITORY), "PORT": str(port), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        wait_for(
            lambda: "Ctrl-C stops all of it" in self.said or self.process.poll() is not None, "dev to be ready", 120
        )
        assert self.process.poll() is None, self.said

    @property
    def children(self) -> list[int]:
        return children_of(self.process.pid)

    def pid_of(self, part: str) -> int:
        """The child whose command line contains ``part``."""
        found = [pid for pid in self.children if part in command_of(pid)]
        assert len(found) == 1, f"{part}: {found}"
        return found[0]

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).is_success
        except httpx.TransportError:
            return False

    def get(self, path: str) -> dict[str, Any]:
        answer = httpx.get(f"{self.url}{path}", headers=KEY, timeout=10)
        assert answer.is_success, answer.text
        return dict(answer.json())


@pytest.fixture
def run(tmp_path: Path) -> Iterator[DevRun]:
    dev = DevRun(tmp_path, free_port())
    yield dev
    end(dev)


def end(dev: DevRun) -> None:
    """Leave nothing behind, whatever the test did."""
    dev.process.send_signal(signal.SIGTERM)
    dev.process.wait(60)


def checkout_of(dev: DevRun, code: str = "SCHOOL10", buyer: str | None = None) -> dict[str, Any]:
    """Do what the printed curl line for a code says, for another buyer where one is named, and give the answer."""
    line = re.search(rf"^\s*(curl .*{code}.*)$", dev.said, re.MULTILINE)
    assert line is not None, dev.said
    said = line[1] if buyer is None else re.sub(r"student-[0-9a-f]{6}", buyer, line[1])
    done = subprocess.run(shlex.split(said), capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def pay(dev: DevRun, checkout: dict[str, Any]) -> None:
    paid = httpx.post(f"{dev.url}/sandbox/sessions/{checkout['session_id']}/pay", timeout=30)
    assert paid.is_success, paid.text


def reconcile(folder: Path) -> tuple[int, list[str], str]:
    """Exit status, lines and standard error of ``lastportion reconcile --dev``."""
    inherited = {name: text for name, text in os.environ.items() if not name.upper().startswith("LASTPORTION_")}
    done = subprocess.run(
        [sys.executable, "-m", "api.cli", "reconcile", "--dev"],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_a_code_is_redeemed_and_servers_that_die_come_back(run: DevRun) -> None:
    run.wait_until_ready()
    made = checkout_of(run)
    assert made["discount_minor"] > 0
    assert run.get("/v1/codes/SCHOOL10")["usage"]["reserved"] == 1
    pay(run, made)
    wait_for(lambda: run.get(f"/v1/orders/{made['order_id']}")["status"] == "paid", "the order to be paid")
    wait_for(lambda: run.get("/v1/codes/SCHOOL10")["usage"]["completed"] == 1, "the code to be counted")

    for part in ("redis-server", "bin/postgres", "cli persist", "cli work", "cli serve"):
        victim = run.pid_of(part)
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda victim=victim: victim not in run.children, f"{part} to be gone")
        wait_for(run.ready, f"dev to be ready again without {part}")
        wait_for(lambda part=part: any(part in command_of(pid) for pid in run.children), f"a new {part}")
    assert run.get("/v1/codes/SCHOOL10")["usage"]["completed"] == 1


def test_both_providers_are_paid_and_reconciled(run: DevRun) -> None:
    run.wait_until_ready()
    clean = "no difference in what was paid through paystack and stripe in the last 3 days"
    made = {code: checkout_of(run, code) for code in ("SCHOOL10", "LAGOS10")}
    assert [(each["amount_minor"], each["currency"]) for each in made.values()] == [(4410, "GBP"), (225_000, "NGN")]
    assert made["LAGOS10"]["session_expires_at"] is None
    for each in made.values():
        pay(run, each)
        wait_for(
            lambda each=each: run.get(f"/v1/orders/{each['order_id']}")["status"] == "paid", "the order to be paid"
        )
    assert reconcile(run.folder) == (0, [clean], "")

    # As if it had been down for as long as the provider went on trying.
    unheard = checkout_of(run, "LAGOS10", "unheard")
    dropped = {"target": "webhooks", "kind": "drop", "count": 1}
    assert httpx.post(f"{run.url}/sandbox/faults", json=dropped, timeout=10).is_success
    pay(run, unheard)
    status, lines, complained = reconcile(run.folder)
    assert (status, complained) == (1, "")
    assert unheard["session_id"] in lines[0]
    assert unheard["order_id"] in lines[0]
    wait_for(lambda: run.get(f"/v1/orders/{unheard['order_id']}")["status"] == "paid", "the order to be paid")
    assert reconcile(run.folder) == (0, [clean], "")
    end(run)
    assert reconcile(run.folder) == (2, [], "No Lastportion runs in this folder: start one with `make run`.\n")


def test_ctrl_c_stops_everything_and_a_new_run_has_the_data(tmp_path: Path) -> None:
    first = DevRun(tmp_path, free_port())
    first.wait_until_ready()
    answer = httpx.put(f"{first.url}/v1/pools/kept", json={"cap": 3}, headers=KEY, timeout=10)
    assert answer.is_success, answer.text
    body = {"id": "held", "claims": [{"pool": "kept", "quantity": 2}], "ttl_seconds": 3600}
    assert httpx.post(f"{first.url}/v1/reservations", json=body, headers=KEY, timeout=10).status_code == 201
    second = DevRun(tmp_path, free_port())
    assert second.process.wait(60) == 1
    assert "already runs in this folder" in second.said
    processes = descendants_of(first.process.pid)
    assert len(processes) >= 5
    first.process.send_signal(signal.SIGINT)
    assert first.process.wait(60) == 0
    for role in ("api", "worker", "persister"):
        assert re.search(rf"stopped .*roles=\['{role}'\]", first.said), f"the {role} did not end in good order"
    assert [pid for pid in processes if not gone(pid)] == []

    again = DevRun(tmp_path, free_port())
    again.wait_until_ready()
    assert again.get("/v1/pools/kept")["reserved"] == 2
    end(again)


def test_a_dev_that_is_killed_takes_everything_with_it(run: DevRun) -> None:
    run.wait_until_ready()
    processes = descendants_of(run.process.pid)
    assert len(processes) >= 5
    run.process.kill()
    run.process.wait()
    wait_for(lambda: all(gone(pid) for pid in processes), "every process to end")
    again = DevRun(run.folder, run.port)
    again.wait_until_ready()
    end(again)


def test_a_taken_port_is_said_in_a_sentence(run: DevRun, tmp_path: Path) -> None:
    run.wait_until_ready()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    second = DevRun(elsewhere, run.port)
    assert second.process.wait(60) == 1
    assert second.said.strip() == (
        f"Port {run.port} is taken by another program: stop that one, or choose another port with PORT=."
    )


def test_stopping_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    dev = DevRun(tmp_path, free_port())
    wait_for(lambda: "Starting PostgreSQL" in dev.said or dev.process.poll() is not None, "dev to be on its way")
    processes = descendants_of(dev.process.pid)
    dev.process.send_signal(signal.SIGTERM)
    assert dev.process.wait(60) == 0, dev.said
    wait_for(lambda: all(gone(pid) for pid in processes), "every process to end")


def test_without_a_redis_one_process_does_it_all_and_outside_events_are_believed(tmp_path: Path) -> None:
    secret = "whsec_from_outside"
    dev = DevRun(
        tmp_path, free_port(), LASTPORTION_REDIS_URL="fakeredis://dev", LASTPORTION_STRIPE_WEBHOOK_SECRET=secret
    )
    dev.wait_until_ready()
    assert [part for part in ("cli persist", "cli work") if any(part in command_of(p) for p in dev.children)] == []
    made = checkout_of(dev)
    event = {
        "id": "evt_outside",
        "object": "event",
        "type": "checkout.session.completed",
        "created": int(time.time()),
        "data": {
            "object": {
                "id": made["session_id"],
                "object": "checkout.session",
                "status": "complete",
                "payment_status": "paid",
                "payment_intent": "pi_outside",
                "amount_total": made["amount_minor"],
                "currency": made["currency"].lower(),
                "metadata": {},
            }
        },
    }
    body = json.dumps(event)
    header = stripe.WebhookSignature.generate_signature_header(body, secret)
    answer = httpx.post(f"{dev.url}/v1/webhooks/stripe", content=body, headers={"Stripe-Signature": header}, timeout=30)
    assert answer.is_success, answer.text
    wait_for(lambda: dev.get(f"/v1/orders/{made['order_id']}")["status"] == "paid", "the order to be paid")
    end(dev)
    assert dev.process.returncode == 0
    assert re.search(r"stopped .*roles=\['api', 'persister', 'worker'\]", dev.said)
