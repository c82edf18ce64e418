"""Refunds: a ledger that is claimed, then asked for at the provider, then recorded; each amount goes back once.

A crash between any two of these leaves a claim, which another worker takes over after a while. It asks the provider
whether it acted before it asks it to act again. What a provider tells of refunds, of its own accord or when asked, is
taken down by the provider's ids, and everything else follows from that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import structlog

from engine.domain import Provider
from engine.errors import AlreadyRefunded, Invalid, LastportionError, ProviderError, ProviderTimeout
from engine.payments.port import EventKind, FrozenRefund, PaymentPort, PaymentPorts, ProviderEvent, ProviderRefund

log = structlog.get_logger(__name__)

MOST_IN_ONE_RUN: Final = 50
SHORTEST_PAUSE_SECONDS: Final = 60
LONGEST_PAUSE_SECONDS: Final = 3600
"""After a call without answer, or a refusal, a refund waits 1, 2, 4 … minutes, an hour at most: longer than a call that
is still under way can take, so that the look-up before the next sees what it did."""


@dataclass(frozen=True, slots=True)
class ClaimedRefund:
    """A refund that this worker has in hand, under ``claim``.

    ``was_called``: the provider may have been asked for it already, or has taken it on and was silent since.
    """

    frozen: FrozenRefund
    provider: Provider
    claim: str
    tries: int
    was_called: bool


@dataclass(frozen=True, slots=True)
class OwedRefunds:
    """How many refunds are not done, and for how long the oldest has been owed, in seconds."""

    count: int
    oldest_seconds: float


class RefundStore(Protocol):
    """The ledger, and what providers say. Every method is one transaction and raises ``StorageUnavailable``."""

    async def claim(
        self, providers: Collection[Provider], stale_seconds: int, refund_id: str | None = None
    ) -> ClaimedRefund | None:
        """Take the refund by these providers that has waited longest, or this one; None when none is due.

        From the answer on it counts as called.
        """
        ...

    async def record(self, provider: Provider, payment_ref: str, found: Sequence[ProviderRefund]) -> None:
        """Take down what the provider says of refunds of a payment, and bring everything to it."""
        ...

    async def is_open(self, claimed: ClaimedRefund) -> bool:
        """Whether the refund is still to be asked for, by this claim."""
        ...

    async def close_refunded(self, claimed: ClaimedRefund) -> None:
        """Nothing of the payment is left at the provider: the refund is done, whoever made it."""
        ...

    async def put_back(
        self, claimed: ClaimedRefund, error: str, pause_seconds: int, *, is_refused: bool, may_have_acted: bool
    ) -> None:
        """Give a claim up until later.

        ``is_refused``: the next call has another key, since the provider would repeat its refusal under this one.
        ``may_have_acted``: it is looked up before it is asked for again.
        """
        ...

    async def request(self, tenant: str, order_id: str, request_id: str, amount_minor: int | None, reason: str) -> str:
        """Enter a refund that somebody asks for, once per order and id; answers the ledger's id of it.

        Raises ``Unknown``, ``IllegalTransition``, ``Invalid`` and ``IdConflict``.
        """
        ...

    async def note(self, provider: Provider, event: ProviderEvent) -> bool:
        """Take down an event's news; False when the payment that they are about is not known yet."""
        ...

    async def count_pending(self, limit: int) -> int:
        """Count news whose payment has become known since; answers of how many payments."""
        ...

    async def owed(self) -> OwedRefunds:
        """What has not gone back yet."""
        ...


