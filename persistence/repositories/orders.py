"""Orders in Postgres: placed in one transaction with what they hold, read back with what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from sqlalchemy import Row, bindparam, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from engine.domain import (
    AttemptStatus,
    OrderEvent,
    OrderStatus,
    PaymentStatus,
    Provider,
    SettlementKind,
    SettlementState,
)
from engine.orders import HistoryEntry, Order, OrderFilter, OrderStory, Payment, Placed, Placement, Withdrawal
from engine.pricing import OrderLine
from engine.records import encode_reservation
from persistence.database import transaction
from persistence.repositories.attempts import add_attempt, add_history, load_newest
from persistence.repositories.epochs import require_epoch
from persistence.repositories.refunds import load_refunds
from persistence.repositories.reservations import upsert_reservations
from persistence.repositories.settlements import add_settlement
from persistence.settling import settle_order
from persistence.tables import Order as OrderRow
from persistence.tables import OrderHistory, Settlement
from persistence.tables import OrderLine as LineRow
from persistence.tables import Payment as PaymentRow

# An order that waits for a payment reads cancelled once its reservation has ended without one.
_LIST = text("""
select id from (
    select o.id, o.tenant, o.customer, o.created_at, case
        when o.status = 'pending'
            and (greatest(o.expires_at_ms, r.expires_at_ms) <= :now or r.status = 'released') then 'cancelled'
        else o.status end as status
    from orders o left join reservations r on r.tenant = o.tenant and r.id = o.reservation_id
    where o.tenant = :tenant
) as shown
where (cast(:status as text) is null or status = :status)
    and (cast(:customer as text) is null or customer = :customer)
    and (cast(:after as text) is null or (created_at, id) > (
        select created_at, id from orders where tenant = :tenant and id = :after))
