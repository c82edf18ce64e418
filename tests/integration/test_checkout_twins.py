"""One key in two processes at one moment: one order, whose units stay held whatever becomes of the other call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from engine.errors import IdConflict, ProviderError, StorageUnavailable
from engine.orders import Placement
from tests.shop import TENANT, Shop, open_shop

if TYPE_CHECKING:
    from tests.conftest import RedisBackend


@pytest.fixture
async def shop(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Shop]:
    async with open_shop(redis_backend.url, database_url) as opened:
        await opened.stock()
        yield opened


async def test_twins_at_one_moment_in_two_processes_get_one_order(
    shop: Shop, redis_backend: RedisBackend, database_url: str
) -> None:
    async with open_shop(redis_backend.url, database_url) as other:
        other.checkout._payments = shop.provider
        answers = await asyncio.gather(*(s.buy("k1") for s in (shop, other) for _ in range(5)))
    assert {answer.order.id for answer in answers} == {answers[0].order.id}
    assert {answer.attempt.session_id for answer in answers if answer.attempt} == {"cs_1"}
    assert sum(answer.created for answer in answers) == 1
    assert (await shop.pool()).reserved == 1


async def test_a_refused_twin_leaves_the_units_of_a_session_that_is_on_offer(
    shop: Shop, redis_backend: RedisBackend, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process is refused the attempt that another is opening: what that one answers with must stay held."""
    refused, opening, may_open = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait(_: object) -> None:
        opening.set()
        await may_open.wait()

    async with open_shop(redis_backend.url, database_url) as other:
        shop.provider.opened = wait
        first = asyncio.create_task(shop.buy("k1"))
        await opening.wait()
        fail = other.attempts.fail

        async def fail_late(*arguments: Any) -> bool:
            may_open.set()
            await asyncio.wait({first})
            refused.set()
            return await fail(*arguments)

        monkeypatch.setattr(other.attempts, "fail", fail_late)
        other.provider.before["open"] = [ProviderError()]
        again = await other.buy("k1")
    answer = await first
    assert refused.is_set()
    assert answer.attempt is not None
    assert answer.attempt.session_id == "cs_1"
    assert (again.attempt, again.order.id, again.created) == (answer.attempt, answer.order.id, False)
    assert (await shop.engine.read(TENANT, answer.order.reservation_id or "")).alive


async def test_another_checkout_under_the_key_leaves_alone_what_the_first_is_committing(
    shop: Shop, redis_backend: RedisBackend, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes, one key, two customers: whoever commits first has the order, and its units stay held."""
    async with open_shop(redis_backend.url, database_url) as other:
        placements: list[Placement] = []
        place = shop.orders.place

        async def place_second(_: Placement) -> bool:
            assert await place(placements[0])
            return False

        async def place_first(placement: Placement) -> bool:
            placements.append(placement)
            with pytest.raises(IdConflict):
                await other.buy("k1", customer="bob")
            return True

        monkeypatch.setattr(shop.orders, "place", place_first)
        monkeypatch.setattr(other.orders, "place", place_second)
        answer = await shop.buy("k1", customer="ada")
    assert (await shop.engine.read(TENANT, answer.order.reservation_id or "")).alive
    assert ((await shop.pool()).reserved, len(shop.provider.payable)) == (1, 1)


async def test_a_call_that_postgres_failed_leaves_alone_what_its_repeat_has_sold(
    shop: Shop, redis_backend: RedisBackend, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gave up waiting and asked another process, which took up the same reservation."""
    async with open_shop(redis_backend.url, database_url) as other:

        async def fail_late(_: object) -> bool:
            assert (await other.buy("k1")).created
            raise StorageUnavailable

        monkeypatch.setattr(shop.orders, "place", fail_late)
        with pytest.raises(StorageUnavailable):
            await shop.buy("k1")
        assert other.provider.payable == ["cs_1"]
    assert (await shop.pool()).reserved == 1
