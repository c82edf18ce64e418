"""Attempts that nobody spoke of again are asked about, each in its turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine import overdue
from engine.domain import OrderStatus
from engine.payments.port import SessionState
from tests.conftest import RedisBackend
from tests.shop import open_shop


async def test_sessions_that_stay_as_they_are_keep_no_payment_from_being_found(
    redis_backend: RedisBackend, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More sessions of a delayed method than one run asks about, and behind them one whose payment nobody told."""
    monkeypatch.setattr(overdue, "MOST_ASKED_IN_ONE_RUN", 2)
    async with open_shop(redis_backend.url, database_url) as shop:
        await shop.stock()
        answers = [await shop.buy(f"k{number}", customer=f"c{number}") for number in range(5)]
        for session in list(shop.provider.sessions.values())[:4]:
            shop.provider.sessions[session.id] = replace(session, state=SessionState.UNPAID)
        shop.provider.pay("cs_5")
        await shop.advance(31 * 60 + 61)
        assert [await shop.overdue.close() for _ in range(3)] == [2, 2, 1]
        assert (await shop.order(answers[4].order.id)).status is OrderStatus.PAID
        # Money that takes days is asked about once a day, from the beginning again.
        assert await shop.overdue.close() == 0
        await shop.advance(24 * 3600 + 61)
        assert await shop.overdue.close() == 2
