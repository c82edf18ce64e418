"""``lastportion reconcile`` as an operator runs it: a process of its own, its lines and its exit status."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from api.reconcile_command import lines_of, status_of
from engine.domain import Provider, SettlementState
from engine.reconciling import Difference, DifferenceKind, Findings
from tests.deployment import eventually
from tests.running_site import PAYSTACK_KEY, Site, running_site

if TYPE_CHECKING:
    from api.servers import RedisServer

REPOSITORY = Path(__file__).resolve().parents[2]


async def reconcile(folder: Path, *arguments: str, **settings: str) -> tuple[int, list[str], str]:
    """Exit status, lines and standard error of the command."""
    inherited = {name: text for name, text in os.environ.items() if not name.upper().startswith("LASTPORTION_")}
    given = {f"LASTPORTION_{name.upper()}": text for name, text in settings.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "api.cli", "reconcile", *arguments),
        cwd=folder,
        env={**inherited, **given, "PYTHONPATH": str(REPOSITORY)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complained = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, said.decode().splitlines(), complained.decode()


def settings_of(site: Site) -> dict[str, str]:
    """What an operator would set, with Paystack alone."""
    assert site.settings.paystack_api_base is not None
    return {
        "redis_url": site.settings.redis_url,
        "database_url": site.settings.database_url,
        "partitions": str(site.settings.partitions),
        "redis_allow_unsafe": "true",
        "paystack_secret_key": PAYSTACK_KEY,
        "paystack_api_base": site.settings.paystack_api_base,
    }


async def test_a_payment_is_found_settled_and_then_no_difference_is_left(
    redis_server: RedisServer, database_url: str, tmp_path: Path
) -> None:
    async with running_site(redis_server.url, database_url, persists=True) as site:
        settings = settings_of(site)
        clean = "no difference in what was paid through paystack in the last 3 days"
        assert await reconcile(tmp_path, **settings) == (0, [clean], "")
        checkout = await site.check_out(Provider.PAYSTACK)
        site.paid_at_paystack.append(
            {"id": 7, "status": "success", "reference": checkout["session_id"], "amount": 250_000, "currency": "NGN"}
        )
        line = (
            f"paystack: session {checkout['session_id']} of order {checkout['order_id']} was paid and not settled: "
            "settled now"
        )
        assert await reconcile(tmp_path, "--days", "1", **settings) == (
            1,
            [line, "1 difference in what was paid through paystack in the last 1 day"],
            "",
        )

        async def is_paid() -> bool:
            return await site.rows("select status from orders") == [("paid",)]

        await eventually(is_paid)
        assert (await reconcile(tmp_path, **settings))[0] == 0


async def test_what_cannot_be_asked_is_exit_2(redis_server: RedisServer, database_url: str, tmp_path: Path) -> None:
    async with running_site(redis_server.url, database_url) as site:
        settings = settings_of(site)
        status, lines, complained = await reconcile(
            tmp_path, **settings | {"paystack_api_base": "http://127.0.0.1:1", "paystack_secret_key": "sk_test_hush"}
        )
        assert (status, lines) == (2, ["paystack: could not be asked (payment_provider_error)"])
        assert "hush" not in complained
        for away in (
            {"database_url": "postgresql://me:hush@127.0.0.1:1/db"},
            {"redis_url": "redis://:hush@127.0.0.1:1"},
        ):
            status, lines, complained = await reconcile(tmp_path, **settings | away)
            assert (status, lines) == (2, [])
            assert "can't be reached" in complained or "not admitted" in complained
            assert "hush" not in complained
            assert "Traceback" not in complained


async def test_a_redis_inside_another_process_is_left_alone(database_url: str, tmp_path: Path) -> None:
    async with running_site(f"fakeredis://{tmp_path.name}", database_url) as site:
        begun = await site.rows("select epoch from redis_epochs")
        status, lines, complained = await reconcile(tmp_path, **settings_of(site))
        assert (status, lines) == (2, [])
        assert complained == (
            "This deployment keeps Redis inside its own process, where no other command reaches it.\n"
        )
        assert await site.rows("select epoch from redis_epochs") == begun


async def test_without_a_dev_run_its_settings_are_asked_for_in_vain(tmp_path: Path) -> None:
    assert await reconcile(tmp_path, "--dev") == (
        2,
        [],
        "No Lastportion runs in this folder: start one with `make run`.\n",
    )
    assert os.listdir(tmp_path) == []


def test_the_lines_say_what_was_done() -> None:
    def difference(became: SettlementState | None) -> Difference:
        return Difference(DifferenceKind.PAID_NOT_SETTLED, Provider.STRIPE, "cs_1", "o1", became)

    findings = Findings([difference(state) for state in (SettlementState.STORED, SettlementState.MISMATCHED)])
    findings.asked.append(Provider.STRIPE)
    assert list(lines_of(findings, 3)) == [
        "stripe: session cs_1 of order o1 was paid and not settled: settled now",
        "stripe: session cs_1 of order o1 was paid and not settled: "
        "set aside, since the amount or the currency is not the order's",
        "2 differences in what was paid through stripe in the last 3 days",
    ]
    assert status_of(findings) == 1
    findings.unasked[Provider.PAYSTACK] = "payment_provider_timeout"
    assert list(lines_of(findings, 3))[2:] == [
        "paystack: could not be asked (payment_provider_timeout)",
        "2 differences in what was paid through stripe and paystack in the last 3 days; ask again for the rest",
    ]
    assert status_of(findings) == 2
    nobody = Findings()
    assert (list(lines_of(nobody, 3)), status_of(nobody)) == (["nobody was asked: no provider's secret key is set"], 2)