order by created_at, id
limit :limit
""")

_ASKED = text("""
select a.order_id, a.request_fingerprint
from attempts a join orders o on o.id = a.order_id
where o.tenant = :tenant and a.asked_by = :key
order by a.created_at desc
limit 1
""")

# By its seller, or because a payment came too late to be honoured.
_WAS_CANCELLED = text("""
select exists (select from order_history where order_id = :order and event in ('cancelled', 'refund_due'))
""")
_ON_OFFER = (AttemptStatus.FROZEN, AttemptStatus.OPEN, AttemptStatus.CLOSING)

_ORDERS = text("""
select o.*, r.status as reservation_status, greatest(o.expires_at_ms, r.expires_at_ms) as held_until_ms
from orders o left join reservations r on r.tenant = o.tenant and r.id = o.reservation_id
where o.tenant = :tenant and o.id in :orders
""").bindparams(bindparam("orders", expanding=True))


class PostgresOrders:
    """Implements :class:`engine.ports.OrderStore`."""

    def __init__(self, engine: AsyncEngine, prefix: str) -> None:
        """``prefix`` is the deployment's, under which commits and rebuilds wait for each other."""
        self._engine = engine
        self._prefix = prefix

    async def find(self, tenant: str, order_id: str, idempotency_key: str | None = None) -> Placed | None:
        """An order and its newest attempt, by its id, or by the key that asked for one of its further attempts."""
        async with transaction(self._engine) as connection:
            placed = await _placed(connection, tenant, order_id)
            if placed is not None or idempotency_key is None:
                return placed
            asked = (await connection.execute(_ASKED, {"tenant": tenant, "key": idempotency_key})).one_or_none()
            if asked is None:
                return None
            placed = await _placed(connection, tenant, asked.order_id)
            return None if placed is None else replace(placed, asked_fingerprint=asked.request_fingerprint)

    async def find_by_reservation(self, tenant: str, reservation_id: str) -> Placed | None:
        """The order that holds a reservation, and its newest attempt."""
        statement = select(OrderRow.id).where(OrderRow.tenant == tenant, OrderRow.reservation_id == reservation_id)
        async with transaction(self._engine) as connection:
            order_id = await connection.scalar(statement)
            return None if order_id is None else await _placed(connection, tenant, order_id)

    async def confirm(self, tenant: str, order_id: str) -> OrderStatus | None:
        """Have a paid order confirmed; the status that it had before, None when there is no such order."""
        async with transaction(self._engine) as connection:
            status = await _lock(connection, tenant, order_id)
            if status is OrderStatus.PAID:
                await connection.execute(
                    update(OrderRow).where(OrderRow.id == order_id).values(status=OrderStatus.CONFIRMED.value)
                )
                await add_history(connection, order_id, OrderEvent.CONFIRMED, {})
            return status

    async def withdraw(self, tenant: str, order_id: str) -> Withdrawal:
        """Cancel an order that nobody has paid, once."""
        async with transaction(self._engine) as connection:
            status = await _lock(connection, tenant, order_id)
            if status not in (OrderStatus.PENDING, OrderStatus.CANCELLED):
                return Withdrawal.PAID
            # Paid once and taken back since, or cancelled like this before.
            if await connection.scalar(_WAS_CANCELLED, {"order": order_id}):
                return Withdrawal.DONE
            newest = await load_newest(connection, order_id)
            if newest is None or newest.status is AttemptStatus.PAID:
                return Withdrawal.PAID
            if newest.status in _ON_OFFER:
                return Withdrawal.ON_OFFER
            await connection.execute(
                update(OrderRow)
                .where(OrderRow.id == order_id)
                .values(status=OrderStatus.CANCELLED.value, withdrawn=True)
            )
            await add_history(connection, order_id, OrderEvent.CANCELLED, {"unpaid": True})
            return Withdrawal.DONE

    async def cancel_unreserved(self, tenant: str, order_id: str) -> bool:
        """Cancel a paid order that holds no reservation; its payments are owed back. False when it isn't paid."""
        async with transaction(self._engine) as connection:
            status = await _lock(connection, tenant, order_id)
            if status is OrderStatus.REFUNDED and not await connection.scalar(_WAS_CANCELLED, {"order": order_id}):
                # Should a refund fail after all, it is owed for an order that is not served.
                await add_history(connection, order_id, OrderEvent.CANCELLED, {})
            if status not in (OrderStatus.PAID, OrderStatus.CONFIRMED):
                return False
            await _settle_unreserved(connection, Provider.API, uuid4().hex, SettlementKind.CANCEL, (tenant, order_id))
            return True

    async def place(self, placement: Placement) -> bool:
        """Commit what a checkout holds; False, and nothing written, when the order is there already.

        Raises ``NotReady`` when the epoch that granted its units has ended: they are not held any more.
        """
        order = placement.order
        async with transaction(self._engine) as connection:
            if placement.reservation is not None:
                await require_epoch(connection, self._prefix, placement.reservation.epoch)
            inserted = await connection.execute(
                insert(OrderRow).values(_columns(order)).on_conflict_do_nothing().returning(OrderRow.id)
            )
            if inserted.one_or_none() is None:
                return False
            if placement.reservation is not None:
                await upsert_reservations(connection, [placement.reservation])
            await connection.execute(
                insert(LineRow),
                [
                    {
                        "order_id": order.id,
                        "position": position,
                        "product": line.product,
                        "name": line.name,
                        "quantity": line.quantity,
                        "unit_amount_minor": line.unit_amount_minor,
                        "amount_minor": line.amount_minor,
                    }
                    for position, line in enumerate(order.lines, start=1)
                ],
            )
            details = {"amount_minor": order.amount_minor, "currency": order.currency}
            await add_history(connection, order.id, OrderEvent.CREATED, details)
            if placement.attempt is not None:
                await add_attempt(connection, placement.attempt, placement.reservation)
            else:
                await _settle_free(connection, placement)
        return True

    async def story(self, tenant: str, order_id: str) -> OrderStory | None:
        """An order with its payments and history."""
        async with transaction(self._engine) as connection:
            stories = await _stories(connection, tenant, [order_id])
        return stories[0] if stories else None

    async def list_stories(self, tenant: str, wanted: OrderFilter, now_ms: int) -> list[OrderStory]:
        """Orders as they read at ``now_ms``, oldest first."""
        values = {
            "tenant": tenant,
            "now": now_ms,
            "status": None if wanted.status is None else wanted.status.value,
            "customer": wanted.customer,
            "after": wanted.after,
            "limit": wanted.limit,
        }
        async with transaction(self._engine) as connection:
            found = list((await connection.execute(_LIST, values)).scalars())
            return await _stories(connection, tenant, found)


async def _settle_free(connection: AsyncConnection, placement: Placement) -> None:
    """Nothing is due: the settlement that completes the order is stored with it, and applied here without units."""
    order = placement.order
    if placement.reservation is not None:
        await add_settlement(
            connection,
            Provider.NONE,
            order.id,
            SettlementKind.COMPLETE,
            placement.reservation,
            record=encode_reservation(placement.reservation),
        )
        return
    await _settle_unreserved(connection, Provider.NONE, order.id, SettlementKind.COMPLETE, (order.tenant, order.id))


async def _settle_unreserved(
    connection: AsyncConnection,
    provider: Provider,
    identifier: str,
    kind: SettlementKind,
    order: tuple[str, str],
) -> None:
    """Store a settlement of an order that has no reservation, and settle the order by it."""
    tenant, order_id = order
    await connection.execute(
        insert(Settlement).values(
            id=identifier,
            provider=provider.value,
            dedup_key=identifier,
            kind=kind.value,
            tenant=tenant,
            order_id=order_id,
            state=SettlementState.STORED.value,
        )
    )
    await settle_order(connection, identifier)


