"""An engine with a clock that stands still, on every kind of Redis; audited when the test is done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from tests.admitted import TENANT
from tests.audit import audit, snapshot
from tests.frozen import Frozen, frozen_engine

if TYPE_CHECKING:
    from tests.conftest import RedisBackend


@pytest.fixture
async def frozen(redis_backend: RedisBackend) -> AsyncIterator[Frozen]:
    """An engine on an empty, admitted Redis. Whatever the test did, all sums must agree afterwards."""
    async with frozen_engine(redis_backend.url) as made:
        yield made
        if made.audited and await made.redis.exists(made.keys.mark):
            audit(await snapshot(made.redis, made.keys, TENANT), forgotten=made.forgotten)
