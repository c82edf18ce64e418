"""The refund ledger in Postgres, and what providers say of refunds and disputes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import uuid4

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from engine.domain import OrderEvent, PaymentStatus, Provider, RefundCause, RefundStatus
from engine.errors import IdConflict, IllegalTransition, Invalid, Unknown
from engine.money import payable_step, show
from engine.orders import RefundShown
from engine.payments.port import Dispute, FrozenRefund, ProviderEvent, ProviderRefund, RefundTotal
from engine.refunds import ClaimedRefund, OwedRefunds
from persistence.database import transaction
from persistence.refunding import REST_MINOR, count_news, lock_orders_of
from persistence.repositories.refund_news import note_dispute, note_refund, note_total
from persistence.tables import Order, Payment, Refund

_CLAIM = text("""
update refunds f
set status = 'requesting', claim = :claim, claimed_at = now(), tries = f.tries + 1,
    called_at = coalesce(f.called_at, now())
from (
    select id, called_at from refunds f
    where (cast(:id as text) is null or id = :id)
        and payment_id in (select id from payments where id = f.payment_id and provider = any(:providers)) and (
        (status = 'owed' and next_try_at <= now())
        or (status = 'requesting' and claimed_at < now() - make_interval(secs => :stale))
        or (status = 'pending' and next_try_at <= now()))
    order by next_try_at, id limit 1
    for update skip locked
) as due, payments p
where f.id = due.id and p.id = f.payment_id
returning f.id, f.round, f.tenant, f.order_id, f.amount_minor, f.currency, f.tries, f.claim, p.provider, p.ref,
    due.called_at is not null as was_called
""")

_PUT_BACK = text("""
update refunds
set status = 'owed', claim = null, claimed_at = null, last_error = :error,
    next_try_at = now() + make_interval(secs => :pause),
    called_at = case when :acted then called_at end,
    round = round + case when :refused then 1 else 0 end
where id = :id and claim = :claim and status = 'requesting'
returning order_id, coalesce(request_id, id) as shown
""")

_CLOSE = text("""
update refunds set status = 'refunded', claim = null, claimed_at = null, refunded_at = now(), last_error = null
where id = :id and status <> 'refunded' and (claim = :claim or status = 'pending')
""")

_TELL = text("""
insert into order_history (order_id, event, details, settlement_id)
values (:order, 'refund_failed', jsonb_build_object('refund', cast(:shown as text), 'reason', cast(:reason as text)),
    :once)
on conflict (order_id, event, settlement_id) do nothing
""")

_TELL_CLOSED = text("""
insert into order_history (order_id, event, details, settlement_id)
select f.order_id, 'refunded', jsonb_build_object('refund', coalesce(f.request_id, f.id), 'provider', p.provider,
    'amount_minor', f.amount_minor, 'currency', f.currency, 'reason', 'already refunded'), f.id || '-closed'
from refunds f join payments p on p.id = f.payment_id
where f.id = :id and f.order_id is not null and not exists (
    select from provider_refunds r
    where r.provider = p.provider and r.payment_ref = p.ref and r.status = 'succeeded')
on conflict (order_id, event, settlement_id) do nothing
""")

_UNCOUNTED = text(f"""
select p.provider, p.ref from payments p join (
    {
    " union ".join(
        f"select provider, payment_ref from {table} where not counted and first_seen_at > now() - interval '30 days'"
        for table in ("provider_refunds", "refund_totals", "disputes")
    )
}
) as news on news.provider = p.provider and news.payment_ref = p.ref
limit :limit
""")  # noqa: S608  (our own text)
"""Of somebody else's payments the news stay uncounted: after a month nobody looks at them any more."""

_SHOWN = text("""
select order_id, id, amount_minor, status from (
    select f.order_id, coalesce(f.request_id, f.id) as id, f.amount_minor, f.status, f.created_at
    from refunds f where f.order_id = any(:orders)
    union all
    select p.order_id, r.ref, r.amount_minor,
        case r.status when 'succeeded' then 'refunded' else 'pending' end, r.first_seen_at
    from provider_refunds r join payments p on p.provider = r.provider and p.ref = r.payment_ref
    where p.order_id = any(:orders) and r.refund_id is null and r.status <> 'failed'
) as shown order by created_at, id
""")


