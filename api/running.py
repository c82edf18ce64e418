"""Runs a role until it is asked to stop: SIGTERM and SIGINT set an event, and the role ends in good order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

import structlog
import uvloop

from api.logs import configure_logs
from engine.settings import Settings

Role = Callable[[Settings, asyncio.Event], Awaitable[None]]
"""Something that runs until the event is set, and returns when it has put everything away."""

log = structlog.stdlib.get_logger(__name__)


def run_roles(settings: Settings, **roles: Role) -> None:
    """Run the roles in this process until a signal; when one of them fails, the others stop too and it raises."""
    configure_logs(settings.log_format, settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings, roles))


async def _run(settings: Settings, roles: dict[str, Role]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    log.info("starting", roles=sorted(roles))
    async with asyncio.TaskGroup() as group:
        for name, role in roles.items():
            group.create_task(_until_stopped(name, role, settings, stop), name=name)
    log.info("stopped", roles=sorted(roles))


async def _until_stopped(name: str, role: Role, settings: Settings, stop: asyncio.Event) -> None:
    try:
        await role(settings, stop)
    except Exception:
        log.exception("failed", role=name)
        raise
    finally:
        # A role that ends of itself takes the others with it: half a deployment helps nobody, a restart does.
        stop.set()
