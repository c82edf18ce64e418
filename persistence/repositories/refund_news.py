"""Taking down what a provider says of refunds and disputes: one row per object of theirs, whose state only rises.

Within a transaction of the caller's, who has locked the payment's order, if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.domain import Provider
from engine.payments.port import Dispute, ProviderRefund, ProviderRefundStatus, RefundTotal

UNNAMED: Final = "event:"
"""Begins the ref of a row that events told of without the provider's id; whoever learns the id puts it in."""

_RANKS = {status.value: rank for rank, status in enumerate(ProviderRefundStatus)}

# Two events of one payment at one moment, whose order nobody has to lock.
_IN_TURN = text("select pg_advisory_xact_lock(hashtextextended(:name, 0))")

_ROWS = text("""
select ref, alias, refund_id, amount_minor, currency, status from provider_refunds
where provider = :provider and payment_ref = :payment_ref
order by refund_id is null, first_seen_at, ref
""")

_ADD = text("""
insert into provider_refunds
    (provider, ref, alias, payment_ref, refund_id, round, amount_minor, currency, status, reason)
select :provider, :ref, :alias, :payment_ref, f.id, case when f.id is not null then coalesce(:round, f.round) end,
    :amount, :currency, :status, :reason
from (select 1) as one left join refunds f on f.id = :refund
on conflict (provider, ref) do nothing
""")

_RAISE = text("""
update provider_refunds r set
    ref = :ref, alias = coalesce(r.alias, :alias),
    refund_id = coalesce(r.refund_id, f.id),
    round = case when r.refund_id is not null then r.round when f.id is not null then coalesce(:round, f.round) end,
    status = :status, reason = coalesce(:reason, r.reason),
    counted = r.counted and r.status = :status
from (select 1) as one left join refunds f on f.id = :refund
where r.provider = :provider and r.ref = :before
""")

_IS_TAKEN = text("select exists (select from provider_refunds where provider = :provider and ref = :ref)")

_TOTAL = text("""
insert into refund_totals as t (provider, payment_ref, total_minor, currency)
values (:provider, :payment_ref, :total, :currency)
on conflict (provider, payment_ref) do update set
    total_minor = greatest(t.total_minor, excluded.total_minor),
    counted = t.counted and excluded.total_minor <= t.total_minor
""")

_DISPUTE = text("""
insert into disputes as d (provider, ref, payment_ref, amount_minor, currency, status, reason, is_closed)
values (:provider, :ref, :payment_ref, :amount, :currency, :status, :reason, :closed)
on conflict (provider, ref) do update set
    status = excluded.status, is_closed = excluded.is_closed, reason = coalesce(excluded.reason, d.reason),
    counted = false
where not d.is_closed and (excluded.is_closed
    or coalesce(array_position(cast(:stages as text[]), excluded.status), 0)
        > coalesce(array_position(cast(:stages as text[]), d.status), 0))
""")

_STAGES: Final = [
    "warning_needs_response",
    "warning_under_review",
    "needs_response",
    "under_review",
    "awaiting-merchant-feedback",
    "awaiting-bank-feedback",
    "pending",
]
"""How far an open dispute is, as Stripe and Paystack call it; news of an earlier stage change nothing."""


async def note_refund(connection: AsyncConnection, provider: Provider, refund: ProviderRefund) -> None:
    """Take down one refund; news that are older than what stands, or say the same, change nothing."""
    await connection.execute(_IN_TURN, {"name": f"refunds:{provider.value}:{refund.payment_ref}"})
    rows = (await connection.execute(_ROWS, {"provider": provider.value, "payment_ref": refund.payment_ref})).all()
    known = _row_of(rows, refund)
    values: dict[str, Any] = {
        "provider": provider.value,
        "payment_ref": refund.payment_ref,
        "ref": refund.ref or f"{UNNAMED}{refund.alias or f'{refund.payment_ref}:{refund.amount_minor}'}",
        "alias": refund.alias,
        "refund": refund.marked_refund_id,
        "round": refund.marked_round,
        "amount": refund.amount_minor,
        "currency": refund.currency,
        "status": refund.status.value,
        "reason": refund.reason,
    }
    if known is None:
        await connection.execute(_ADD, values)
        return
    values["ref"] = await _name_of(connection, known, refund, values)
    values["status"] = max(refund.status.value, known.status, key=_RANKS.__getitem__)
    await connection.execute(_RAISE, values | {"before": known.ref})


async def _name_of(
    connection: AsyncConnection, known: Row[Any], refund: ProviderRefund, values: Mapping[str, Any]
) -> str:
    """What a row that is there already goes by from now on."""
    if refund.ref is not None:
        # A provider that uses one id for refunds of two payments: each keeps the name that it has.
        is_free = refund.ref == known.ref or not await connection.scalar(_IS_TAKEN, values)
        return refund.ref if is_free else str(known.ref)
    if refund.alias is not None and known.ref.startswith(UNNAMED):
        # The same name, whether the event that brought it came first or last.
        return f"{UNNAMED}{known.alias or refund.alias}"
    return str(known.ref)


def _row_of(rows: Sequence[Row[Any]], refund: ProviderRefund) -> Row[Any] | None:
    """The row that a refund stands in already: by id, by the name that events use, or else by its amount."""
    if refund.ref is not None and (named := _first(row for row in rows if row.ref == refund.ref)):
        return named
    if refund.alias is not None and (named := _first(row for row in rows if row.alias == refund.alias)):
        return named
    alike = [row for row in rows if (row.amount_minor, row.currency) == (refund.amount_minor, refund.currency)]
    if refund.ref is not None:
        # Told of by events only, and not by another name than this one has.
        return _first(row for row in alike if row.ref.startswith(UNNAMED) and None in (row.alias, refund.alias))
    if refund.alias is not None:
        return _first(row for row in alike if row.alias is None)
    return _first(alike)


def _first(rows: Any) -> Row[Any] | None:
    return next(iter(rows), None)


async def note_total(connection: AsyncConnection, provider: Provider, total: RefundTotal) -> None:
    """Take down how much of a payment has gone back in all; the most that was ever said counts."""
    await connection.execute(
        _TOTAL,
        {
            "provider": provider.value,
            "payment_ref": total.payment_ref,
            "total": total.total_minor,
            "currency": total.currency,
        },
    )


async def note_dispute(connection: AsyncConnection, provider: Provider, dispute: Dispute) -> None:
    """Take down a dispute as it is now; once it is closed nothing older opens it again."""
    await connection.execute(
        _DISPUTE,
        {
            "provider": provider.value,
            "ref": dispute.ref,
            "payment_ref": dispute.payment_ref,
            "amount": dispute.amount_minor,
            "currency": dispute.currency,
            "status": dispute.status,
            "reason": dispute.reason,
            "closed": dispute.is_closed,
            "stages": _STAGES,
        },
    )