class PostgresRefunds:
    """Implements :class:`engine.refunds.RefundStore`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def claim(
        self, providers: Collection[Provider], stale_seconds: int, refund_id: str | None = None
    ) -> ClaimedRefund | None:
        """Take a refund that is due, or whose worker is gone, or that the provider has been silent about."""
        values = {
            "id": refund_id,
            "claim": uuid4().hex,
            "stale": stale_seconds,
            "providers": [p.value for p in providers],
        }
        async with transaction(self._engine) as connection:
            row = (await connection.execute(_CLAIM, values)).one_or_none()
        if row is None:
            return None
        frozen = FrozenRefund(row.id, row.round, row.tenant, row.order_id, row.ref, row.amount_minor, row.currency)
        return ClaimedRefund(frozen, Provider(row.provider), row.claim, row.tries, row.was_called)

    async def record(self, provider: Provider, payment_ref: str, found: Sequence[ProviderRefund]) -> None:
        """Take down refunds of a payment, and bring the ledger, the payment and the order to what they say."""
        async with transaction(self._engine) as connection:
            await lock_orders_of(connection, [(provider.value, payment_ref)])
            for refund in found:
                await note_refund(connection, provider, refund)
            await count_news(connection, [(provider.value, payment_ref)])

    async def is_open(self, claimed: ClaimedRefund) -> bool:
        """Whether the refund is still this claim's to ask for."""
        statement = select(Refund.id).where(Refund.id == claimed.frozen.id, Refund.claim == claimed.claim)
        async with transaction(self._engine) as connection:
            return await connection.scalar(statement) is not None

    async def close_refunded(self, claimed: ClaimedRefund) -> None:
        """The whole payment went back, whoever asked for it: the refund is done."""
        frozen, provider = claimed.frozen, claimed.provider
        payment = (provider.value, frozen.payment_ref)
        async with transaction(self._engine) as connection:
            await lock_orders_of(connection, [payment])
            amount = await connection.scalar(
                select(Payment.amount_minor).where(Payment.provider == provider, Payment.ref == frozen.payment_ref)
            )
            await note_total(connection, provider, RefundTotal(frozen.payment_ref, amount or 0, frozen.currency))
            await connection.execute(_CLOSE, {"id": frozen.id, "claim": claimed.claim})
            await connection.execute(_TELL_CLOSED, {"id": frozen.id})
            await count_news(connection, [payment])

    async def put_back(
        self, claimed: ClaimedRefund, error: str, pause_seconds: int, *, is_refused: bool, may_have_acted: bool
    ) -> None:
        """Give a claim up until later; a refusal is told in the order's history, once for each reason."""
        values = {
            "id": claimed.frozen.id,
            "claim": claimed.claim,
            "error": error,
            "pause": pause_seconds,
            "refused": is_refused,
            "acted": may_have_acted,
        }
        once = f"{claimed.frozen.id}:{error}"
        payment = (claimed.provider.value, claimed.frozen.payment_ref)
        async with transaction(self._engine) as connection:
            await lock_orders_of(connection, [payment])
            row = (await connection.execute(_PUT_BACK, values)).one_or_none()
            if is_refused and row is not None and row.order_id is not None:
                told = {"order": row.order_id, "shown": row.shown, "reason": error, "once": once}
                await connection.execute(_TELL, told)
            # The provider may have taken it on before, or others may have sent back a part of what we ask for.
            await count_news(connection, [payment])

    async def request(self, tenant: str, order_id: str, request_id: str, amount_minor: int | None, reason: str) -> str:
        """Enter a refund that somebody asks for; answers its id, which is the same when it is asked for again."""
        async with transaction(self._engine) as connection:
            status = await connection.scalar(
                select(Order.status).where(Order.tenant == tenant, Order.id == order_id).with_for_update()
            )
            if status is None:
                raise Unknown("order", order_id)
            known = (await connection.execute(_ASKED, {"order": order_id, "request": request_id})).one_or_none()
            if known is not None:
                if amount_minor not in (None, known.asked_minor):
                    raise IdConflict("This id was used for a refund of another amount.", id=request_id)
                return str(known.id)
            payment = await _payment_with_rest(connection, order_id)
            if payment is None or payment.rest_minor <= 0:
                raise IllegalTransition(status, f"The order is {status}: nothing is left to be refunded.")
            _check_rest(amount_minor, payment)
            added = await connection.execute(
                _ADD_REQUESTED,
                {
                    "tenant": tenant,
                    "order": order_id,
                    "payment": payment.id,
                    "request": request_id,
                    "reason": reason,
                    "amount": amount_minor or payment.rest_minor,
                    "currency": payment.currency,
                },
            )
            return str(added.scalar_one())

    async def note(self, provider: Provider, event: ProviderEvent) -> bool:
        """Take down an event's news, and count them where the payment is known."""
        news = event.refund or event.refund_total or event.dispute
        if news is None:
            return False
        payment = (provider.value, news.payment_ref)
        async with transaction(self._engine) as connection:
            is_known = await lock_orders_of(connection, [payment])
            if isinstance(news, ProviderRefund):
                await note_refund(connection, provider, news)
            elif isinstance(news, Dispute):
                await note_dispute(connection, provider, news)
            else:
                await note_total(connection, provider, news)
            if is_known:
                await count_news(connection, [payment])
            return is_known

    async def count_pending(self, limit: int) -> int:
        """Count news that came before their payment, each payment in a transaction of its own."""
        async with transaction(self._engine) as connection:
            found = [(row.provider, row.ref) for row in await connection.execute(_UNCOUNTED, {"limit": limit})]
        for payment in found:
            async with transaction(self._engine) as connection:
                await lock_orders_of(connection, [payment])
                await count_news(connection, [payment])
        return len(found)

    async def owed(self) -> OwedRefunds:
        """Refunds that are not done, and the age of the oldest."""
        statement = text(
            "select count(*) as owed, coalesce(extract(epoch from now() - min(created_at)), 0) as oldest"
            " from refunds where status <> 'refunded'"
        )
        async with transaction(self._engine) as connection:
            row = (await connection.execute(statement)).one()
        return OwedRefunds(row.owed, float(row.oldest))


