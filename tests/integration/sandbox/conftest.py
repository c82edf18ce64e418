"""The sandbox, served on loopback on a database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.stand_in import StandIn, standing_in


@pytest.fixture
async def stand_in(database_url: str) -> AsyncIterator[StandIn]:
    """A sandbox whose background task runs."""
    async with standing_in(database_url) as running:
        yield running


@pytest.fixture
async def still_stand_in(database_url: str) -> AsyncIterator[StandIn]:
    """A sandbox that expires and delivers only when it is asked to: what happens when is the test's to say."""
    async with standing_in(database_url, background=False) as running:
        yield running
