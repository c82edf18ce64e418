"""What ``lastportion reconcile`` does: ask the providers what was paid, settle what is not settled here, and say so."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from api.services import build_services
from engine.domain import SettlementState
from engine.errors import Invalid
from engine.reconciling import Difference, Findings
from engine.redis_client import FAKE_SCHEME
from engine.settings import Settings

CLEAN = 0
DIFFERENCES = 1
UNASKED = 2

_BECAME = {
    SettlementState.STORED: "settled now",
    SettlementState.APPLIED: "settled now",
    SettlementState.MISMATCHED: "set aside, since the amount or the currency is not the order's",
    SettlementState.UNMATCHED: "stored, and not matched with its order yet",
    None: "not settled",
}


async def reconcile(settings: Settings, days: int) -> Findings:
    """Look over the sessions of so many days at every provider with a key, and settle what is not.

    Raises ``Unavailable`` when a server can't be asked, ``UnsafeRedis``, and ``Invalid`` for the in-process Redis.
    """
    if urlsplit(settings.redis_url).scheme == FAKE_SCHEME:
        # An empty one of our own would look like a loss of the data, and begin an epoch under the running process.
        raise Invalid("This deployment keeps Redis inside its own process, where no other command reaches it.")
    services = build_services(settings)
    async with services.running():
        return await services.reconciler.look_back(days * 24 * 3600)


def status_of(findings: Findings) -> int:
    """The exit status: what could not be asked outweighs what was found."""
    if findings.unasked or not findings.asked:
        return UNASKED
    return DIFFERENCES if findings.differences else CLEAN


def lines_of(findings: Findings, days: int) -> Iterator[str]:
    """One line for each difference and for each provider that could not be asked, and a closing one."""
    for difference in findings.differences:
        yield _line(difference)
    for provider, reason in findings.unasked.items():
        yield f"{provider.value}: could not be asked ({reason})"
    if findings.asked or findings.differences:
        found = len(findings.differences)
        what = "no difference" if not found else "1 difference" if found == 1 else f"{found} differences"
        whom = " and ".join(provider.value for provider in (*findings.asked, *findings.unasked))
        rest = "; ask again for the rest" if findings.unasked else ""
        yield f"{what} in what was paid through {whom} in the last {days} {'day' if days == 1 else 'days'}{rest}"
    elif not findings.unasked:
        yield "nobody was asked: no provider's secret key is set"


def _line(difference: Difference) -> str:
    done = _BECAME[difference.became]
    return (
        f"{difference.provider.value}: session {difference.session_id} of order {difference.order_id} "
        f"was paid and not settled: {done}"
    )