_ADD_REQUESTED = text(f"""
with added as (
    insert into refunds (tenant, order_id, payment_id, cause, request_id, reason, amount_minor, currency, status)
    values (:tenant, :order, :payment, '{RefundCause.REQUESTED.value}', :request, :reason, :amount, :currency,
        '{RefundStatus.OWED.value}')
    returning *
), told as (
    insert into order_history (order_id, event, details, settlement_id)
    select order_id, '{OrderEvent.REFUND_OWED.value}', jsonb_build_object('refund', request_id,
        'amount_minor', amount_minor, 'currency', currency, 'cause', cause, 'reason', reason), id
    from added
)
select id from added
""")  # noqa: S608  (names from our own enums)

# The amount as it was asked for: of the row's something may have been refunded by somebody else since.
_ASKED = text(f"""
select f.id, (h.details->>'amount_minor')::bigint as asked_minor
from refunds f
join order_history h on h.order_id = f.order_id and h.settlement_id = f.id
    and h.event = '{OrderEvent.REFUND_OWED.value}'
where f.order_id = :order and f.request_id = :request
""")  # noqa: S608  (a name from our own enum)

_REST = text(f"""
select p.id, p.currency, {REST_MINOR} as rest_minor
from payments p
where p.order_id = :order and p.status = '{PaymentStatus.KEPT.value}'
order by rest_minor desc, p.created_at
limit 1
""")  # noqa: S608  (a name from our own enum)


async def _payment_with_rest(connection: AsyncConnection, order_id: str) -> Any:
    """The kept payment of an order of which the most is left, beside what is on its way back."""
    return (await connection.execute(_REST, {"order": order_id})).one_or_none()


def _check_rest(amount_minor: int | None, payment: Any) -> None:
    if amount_minor is None:
        return
    step = payable_step(payment.currency)
    if amount_minor % step:
        raise Invalid("No such amount can be paid.", fields={"amount_minor": f"must be a multiple of {step}"})
    if amount_minor > payment.rest_minor:
        left = show(payment.rest_minor, payment.currency)
        raise Invalid(
            f"Only {left} are left to be refunded.", fields={"amount_minor": f"must be at most {payment.rest_minor}"}
        )


async def load_refunds(connection: AsyncConnection, order_ids: Sequence[str]) -> dict[str, list[RefundShown]]:
    """What goes back, by order: our own refunds, and those that somebody made at the provider."""
    shown: dict[str, list[RefundShown]] = {}
    for row in await connection.execute(_SHOWN, {"orders": list(order_ids)}):
        shown.setdefault(row.order_id, []).append(RefundShown(row.id, row.amount_minor, RefundStatus(row.status)))
    return shown
