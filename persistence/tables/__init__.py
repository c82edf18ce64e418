"""Every table, one module per subject; importing this package fills the metadata."""

from persistence.tables.catalogue import ApiKey, Code, Pool, Product, Tenant, definition_rev
from persistence.tables.operations import JobRun, OutboxOffset, RedisEpoch, SetAsideEntry, redis_epoch
from persistence.tables.orders import Attempt, Order, OrderHistory, OrderLine, Payment
from persistence.tables.reservations import REDEMPTIONS_VIEW, ReservationClaim, ReservationRow
from persistence.tables.sandbox import (
    SandboxCall,
    SandboxClock,
    SandboxEvent,
    SandboxFault,
    SandboxIdempotencyKey,
    SandboxSession,
)
from persistence.tables.settlements import Settlement

__all__ = [
    "REDEMPTIONS_VIEW",
    "ApiKey",
    "Attempt",
    "Code",
    "JobRun",
    "Order",
    "OrderHistory",
    "OrderLine",
    "OutboxOffset",
    "Payment",
    "Pool",
    "Product",
    "RedisEpoch",
    "ReservationClaim",
    "ReservationRow",
    "SandboxCall",
    "SandboxClock",
    "SandboxEvent",
    "SandboxFault",
    "SandboxIdempotencyKey",
    "SandboxSession",
    "SetAsideEntry",
    "Settlement",
    "Tenant",
    "definition_rev",
    "redis_epoch",
]
