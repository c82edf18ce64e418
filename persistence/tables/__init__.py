"""Every table, one module per subject; importing this package fills the metadata."""

from persistence.tables.catalogue import ApiKey, Code, Pool, Product, Tenant, definition_rev
from persistence.tables.operations import JobRun, OutboxOffset, RedisEpoch, SetAsideEntry, redis_epoch
from persistence.tables.orders import Attempt, Order, OrderHistory, OrderLine, Payment
from persistence.tables.refunds import Dispute, ProviderRefund, Refund, RefundTotal
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
    "Dispute",
    "JobRun",
    "Order",
    "OrderHistory",
    "OrderLine",
    "OutboxOffset",
    "Payment",
    "Pool",
    "Product",
    "ProviderRefund",
    "RedisEpoch",
    "Refund",
    "RefundTotal",
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
