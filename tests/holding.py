"""Holding a reservation for a delayed payment, with what must be true either way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.domain import Outcome
from tests.admitted import TENANT
from tests.frozen import DAY, Frozen

if TYPE_CHECKING:
    pass

FORTNIGHT = 14 * DAY
SETTLEMENT = "7a1f3f0c6b8e4d0e8f1d2a3b4c5d6e70"


async def held(frozen: Frozen, identifier: str = "r1", ttl_ms: int = FORTNIGHT) -> int:
    """Hold it, and expect to; until when."""
    before = await frozen.engine.read(TENANT, identifier)
    settled = await frozen.engine.hold(TENANT, identifier, ttl_ms)
    assert settled.outcome is Outcome.HELD
    assert settled.reservation.alive
    assert settled.reservation.version == before.version + 1
    assert await frozen.engine.read(TENANT, identifier) == replace(settled.reservation, epoch=1)
    return settled.reservation.expires_at_ms


async def not_held(frozen: Frozen, identifier: str = "r1") -> None:
    """Hold it, and expect that nothing changes but what was due."""
    before, entries = await frozen.record(identifier), len(await frozen.entries())
    settled = await frozen.engine.hold(TENANT, identifier, FORTNIGHT)
    assert settled.outcome is Outcome.NOT_HELD
    assert not settled.reservation.alive
    assert await frozen.record(identifier) == before
    assert len(await frozen.entries()) == entries
