"""Money that goes back, as the books have it: what is owed, and what the news of a provider make of it.

Functions on a connection, within a transaction of the caller's. Everything is worked out anew from the rows of the
provider's refunds, whose state only rises, so news in any order and any number of times end in the same rows.
Locks are taken in one order: the order, its payments, their refunds, what the provider says of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import orjson
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.domain import RefundCause

# ruff: noqa: S608 (the statements are put together from constants of this file)

PaymentName = tuple[str, str]
"""A payment by provider and reference."""

PAUSE_AFTER_FAILURE: Final = "least(interval '1 hour', interval '1 minute' * 2 ^ least(f.round - 1, 10))"
"""How long a refund that failed at the provider waits before it is asked for again."""

# What is neither back nor on its way of a payment ``p``.
REST_MINOR: Final = """p.amount_minor - p.refunded_minor - coalesce(
    (select sum(f.amount_minor) from refunds f where f.payment_id = p.id and f.status <> 'refunded'), 0)::bigint"""

_ENTER = f"""
    select p.id, p.tenant, p.order_id, p.currency, n.cause, {REST_MINOR} as left_minor
    from payments p join named n on n.id = p.id
    where p.status = 'refund_owed'
), added as (
    insert into refunds (tenant, order_id, payment_id, cause, amount_minor, currency, status)
    select tenant, order_id, id, cause, left_minor, currency, 'owed' from owing o where left_minor > 0
        -- Whoever owes has the payment locked, so what is owed by ourselves is entered once at a time.
        and not exists (select from refunds f
            where f.payment_id = o.id and f.cause <> 'requested' and f.status <> 'refunded')
    returning id, order_id, amount_minor, currency, cause
)
insert into order_history (order_id, event, details, settlement_id)
select order_id, 'refund_owed', jsonb_build_object(
    'refund', id, 'amount_minor', amount_minor, 'currency', currency, 'cause', cause), id
