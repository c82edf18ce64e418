"""What was settled is sold: no loss of Redis, and no absence, lets its units be sold again before it is applied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from api.servers import RedisServer
from engine.domain import Outcome, SettlementKind
from engine.errors import NotReady, Refused
from engine.settlement import SettlementService
from persistence.repositories.settlements import PostgresSettlements
from tests.deployment import TENANT, TTL_MS, Deployment, deployed


def _settlement(process: Deployment) -> SettlementService:
    return SettlementService(
        PostgresSettlements(process.database, process.settings.prefix),
        process.engine,
        process.settings.delayed_hold_seconds,
    )


async def _lose(server: RedisServer, copy: Path | None) -> None:
    """Kill the server; it comes back empty, or with the files of an earlier moment."""
    server.kill()
    shutil.rmtree(server.data_dir)
    if copy is not None:
        shutil.copytree(copy, server.data_dir)
    server.start()


@pytest.mark.parametrize("comes_back", ["empty", "older"])
async def test_what_only_a_settlement_knows_is_not_sold_again(
    own_redis_server: RedisServer, database_url: str, tmp_path: Path, comes_back: str
) -> None:
    """Completed, answered 200, and lost before the persister heard of it: Postgres has the settlement alone."""
    async with deployed(own_redis_server.url, database_url) as process:
        await process.redis.config_set("appendfsync", "always")
        await process.define("seats", 1)
        await process.drain()
        shutil.copytree(own_redis_server.data_dir, tmp_path / "older")
        await process.reserve("sold", ("seats", 1), customer="ann")
        assert (await _settlement(process).complete(TENANT, "sold", "pay-1")).outcome is Outcome.COMPLETED
        await _lose(own_redis_server, tmp_path / "older" if comes_back == "older" else None)
        await process.admission.ensure()
        with pytest.raises(Refused):
            await process.reserve("second", ("seats", 1))
        await process.change("update settlements set received_at = now() - interval '1 minute'")
        await _settlement(process).apply_pending()
        assert await process.counts() == (1, 0)
        sold = await process.engine.read(TENANT, "sold")
        assert (sold.late, sold.over_cap, sold.payment_ref) == (False, 0, "pay-1")
        await process.drain()
        (row,) = await process.rows("select state, outcome from settlements")
        assert (row.state, row.outcome) == ("applied", "completed")


@pytest.mark.parametrize("comes_back", ["empty", "whole"])
async def test_what_was_settled_meanwhile_comes_before_the_next_buyer(
    own_redis_server: RedisServer, database_url: str, comes_back: str
) -> None:
    """Paid while Redis was away for longer than the reservation had left to live."""
    async with deployed(own_redis_server.url, database_url, sandbox=True) as process:
        await process.redis.config_set("appendfsync", "always")
        await process.define("seats", 1)
        sold = (await process.reserve("sold", ("seats", 1))).reservation
        await process.drain()
        settlements = PostgresSettlements(process.database, process.settings.prefix)
        await settlements.store_order(SettlementKind.COMPLETE, sold, "pay-1", restock=False, record="")
        await process.change("update settlements set received_at = now() - interval '1 hour'")
        await process.change("insert into sandbox_clock (id, offset_ms) values (1, :offset)", offset=2 * TTL_MS)
        await process.engine.move_clock(TENANT, 2 * TTL_MS)
        if comes_back == "empty":
            await _lose(own_redis_server, None)
        else:
            own_redis_server.restart()
        await process.admission.ensure()
        assert await process.counts() == (1, 0)
        with pytest.raises(Refused):
            await process.reserve("second", ("seats", 1))
        assert ((await process.engine.read(TENANT, "sold")).late, await process.drain()) == (True, 1)


async def test_what_was_read_before_a_loss_is_not_settled_after_it(
    own_redis_server: RedisServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever took over looked for such records already, so nobody would hold its units until it is applied."""
    async with deployed(own_redis_server.url, database_url) as process:
        await process.define("seats", 1)
        await process.reserve("lost", ("seats", 1))
        settlement, read = _settlement(process), process.engine.read

        async def read_and_lose(tenant: str, identifier: str) -> object:
            found = await read(tenant, identifier)
            await _lose(own_redis_server, None)
            await process.admission.ensure()
            return found

        monkeypatch.setattr(process.engine, "read", read_and_lose)
        with pytest.raises(NotReady):
            await settlement.complete(TENANT, "lost")
        assert await process.rows("select id from settlements") == []
