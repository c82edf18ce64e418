"""What the cases of payment run on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from tests.whole_site import WholeSite, whole_site

if TYPE_CHECKING:
    from api.servers import RedisServer


@pytest.fixture
async def site(redis_server: RedisServer, database_url: str) -> AsyncIterator[WholeSite]:
    async with whole_site(redis_server.url, database_url) as running:
        for currency, amount in (("GBP", 4900), ("USD", 5000), ("NGN", 250000)):
            await running.product(currency.lower(), amount, currency)
        yield running
