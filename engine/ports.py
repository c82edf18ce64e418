"""What checkout and settlement ask of Postgres. Every method is one transaction and raises ``StorageUnavailable``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.domain import OrderStatus, Provider, Reservation, SettlementKind
from engine.orders import Asked, Attempt, OrderFilter, OrderStory, Placed, Placement, StoredSettlement, Withdrawal
from engine.payments.port import FrozenAttempt, ProviderEvent, Session


class OrderStore(Protocol):
    """Orders as checkout commits them and as they are read."""

    async def find(self, tenant: str, order_id: str, idempotency_key: str | None = None) -> Placed | None:
        """An order and its newest attempt; or the one that a checkout under this key asked a further attempt of."""
        ...

    async def find_by_reservation(self, tenant: str, reservation_id: str) -> Placed | None:
        """The order that holds a reservation, and its newest attempt."""
        ...

    async def place(self, placement: Placement) -> bool:
        """Commit order, attempt and reservation; False, and nothing written, when the order is there already.

        Where nothing is due, the settlement that completes the order is stored with it.
        """
        ...

    async def confirm(self, tenant: str, order_id: str) -> OrderStatus | None:
        """Have a paid order confirmed; the status that it had before, None when there is no such order."""
        ...

    async def withdraw(self, tenant: str, order_id: str) -> Withdrawal:
        """Cancel an order that nobody has paid, so that a payment that comes all the same goes back."""
        ...

    async def cancel_unreserved(self, tenant: str, order_id: str) -> bool:
        """Cancel a paid order that holds no reservation; False when it isn't paid."""
        ...

    async def story(self, tenant: str, order_id: str) -> OrderStory | None: ...

    async def list_stories(self, tenant: str, wanted: OrderFilter, now_ms: int) -> list[OrderStory]: ...


class AttemptStore(Protocol):
    """Attempts to have an order paid."""

    async def start(self, attempt: FrozenAttempt, reservation: Reservation | None, asked: Asked | None = None) -> bool:
        """Commit the next attempt of an order that waits for one; False when another call did or it was paid."""
        ...

    async def close(self, attempt: FrozenAttempt, session_id: str | None) -> bool:
        """Note that an attempt gives way to the next on the same reservation; False when it is over or paid.

        From here on news that its session ended give nothing back.
        """
        ...

    async def count_on(self, order_id: str, reservation_id: str | None) -> int:
        """How many attempts an order has had on this reservation, or on none."""
        ...

    async def attach(self, attempt: FrozenAttempt, session: Session) -> int | None:
        """Note the session that an attempt opened; None when the attempt is no longer waiting for one.

        Events that came for the session before it was known are matched with the order; answers how many.
        """
        ...

    async def fail(self, attempt: FrozenAttempt, reason: str) -> bool:
        """Note that an attempt has no session, and cancel its order; False when it is no longer waiting."""
        ...

    async def end(self, attempt: FrozenAttempt) -> None:
        """Note that a closing attempt's session is over; with no attempt after it, its order is cancelled."""
        ...

    async def load_overdue(self, before_s: int, after: tuple[str, int], limit: int) -> list[Attempt]:
        """Attempts that are frozen or open although their session should have ended before this second.

        In the order of order id and number, from behind ``after`` on.
        """
        ...

    async def look_up_later(self, attempt: FrozenAttempt, at_s: int) -> None:
        """Ask the provider again at this second, unless it speaks before."""
        ...


class SettlementStore(Protocol):
    """Stored settlements: the inbox between a provider and the scripts."""

    async def find_reservation_of(self, provider: Provider, event: ProviderEvent) -> tuple[str, str] | None:
        """Tenant and present reservation of the order that an event is about, if there is one."""
        ...

    async def store_event(self, provider: Provider, event: ProviderEvent, record: str) -> StoredSettlement | None:
        """Store an event's settlement, once per provider and dedup key; None when there is nothing to apply.

        Raises ``Unavailable`` when the event carries our mark for an order that isn't visible yet.
        """
        ...

    async def is_waiting(self, provider: Provider, dedup_key: str) -> bool:
        """Whether an event's settlement is stored and still to be applied."""
        ...

    async def store_order(
        self, kind: SettlementKind, reservation: Reservation, payment_ref: str, restock: bool, record: str
    ) -> StoredSettlement:
        """Store what an API caller orders to be done with a reservation.

        Raises ``NotReady`` when the epoch that it was read under has ended.
        """
        ...

    async def match(self, limit: int) -> int:
        """Match events that came before their session was known; answers how many were."""
        ...

    async def load_waiting(self, limit: int) -> Sequence[StoredSettlement]:
        """Settlements stored and not applied: those tried least often first, then the oldest."""
        ...

    async def note_tried(self, settlement_ids: Sequence[str]) -> None:
        """Count a try of each, so that what can't be applied does not keep others waiting for ever."""
        ...

    async def load_waiting_of(self, order_id: str) -> Sequence[StoredSettlement]:
        """Those of one order."""
        ...

    async def note_failure(self, settlement_id: str, error: str) -> None: ...
