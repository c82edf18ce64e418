"""The test clock: the machine's, moved forward by what Postgres holds."""

from __future__ import annotations

import time

from persistence.repositories.sandbox import SandboxRepository

LONGEST_STEP_SECONDS = 5 * 366 * 24 * 3600
"""No move is longer than this."""

FURTHEST_SECONDS = 50 * 366 * 24 * 3600
"""All moves together; beyond it, dates would leave what providers and zones know."""


def moved_ms(offset_ms: int) -> int:
    """Now, in ms since 1970, on a clock that is ``offset_ms`` ahead."""
    return time.time_ns() // 1_000_000 + offset_ms


async def now_ms(repository: SandboxRepository) -> int:
    """Now on the test clock, in ms since 1970."""
    return moved_ms(await repository.offset_ms())
