"""A task that was asked to end does, although a library lost the request."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from persistence.waiting import heed_cancellation, wait_for_any


async def test_a_lost_cancellation_is_heeded() -> None:
    begun = asyncio.Event()

    async def loses_it() -> None:
        begun.set()
        # What `asyncio.wait_for` does at a bad moment.
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def for_ever() -> None:
        while True:
            await loses_it()
            heed_cancellation()

    task = asyncio.create_task(for_ever())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)


async def test_a_task_that_was_not_asked_goes_on() -> None:
    heed_cancellation()


async def test_waits_for_the_first_of_several() -> None:
    one, two = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().call_soon(two.set)
    await asyncio.wait_for(wait_for_any(60, one, two), 10)
    await wait_for_any(0.001, one)
    assert not one.is_set()
