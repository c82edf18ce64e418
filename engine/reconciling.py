"""Reconciling with the providers: money that was paid there while its news did not get here.

Every paid session of a while back is held against what is settled here. One of ours that is not is settled as its
event would have been, so that finding it, and being told of it after all, come to the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

import structlog

from engine.domain import Provider, SettlementState
from engine.errors import ProviderError, ProviderTimeout
from engine.overdue import no_offset
from engine.payments.port import PaymentPorts, Session
from engine.reservations import ReservationEngine
from engine.settlement import SettlementService, event_from

log = structlog.get_logger(__name__)

RECONCILE_PROVIDERS_JOB: Final = "reconcile_providers"
LOOK_BACK_SECONDS: Final = 26 * 3600
"""How far back the job looks behind its last success: a Stripe session lives 24 h at most and is listed by when it was
made, so one that was paid since then was made within that; two hours more for clocks and for a slow listing."""
FIRST_LOOK_BACK_SECONDS: Final = 3 * 24 * 3600
"""How far back it looks where it never succeeded: for so long do providers deliver an event again."""
BATCH: Final = 100


class DifferenceKind(StrEnum):
    """In what a provider and we differ."""

    PAID_NOT_SETTLED = "paid_not_settled"


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that a provider knows and we did not. ``became`` is the state of the settlement that was stored."""

    kind: DifferenceKind
    provider: Provider
    session_id: str
    order_id: str
    became: SettlementState | None


@dataclass(slots=True)
class Findings:
    """What a run found; ``unasked`` names the providers whose list could not be had, with the reason."""

    differences: list[Difference] = field(default_factory=list)
    asked: list[Provider] = field(default_factory=list)
    unasked: dict[Provider, str] = field(default_factory=dict)


class ReconcileStore(Protocol):
    """What is settled here. Every method is one transaction and raises ``StorageUnavailable``."""

    async def orders_of_unsettled(self, provider: Provider, paid: Sequence[Session]) -> Mapping[str, str]:
        """Of sessions that are paid, those of ours that are not settled as paid with that amount: id → order id."""
        ...

    async def state_of(self, provider: Provider, dedup_key: str) -> SettlementState | None:
        """How far the settlement of an event is."""
        ...

    async def count_unmatched(self) -> int:
        """How many events about money are stored whose session nothing here knows."""
        ...

    async def seconds_since_success(self, job: str) -> float | None:
        """How long ago a job last succeeded; None when it never did."""
        ...


class ProviderReconciler:
    """Finds and settles what was paid without our knowing.

    ``offered`` are the providers with a key, the only ones that can be asked; ``clock_offset_ms`` tells how far the
    sandbox's test clock is ahead.
    """

    def __init__(
        self,
        *,
        reservations: ReservationEngine,
        store: ReconcileStore,
        payments: PaymentPorts,
        offered: Collection[Provider],
        settlements: SettlementService,
        clock_offset_ms: Callable[[], Awaitable[int]] = no_offset,
    ) -> None:
        self._reservations = reservations
        self._store = store
        self._payments = payments
        self._offered = offered
        self._settlements = settlements
        self._clock_offset_ms = clock_offset_ms

    async def run_job(self) -> Mapping[str, Any]:
        """Look behind the last success of this job, so that no time in which it did not run is left out.

        Raises ``Unavailable``, and ``ProviderTimeout`` once all others were asked: then it has not succeeded, and the
        next run looks as far back as this one.
        """
        age_seconds = await self._store.seconds_since_success(RECONCILE_PROVIDERS_JOB)
        back = FIRST_LOOK_BACK_SECONDS if age_seconds is None else LOOK_BACK_SECONDS + int(age_seconds)
        findings = await self.look_back(back)
        if findings.unasked:
            unasked = ", ".join(provider.value for provider in findings.unasked)
            raise ProviderTimeout(f"Not asked what was paid: {unasked}.")
        return {"differences": len(findings.differences), "looked_back_seconds": back}

    async def look_back(self, seconds: int) -> Findings:
        """Run over sessions made in the last so many seconds, by the scripts' clock. Raises as :meth:`run` does."""
        now_ms = await self._reservations.now_ms() + await self._clock_offset_ms()
        return await self.run(now_ms // 1000 - seconds)

    async def run(self, since_s: int) -> Findings:
        """Settle what is paid and not settled of the sessions made since this second.

        Raises ``Unavailable`` when Postgres can't be asked; a provider that can't be asked keeps no other from being.
        """
        findings = Findings()
        for provider in sorted(self._offered):
            await self._look_at(provider, since_s, findings)
        return findings

    async def _look_at(self, provider: Provider, since_s: int, findings: Findings) -> None:
        batch: list[Session] = []
        try:
            async for session in self._payments[provider].paid_since(since_s):
                batch.append(session)
                if len(batch) == BATCH:
                    findings.differences += await self._settle_unsettled(provider, batch)
                    batch = []
            findings.asked.append(provider)
        except (ProviderError, ProviderTimeout) as error:
            findings.unasked[provider] = error.code
            log.warning("provider_not_reconciled", provider=provider.value, reason=error.code)
        # Also with nothing in it: that nothing differs is not to be said without Postgres.
        findings.differences += await self._settle_unsettled(provider, batch)

    async def count_unmatched(self) -> int:
        """How many events about money belong to no session known here, for metrics. Raises ``StorageUnavailable``."""
        return await self._store.count_unmatched()

    async def _settle_unsettled(self, provider: Provider, paid: Sequence[Session]) -> list[Difference]:
        orders = await self._store.orders_of_unsettled(provider, paid)
        return [await self._settle(provider, session, orders[session.id]) for session in paid if session.id in orders]

    async def _settle(self, provider: Provider, session: Session, order_id: str) -> Difference:
        event = event_from(session)
        await self._settlements.receive(provider, event)
        became = await self._store.state_of(provider, event.dedup_key)
        log.warning(
            DifferenceKind.PAID_NOT_SETTLED.value,
            provider=provider.value,
            session=session.id,
            order=order_id,
            became=None if became is None else became.value,
        )
        return Difference(DifferenceKind.PAID_NOT_SETTLED, provider, session.id, order_id, became)
