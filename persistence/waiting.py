"""Waiting for whichever comes first: an event, or the end of a pause."""

from __future__ import annotations

import asyncio


async def wait_for_any(seconds: float, *events: asyncio.Event) -> None:
    """Until one of the events is set, or the time has passed."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiting in waits:
            waiting.cancel()