async def _lock(connection: AsyncConnection, tenant: str, order_id: str) -> OrderStatus | None:
    """The stored status of an order, whose row is locked from here on."""
    status = await connection.scalar(
        select(OrderRow.status).where(OrderRow.tenant == tenant, OrderRow.id == order_id).with_for_update()
    )
    return None if status is None else OrderStatus(status)


async def _placed(connection: AsyncConnection, tenant: str, order_id: str) -> Placed | None:
    orders = await _load(connection, tenant, [order_id])
    return Placed(orders[0], await load_newest(connection, order_id)) if orders else None


async def _load(connection: AsyncConnection, tenant: str, order_ids: Sequence[str]) -> list[Order]:
    """Orders in the sequence of their ids as given."""
    if not order_ids:
        return []
    rows = (await connection.execute(_ORDERS, {"tenant": tenant, "orders": list(order_ids)})).all()
    statement = (
        select(*LineRow.__table__.c).where(LineRow.order_id.in_(order_ids)).order_by(LineRow.order_id, LineRow.position)
    )
    lines: dict[str, list[OrderLine]] = {}
    for row in await connection.execute(statement):
        lines.setdefault(row.order_id, []).append(
            OrderLine(row.product, row.name, row.quantity, row.unit_amount_minor, row.amount_minor)
        )
    orders = {row.id: _order(row, tuple(lines.get(row.id, ()))) for row in rows}
    return [orders[order_id] for order_id in order_ids if order_id in orders]


async def _stories(connection: AsyncConnection, tenant: str, order_ids: Sequence[str]) -> list[OrderStory]:
    orders = await _load(connection, tenant, order_ids)
    if not orders:
        return []
    payments: dict[str, list[Payment]] = {}
    paid = (
        select(*PaymentRow.__table__.c)
        .where(PaymentRow.order_id.in_(order_ids))
        .order_by(PaymentRow.created_at, PaymentRow.status, PaymentRow.ref)
    )
    for row in await connection.execute(paid):
        payments.setdefault(row.order_id, []).append(
            Payment(Provider(row.provider), row.ref, row.amount_minor, row.currency, PaymentStatus(row.status))
        )
    history: dict[str, list[HistoryEntry]] = {}
    told = select(*OrderHistory.__table__.c).where(OrderHistory.order_id.in_(order_ids)).order_by(OrderHistory.id)
    for row in await connection.execute(told):
        history.setdefault(row.order_id, []).append(HistoryEntry(row.at, row.event, row.details))
    refunds = await load_refunds(connection, order_ids)
    return [
        OrderStory(
            order,
            tuple(payments.get(order.id, ())),
            tuple(refunds.get(order.id, ())),
            tuple(history.get(order.id, ())),
        )
        for order in orders
    ]


def _columns(order: Order) -> dict[str, Any]:
    return {
        "id": order.id,
        "tenant": order.tenant,
        "reservation_id": order.reservation_id,
        "customer": order.customer,
        "email": order.email,
        "code": order.code,
        "period": order.period,
        "currency": order.currency,
        "amount_minor": order.amount_minor,
        "discount_minor": order.discount_minor,
        "status": order.status.value,
        "provider": order.provider.value,
        "idempotency_key": order.idempotency_key,
        "request_fingerprint": order.request_fingerprint,
        "success_url": order.success_url,
        "cancel_url": order.cancel_url,
        "expires_at_ms": order.expires_at_ms,
    }


def _order(row: Row[Any], lines: tuple[OrderLine, ...]) -> Order:
    status = OrderStatus(row.status)
    # Released by hand, while nobody has settled the order: it can't be paid in time any more.
    if status is OrderStatus.PENDING and row.reservation_status == "released":
        status = OrderStatus.CANCELLED
    return Order(
        id=row.id,
        tenant=row.tenant,
        customer=row.customer,
        email=row.email,
        currency=row.currency,
        amount_minor=row.amount_minor,
        discount_minor=row.discount_minor,
        provider=Provider(row.provider),
        request_fingerprint=row.request_fingerprint,
        success_url=row.success_url,
        cancel_url=row.cancel_url,
        lines=lines,
        reservation_id=row.reservation_id,
        code=row.code,
        period=row.period,
        idempotency_key=row.idempotency_key,
        # An extension reaches the reservation alone.
        expires_at_ms=row.held_until_ms,
        status=status,
        late=row.late,
        withdrawn=row.withdrawn,
        refunded_minor=row.refunded_minor,
        created_at=row.created_at,
    )