class RefundService:
    """Pays refunds that are owed, takes requests for more, and listens to what providers say of them."""

    def __init__(self, store: RefundStore, payments: PaymentPorts, claim_seconds: int) -> None:
        """``claim_seconds``: how long a worker may have a refund in hand before another takes it over."""
        self._store = store
        self._payments = payments
        self._claim_seconds = claim_seconds

    async def pay_due(self) -> int:
        """Ask the providers for what is owed; answers how many refunds were taken in hand. Raises ``Unavailable``."""
        answering = set(self._payments)
        for done in range(MOST_IN_ONE_RUN):
            claimed = await self._store.claim(answering, self._claim_seconds)
            if claimed is None:
                return done
            if not await self._pay(claimed):
                # The others' refunds do not wait for its time-outs; its own wait for the next run.
                answering.remove(claimed.provider)
        return MOST_IN_ONE_RUN

    async def count_pending(self) -> int:
        """Count what providers said of payments before those were known. Raises ``Unavailable``."""
        return await self._store.count_pending(MOST_IN_ONE_RUN)

    async def request(self, tenant: str, order_id: str, request_id: str, amount_minor: int | None, reason: str) -> None:
        """Enter a refund of an order's payment, and ask the provider for it; the same id again changes nothing.

        ``amount_minor`` None is all that is left. What the provider does not take at once is left to the job. Raises
        ``Unknown``, ``IllegalTransition`` (nothing is kept of it), ``Invalid`` (more than is left), ``IdConflict``
        (another amount under this id) and ``Unavailable``.
        """
        if amount_minor is not None and amount_minor <= 0:
            raise Invalid("A refund is of something.", fields={"amount_minor": "must be positive"})
        refund_id = await self._store.request(tenant, order_id, request_id, amount_minor, reason)
        claimed = await self._store.claim(self._payments, self._claim_seconds, refund_id)
        if claimed is not None:
            await self._pay(claimed)

    async def receive(self, provider: Provider, event: ProviderEvent) -> None:
        """Commit what an event tells of a refund or a dispute; a return means that it is safe.

        Raises ``StorageUnavailable`` when it could not be committed.
        """
        is_known = await self._store.note(provider, event)
        log.info(
            "dispute_noted" if event.kind is EventKind.DISPUTE else "refund_news_noted",
            provider=provider.value,
            event_type=event.type,
            payment=event.payment_ref,
            is_known=is_known,
        )

    async def owed(self) -> OwedRefunds:
        """What has not gone back yet, for metrics. Raises ``StorageUnavailable``."""
        return await self._store.owed()

    async def _pay(self, claimed: ClaimedRefund) -> bool:
        """Ask for one refund, unless it turns out to be made; False when the provider did not answer."""
        frozen, port = claimed.frozen, self._payments[claimed.provider]
        try:
            if claimed.was_called and await self._was_made(port, claimed):
                return True
        except (ProviderError, ProviderTimeout) as error:
            await self._put_back(claimed, error, is_refused=False)
            return isinstance(error, ProviderError)
        try:
            made = await port.refund(frozen)
        except AlreadyRefunded:
            await self._close_refunded(port, claimed)
        except ProviderError as error:
            # Somebody may have sent a part back at the provider, so that less is left than we ask for.
            await self._take_down(port, claimed)
            await self._put_back(claimed, error, is_refused=True, may_have_acted=not error.is_final)
        except ProviderTimeout as error:
            await self._put_back(claimed, error, is_refused=False)
            return False
        else:
            named = replace(made, marked_refund_id=frozen.id, marked_round=frozen.round)
            await self._store.record(claimed.provider, frozen.payment_ref, [named])
            log.info("refund_made", refund=frozen.id, order=frozen.order_id, ref=made.ref, status=made.status.value)
        return True

    async def _was_made(self, port: PaymentPort, claimed: ClaimedRefund) -> bool:
        """Whether the provider has this refund, or has still to speak of it: then nothing is left to ask for."""
        await self._store.record(
            claimed.provider, claimed.frozen.payment_ref, await port.look_up_refunds(claimed.frozen.payment_ref)
        )
        if not await self._store.is_open(claimed):
            log.info("refund_found", refund=claimed.frozen.id, order=claimed.frozen.order_id)
            return True
        return False

    async def _close_refunded(self, port: PaymentPort, claimed: ClaimedRefund) -> None:
        """Final, whoever sent the money back; looked up once, to have the provider's own rows if it tells them."""
        await self._take_down(port, claimed)
        await self._store.close_refunded(claimed)
        log.info("refund_made_before", refund=claimed.frozen.id, order=claimed.frozen.order_id)

    async def _take_down(self, port: PaymentPort, claimed: ClaimedRefund) -> None:
        """Take down what the provider says of the payment's refunds, unless that was just done, or it can't say."""
        if claimed.was_called:
            return
        try:
            found = await port.look_up_refunds(claimed.frozen.payment_ref)
        except (ProviderError, ProviderTimeout) as error:
            log.warning("refunds_not_listed", refund=claimed.frozen.id, reason=error.code)
        else:
            await self._store.record(claimed.provider, claimed.frozen.payment_ref, found)

    async def _put_back(
        self, claimed: ClaimedRefund, error: LastportionError, *, is_refused: bool, may_have_acted: bool = True
    ) -> None:
        pause = min(LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS * 2 ** min(claimed.tries - 1, 10))
        reason = str(error.details.get("provider_code") or error.code)
        log.warning("refund_waits", refund=claimed.frozen.id, order=claimed.frozen.order_id, reason=reason)
        await self._store.put_back(claimed, reason, pause, is_refused=is_refused, may_have_acted=may_have_acted)