from added where order_id is not null
"""

_SET_OWED = text("""
update payments as p set status = 'refund_owed'
from json_to_recordset(cast(:rows as json)) as n(provider text, ref text)
where p.provider = n.provider and p.ref = n.ref and p.status = 'flagged'
""")

_OWE = text(f"""
with named as (
    select p.id, n.cause from payments p
    join json_to_recordset(cast(:rows as json)) as n(provider text, ref text, cause text)
        on p.provider = n.provider and p.ref = n.ref
), owing as ({_ENTER}""")

_PAYMENTS_KEPT = text("""
update payments set status = 'refund_owed' where order_id = any(:orders) and status = 'kept'
returning provider, ref
""")

# A mismatched payment and then the right one, under one reference: the provider has one payment, and it is the right
# one. What was owed for the first is owed no more, unless the provider was asked for it already.
_FORGIVE = text("""
delete from refunds f
using payments p, json_to_recordset(cast(:rows as json)) as n(provider text, ref text, order_id text)
where p.provider = n.provider and p.ref = n.ref and p.order_id = n.order_id
    and f.payment_id = p.id and f.cause = 'mismatched' and f.called_at is null
    and not exists (select from provider_refunds r where r.refund_id = f.id)
""")
_CORRECT = text("""
update payments p
set amount_minor = n.amount_minor, currency = n.currency, status = n.status, settlement_id = n.settlement_id,
    refunded_minor = 0
from json_to_recordset(cast(:rows as json))
    as n(provider text, ref text, order_id text, amount_minor bigint, currency text, status text,
        settlement_id text)
where p.provider = n.provider and p.ref = n.ref and p.order_id = n.order_id
    and p.status <> 'kept' and not exists (select from refunds f where f.payment_id = p.id)
    and exists (select from settlements s where s.id = p.settlement_id and s.state = 'mismatched')
""")

_NAMED = """
named as (
    select p.* from payments p
    join json_to_recordset(cast(:rows as json)) as n(provider text, ref text)
        on p.provider = n.provider and p.ref = n.ref
)"""

_LOCK_ORDERS = text(f"""
with {_NAMED}
select o.id from orders o where o.id in (select order_id from named) order by o.id for update
""")

_LOCK_PAYMENTS = text("""
select p.id from payments p
join json_to_recordset(cast(:rows as json)) as n(provider text, ref text) on p.provider = n.provider and p.ref = n.ref
order by p.id for update of p
""")

_COUNT_PAYMENTS = text(f"""
with {_NAMED}, sums as (
    select p.id,
        coalesce(sum(r.amount_minor) filter (where r.status = 'succeeded'), 0) as succeeded,
        coalesce(sum(r.amount_minor) filter (where r.status = 'failed'), 0) as failed,
        coalesce(max(t.total_minor), 0) as total
    from named p
    left join provider_refunds r on r.provider = p.provider and r.payment_ref = p.ref
        and upper(r.currency) = upper(p.currency)
    left join refund_totals t on t.provider = p.provider and t.payment_ref = p.ref
        and upper(t.currency) = upper(p.currency)
    group by p.id
), counted as (
    -- A total knows of refunds whose own news are still to come, and of those that have failed since.
    select p.id, least(p.amount_minor, greatest(s.succeeded, s.total - s.failed)) as refunded
    from named p join sums s on s.id = p.id
)
update payments p set refunded_minor = c.refunded, status = case
    when p.amount_minor > 0 and c.refunded >= p.amount_minor then 'refunded'
    when p.status <> 'refunded' then p.status
    when exists (select from refunds f where f.payment_id = p.id and f.cause <> 'requested')
        or exists (select from order_history h where h.order_id = p.order_id and h.event = 'cancelled')
        then 'refund_owed'
    when exists (select from settlements s where s.id = p.settlement_id and s.state = 'mismatched') then 'flagged'
    else 'kept' end
from counted c where c.id = p.id
""")

# Per refund of ours what the provider says of its present round. What went back in whichever round is back; what
# failed in one failed only if nothing else of it did better.
_FOLLOW = text(f"""
with {_NAMED}, news as (
    select r.refund_id, r.reason, r.status,
        row_number() over (partition by r.refund_id order by
            case r.status when 'succeeded' then 0 when 'pending' then 1 else 2 end, r.ref) as rank
    from provider_refunds r join named p on r.provider = p.provider and r.payment_ref = p.ref
    join refunds f on f.id = r.refund_id and f.payment_id = p.id and (f.round = r.round or r.status <> 'failed')
)
update refunds f set
    status = case n.status when 'succeeded' then 'refunded' when 'pending' then 'pending' else 'owed' end,
    claim = null, claimed_at = null,
    refunded_at = case n.status when 'succeeded' then coalesce(f.refunded_at, now()) end,
    round = f.round + case n.status when 'failed' then 1 else 0 end,
    called_at = case n.status when 'failed' then null else f.called_at end,
    next_try_at = case n.status when 'succeeded' then f.next_try_at when 'failed' then now() + {PAUSE_AFTER_FAILURE}
        else now() + interval '1 hour' end,
    last_error = case n.status when 'failed' then coalesce(n.reason, 'failed at the provider') end
from news n
where n.refund_id = f.id and n.rank = 1 and case n.status
    when 'succeeded' then f.status <> 'refunded'
    -- Done before, and what did it has failed since; unless it was closed because nothing was left.
    when 'pending' then f.status in ('owed', 'requesting') or (f.status = 'refunded' and exists (
        select from provider_refunds r where r.refund_id = f.id and r.status = 'failed'))
    else true end
""")

# Somebody refunded at the provider what we owe, or a part of it: we owe the rest, the oldest first. What a worker has
# in hand, or may have asked for, keeps its amount.
_CUT = text(f"""
with {_NAMED}, room as (
    select f.id, p.amount_minor - p.refunded_minor - coalesce(sum(f.amount_minor) over (
        partition by f.payment_id order by f.status = 'owed' and f.called_at is null, f.created_at, f.id
        rows between unbounded preceding and 1 preceding), 0) as left_minor
    from refunds f join named p on p.id = f.payment_id
    where f.status <> 'refunded'
)
update refunds f set
    amount_minor = case when r.left_minor > 0 then r.left_minor else f.amount_minor end,
    status = case when r.left_minor > 0 then 'owed' else 'refunded' end,
    refunded_at = case when r.left_minor > 0 then null else now() end
from room r
where r.id = f.id and f.status = 'owed' and f.called_at is null and f.amount_minor > r.left_minor
""")

# A refund that was taken for done failed after all: what is left of its payment is owed again.
_OWE_AGAIN = text(f"""
with named as (
    select p.id, coalesce((
        select f.cause from refunds f where f.payment_id = p.id and f.cause <> 'requested'
        order by f.created_at desc limit 1), 'cancelled') as cause
    from payments p
    join json_to_recordset(cast(:rows as json)) as n(provider text, ref text)
        on p.provider = n.provider and p.ref = n.ref
), owing as ({_ENTER}""")

_WITH_NEWS = text(f"""
with {_NAMED}
select p.provider, p.ref from named p
where exists (select from provider_refunds r where r.provider = p.provider and r.payment_ref = p.ref)
    or exists (select from refund_totals t where t.provider = p.provider and t.payment_ref = p.ref)
    or exists (select from disputes d where d.provider = p.provider and d.payment_ref = p.ref)
""")

_COUNT_ORDERS = text(f"""
with {_NAMED}, sums as (
    select p.order_id, sum(p.refunded_minor) as refunded,
        bool_and(p.status = 'refunded' or p.amount_minor = 0)
            and bool_or(p.amount_minor > 0 and s.state is distinct from 'mismatched') as is_all_back
    from payments p left join settlements s on s.id = p.settlement_id
    where p.order_id in (select order_id from named)
    group by p.order_id
)
update orders o set refunded_minor = s.refunded, status = case
    when s.is_all_back and o.status in ('paid', 'confirmed', 'cancelled') then 'refunded'
    when s.is_all_back or o.status <> 'refunded' then o.status
    -- A refund failed after all: what it was before.
    else coalesce((
        select case h.event when 'refund_due' then 'cancelled' else h.event end
        from order_history h
        where h.order_id = o.id and h.event in ('paid', 'confirmed', 'cancelled', 'refund_due')
        order by case h.event when 'cancelled' then 0 when 'confirmed' then 1 when 'paid' then 2 else 3 end limit 1
    ), 'cancelled') end
from sums s where s.order_id = o.id
""")

_TELL_REFUNDS = text(f"""
with {_NAMED}
insert into order_history (order_id, event, details, settlement_id)
select p.order_id,
    case r.status when 'succeeded' then 'refunded' when 'pending' then 'refund_pending' else 'refund_failed' end,
    jsonb_strip_nulls(jsonb_build_object('refund', coalesce(f.request_id, r.refund_id), 'provider', r.provider,
        'ref', r.ref, 'amount_minor', r.amount_minor, 'currency', r.currency, 'reason', r.reason)),
    r.ref || ':' || r.status
from provider_refunds r join named p on r.provider = p.provider and r.payment_ref = p.ref
left join refunds f on f.id = r.refund_id
where not r.counted and p.order_id is not null
on conflict (order_id, event, settlement_id) do nothing
""")
# Of what no refund of its own has told: some shops listen to totals only.
_TELL_TOTALS = text(f"""
with {_NAMED}
insert into order_history (order_id, event, details, settlement_id)
select p.order_id, 'refund_total',
    jsonb_build_object('provider', t.provider, 'refunded_in_all_minor', t.total_minor, 'currency', t.currency),
    'total:' || p.ref || ':' || t.total_minor
from refund_totals t join named p on t.provider = p.provider and t.payment_ref = p.ref
where not t.counted and p.order_id is not null and t.total_minor > (
    select coalesce(sum(r.amount_minor), 0) from provider_refunds r
    where r.provider = p.provider and r.payment_ref = p.ref and r.status = 'succeeded')
on conflict (order_id, event, settlement_id) do nothing
""")
_TELL_DISPUTES = text(f"""
with {_NAMED}
insert into order_history (order_id, event, details, settlement_id)
select p.order_id, 'disputed',
    jsonb_strip_nulls(jsonb_build_object('dispute', d.ref, 'provider', d.provider, 'status', d.status,
        'amount_minor', d.amount_minor, 'currency', d.currency, 'reason', d.reason)),
    d.ref || ':' || d.status
from disputes d join named p on d.provider = p.provider and d.payment_ref = p.ref
where not d.counted and p.order_id is not null
on conflict (order_id, event, settlement_id) do nothing
""")
_MARK_COUNTED: Final = tuple(
    text(f"""
with {_NAMED}
update {table} as r set counted = true
from named p where r.provider = p.provider and r.payment_ref = p.ref and not r.counted
""")
    for table in ("provider_refunds", "refund_totals", "disputes")
)


_COUNT: Final = (
    _TELL_REFUNDS,
    _TELL_TOTALS,
    _TELL_DISPUTES,
    _COUNT_PAYMENTS,
    _FOLLOW,
    _CUT,
    _OWE_AGAIN,
    _COUNT_ORDERS,
    *_MARK_COUNTED,
)


async def owe_refunds(connection: AsyncConnection, owed: Mapping[PaymentName, RefundCause]) -> None:
    """Enter into the ledger what is left of payments that have to go back; once, however often it is asked.

    Of a payment of 0, or of one whose refunds under way cover it, nothing is entered.
    """
    rows = [{"provider": provider, "ref": ref, "cause": cause} for (provider, ref), cause in sorted(owed.items())]
    await _execute(connection, _SET_OWED, rows)
    await _execute(connection, _OWE, rows)


async def owe_all_of(connection: AsyncConnection, orders: Collection[str], cause: RefundCause) -> None:
    """Owe back every payment that was kept for these orders."""
    if orders:
        kept = await connection.execute(_PAYMENTS_KEPT, {"orders": sorted(orders)})
        await owe_refunds(connection, {(row.provider, row.ref): cause for row in kept})


async def correct_mismatched(connection: AsyncConnection, payments: list[dict[str, Any]]) -> None:
    """Take payments that first came with another amount for what they are, and owe nothing for that any more."""
    await _execute(connection, _FORGIVE, payments)
    await _execute(connection, _CORRECT, payments)


async def lock_orders_of(connection: AsyncConnection, payments: Iterable[PaymentName]) -> bool:
    """Lock the orders that these payments are for, then the payments; False when none of them is known."""
    rows = _named(payments)
    if not rows:
        return False
    await _execute(connection, _LOCK_ORDERS, rows)
    locked = await connection.execute(_LOCK_PAYMENTS, {"rows": orjson.dumps(rows).decode()})
    return bool(locked.all())


async def count_news(connection: AsyncConnection, payments: Iterable[PaymentName]) -> None:
    """Bring payments, their refunds and orders to what the provider's news say of them, and tell it in the history.

    What names a payment that isn't there stays uncounted. The orders must be locked, or have been written to.
    """
    named = _named(payments)
    if not named:
        return
    # Nearly every payment comes without any news of refunds, and the persister counts each.
    found = await connection.execute(_WITH_NEWS, {"rows": orjson.dumps(named).decode()})
    rows = _named((row.provider, row.ref) for row in found)
    for statement in _COUNT:
        await _execute(connection, statement, rows)


def _named(payments: Iterable[PaymentName]) -> list[dict[str, Any]]:
    return [{"provider": provider, "ref": ref} for provider, ref in sorted(set(payments))]


async def _execute(connection: AsyncConnection, statement: Any, rows: list[dict[str, Any]]) -> None:
    if rows:
        await connection.execute(statement, {"rows": orjson.dumps(rows).decode()})
