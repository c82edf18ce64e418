"""Signed webhooks of the stand-ins: written down with what they tell of, then delivered until they are taken."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

import httpx
import stripe
import structlog

from api.sandbox.clock import now_ms
from api.sandbox.stripe_objects import event_object, new_id
from engine.domain import Provider
from engine.errors import StorageUnavailable
from persistence.repositories.sandbox import SandboxRepository, SandboxStore
from persistence.tables.sandbox import FaultKind, FaultTarget, SandboxEvent

log = structlog.get_logger(__name__)

LEASE_MS = 30_000
"""How long a delivery has before another process tries it; longer than any one attempt takes."""

DELAY_MS = 5_000
"""What the fault ``delay`` adds before a first delivery."""

REORDER_MS = 30_000
"""How long the fault ``reorder`` waits at most for another event to overtake."""

ATTEMPT_SECONDS = 10.0
LONGEST_PAUSE_MS = 60_000
MOST_ATTEMPTS = 1000
AT_ONCE = 8


class Deliveries:
    """Keeps and delivers the events of the stand-ins. Times are of the test clock.

    ``base_url`` is where the API's webhooks are, ``secrets`` what each provider signs with.
    """

    def __init__(self, store: SandboxStore, base_url: str, secrets: Mapping[Provider, str]) -> None:
        self._store = store
        self._base_url = base_url
        self._secrets = secrets
        self._http = httpx.AsyncClient(timeout=ATTEMPT_SECONDS, trust_env=False)
        self._waiting = asyncio.Event()

    async def add(
        self,
        repository: SandboxRepository,
        event_type: str,
        session_id: str,
        about: dict[str, Any],
        *,
        provider: Provider = Provider.STRIPE,
        idempotency_key: str | None = None,
        taken: bool = False,
    ) -> SandboxEvent:
        """Write an event down, in the transaction of what it tells of.

        ``taken``: the caller delivers it by :meth:`deliver_first` once the transaction has ended; should it die before,
        the lease runs out and another process does.
        """
        now = await now_ms(repository)
        fault = await repository.take_fault(FaultTarget.WEBHOOKS)
        event_id = new_id("evt")
        payload = {"event": event_type, "data": about}
        if provider is Provider.STRIPE:
            payload = event_object(event_id, event_type, now // 1000, about, idempotency_key)
        next_attempt: int | None = now
        attempts = 0
        match fault:
            case FaultKind.DROP:
                next_attempt = None
            case FaultKind.DELAY:
                next_attempt = now + DELAY_MS
            case FaultKind.REORDER:
                next_attempt = now + REORDER_MS
            case FaultKind.ERROR:
                attempts, next_attempt = 1, now + _pause_ms(1)
            case _ if taken:
                attempts, next_attempt = 1, now + LEASE_MS
        event = SandboxEvent(
            event_id=event_id,
            provider=provider,
            type=event_type,
            session_id=session_id,
            payload=json.dumps(payload, indent=2, ensure_ascii=False),
            fault=fault,
            attempts=attempts,
            created_at_ms=now,
            next_attempt_at_ms=next_attempt,
        )
        await repository.add_event(event)
        return event

    async def deliver_first(self, event: SandboxEvent) -> bool:
        """Deliver an event that was added as ``taken``, unless a fault holds it back; answers whether it arrived."""
        held_back = (FaultKind.DROP, FaultKind.DELAY, FaultKind.REORDER, FaultKind.ERROR)
        return event.fault not in held_back and await self._deliver(event)

    def wake(self) -> None:
        """Have the background task look now instead of at its next turn."""
        self._waiting.set()

    async def wait(self, seconds: float) -> None:
        """Wait to be woken, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._waiting.wait()
        except TimeoutError:
            return
        self._waiting.clear()

    async def deliver_due(self, limit: int = 50) -> int:
        """Deliver what is due; answers how many were tried."""
        async with self._store.transaction() as repository:
            events = await repository.claim_events(await now_ms(repository), LEASE_MS, limit)
        gate = asyncio.Semaphore(AT_ONCE)

        async def deliver(event: SandboxEvent) -> None:
            async with gate:
                await self._deliver(event)

        async with asyncio.TaskGroup() as group:
            for event in events:
                group.create_task(deliver(event))
        return len(events)

    async def close(self) -> None:
        """Release the connections."""
        await self._http.aclose()

    async def _deliver(self, event: SandboxEvent) -> bool:
        first = event.attempts <= 1
        arrived = await self._post(event)
        if first and event.fault == FaultKind.DUPLICATE:
            arrived = await self._post(event) or arrived
        if first and event.fault == FaultKind.TIMEOUT_AFTER_SUCCESS:
            # The receiver acted, its answer was lost on the way: from here it looks like a failure.
            arrived = False
        try:
            await self._note(event, arrived)
        except StorageUnavailable:
            # The lease runs out and it is delivered once more, which receivers have to bear from Stripe as well.
            log.warning("sandbox_delivery_not_noted", event_id=event.event_id)
        return arrived

    async def _note(self, event: SandboxEvent, arrived: bool) -> None:
        async with self._store.transaction() as repository:
            now = await now_ms(repository)
            if arrived:
                if await repository.event_delivered(event.seq, now):
                    self.wake()
                return
            given_up = event.attempts >= MOST_ATTEMPTS
            await repository.event_failed(event.seq, None if given_up else now + _pause_ms(event.attempts))

    async def _post(self, event: SandboxEvent) -> bool:
        async with self._store.transaction() as repository:
            stamp_s = await now_ms(repository) // 1000
        headers = {"Content-Type": "application/json; charset=utf-8"} | self._signature(event, stamp_s)
        about = {"event_id": event.event_id, "event_type": event.type}
        try:
            answer = await self._http.post(
                f"{self._base_url}/v1/webhooks/{event.provider}", content=event.payload.encode(), headers=headers
            )
        except httpx.HTTPError as error:
            log.info("sandbox_webhook_failed", **about, error=type(error).__name__)
            return False
        log.info("sandbox_webhook_sent", **about, status=answer.status_code)
        # Paystack's rule: no other answer than 200 itself counts.
        return answer.status_code == 200 if event.provider == Provider.PAYSTACK else answer.is_success

    def _signature(self, event: SandboxEvent, stamp_s: int) -> dict[str, str]:
        secret = self._secrets[Provider(event.provider)]
        if event.provider == Provider.PAYSTACK:
            signature = hmac.new(secret.encode(), event.payload.encode(), hashlib.sha512).hexdigest()
            return {"x-paystack-signature": signature}
        return {"Stripe-Signature": stripe.WebhookSignature.generate_signature_header(event.payload, secret, stamp_s)}


def _pause_ms(attempts: int) -> int:
    """Back-off after so many attempts: 1 s, doubled each time, a minute at most."""
    return min(LONGEST_PAUSE_MS, 1000 << min(attempts - 1, 10))
