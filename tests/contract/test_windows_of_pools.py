"""Rule 4 and case G5: a window is opens_at ≤ now < closes_at, to the millisecond, on the script's clock."""

from __future__ import annotations

import pytest

from engine.domain import Outcome, PoolStatus
from tests.admitted import TENANT
from tests.frozen import MINUTE, SECOND, T0, Frozen

OPENS, CLOSES = T0 + 12_345, T0 + MINUTE + 678


@pytest.mark.parametrize(
    ("now_ms", "outcome"),
    [
        (OPENS - 1, Outcome.NOT_OPEN),
        (OPENS, None),
        (CLOSES - 1, None),
        (CLOSES, Outcome.CLOSED),
        (CLOSES + 1, Outcome.CLOSED),
    ],
)
async def test_reserve_at_the_edges_of_a_window(frozen: Frozen, now_ms: int, outcome: Outcome | None) -> None:
    await frozen.define("soup", 2, opens_at_ms=OPENS, closes_at_ms=CLOSES)
    await frozen.at(now_ms)
    if outcome is None:
        await frozen.take("r1", ("soup", 1))
        return
    refusal = await frozen.refused("r1", ("soup", 1))
    assert (refusal.outcome, refusal.available) == (outcome, 2)
    assert refusal.opens_at_ms == (OPENS if outcome is Outcome.NOT_OPEN else None)


async def test_an_opening_in_the_furthest_year_is_told_to_the_millisecond(frozen: Frozen) -> None:
    # Lua alone writes numbers of fifteen digits as 2.534023008e+14.
    last_ms = 253_402_300_799_999
    await frozen.define("soup", 2, opens_at_ms=last_ms)
    assert (await frozen.refused("r1", ("soup", 1))).opens_at_ms == last_ms


async def test_what_was_reserved_before_the_cutoff_settles_after_it(frozen: Frozen) -> None:
    await frozen.define("soup", 2, closes_at_ms=T0 + SECOND)
    await frozen.take("r1", ("soup", 1))
    await frozen.take("r2", ("soup", 1))
    await frozen.at(T0 + 2 * SECOND)
    assert (await frozen.engine.complete(TENANT, "r1")).outcome is Outcome.COMPLETED
    assert (await frozen.engine.release(TENANT, "r2")).outcome is Outcome.RELEASED
    assert await frozen.counts("soup") == (1, 0, 1)


async def test_a_cutoff_that_moves_is_judged_by_its_last_definition(frozen: Frozen) -> None:
    await frozen.define("soup", 9, closes_at_ms=T0 + SECOND)
    await frozen.at(T0 + SECOND)
    await frozen.refused("r1", ("soup", 1))
    await frozen.define("soup", 9, closes_at_ms=T0 + MINUTE)
    await frozen.take("r1", ("soup", 1))
    await frozen.define("soup", 9, closes_at_ms=T0)
    assert (await frozen.refused("r2", ("soup", 1))).outcome is Outcome.CLOSED


@pytest.mark.parametrize("status", [PoolStatus.PAUSED, PoolStatus.CLOSED])
async def test_an_owner_may_stop_a_sale_by_hand(frozen: Frozen, status: PoolStatus) -> None:
    await frozen.define("soup", 2)
    await frozen.take("r1", ("soup", 1))
    await frozen.define("soup", 2, status=status)
    assert (await frozen.refused("r2", ("soup", 1))).outcome == status.value
    # The same request again still gets what it has.
    assert not (await frozen.reserve("r1", ("soup", 1))).created
    assert (await frozen.engine.complete(TENANT, "r1")).outcome is Outcome.COMPLETED
