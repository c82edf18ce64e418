"""Waiting for whichever comes first, an event or the end of a pause; and for the end of what was cancelled."""

from __future__ import annotations

import asyncio
from typing import Final

CANCEL_AGAIN_SECONDS: Final = 0.5


async def wait_for_any(seconds: float, *events: asyncio.Event) -> None:
    """Until one of the events is set, or the time has passed."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiting in waits:
            waiting.cancel()


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end.

    A driver that is closing a connection takes a cancellation for its own, so one alone may go unheard.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_AGAIN_SECONDS)


def heed_cancellation() -> None:
    """Raise ``CancelledError`` if the current task was asked to end. Called in every turn of an endless loop.

    ``asyncio.wait_for`` before Python 3.12, with which redis-py sends its commands, loses a cancellation that comes
    at the instant at which what it waits for is done; a loop that was asked once would then go on for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
