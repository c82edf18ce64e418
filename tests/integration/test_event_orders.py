"""Whatever the order in which a provider tells of one payment, and however often: the rows are the same in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from engine.domain import Provider
from engine.errors import StorageUnavailable
from engine.payments.port import (
    Dispute,
    EventKind,
    ProviderEvent,
    ProviderRefund,
    ProviderRefundStatus,
    RefundTotal,
)
from engine.pricing import WantedLine
from tests.shop import Shop, event, open_shop

if TYPE_CHECKING:
    from tests.conftest import RedisBackend

ORDERINGS = 20
_numbers = count(1)

ROWS = {
    "orders": "select status, late, refunded_minor from orders where id = '{order}'",
    "attempts": "select number, status, session_id from attempts where order_id = '{order}' order by 1",
    "payments": "select ref, amount_minor, status, refunded_minor from payments where order_id = '{order}' order by 1",
    "settlements": "select dedup_key, kind, state from settlements where order_id = '{order}' order by 1",
    "provider_refunds": "select alias, amount_minor, status, counted from provider_refunds"
    " where payment_ref = '{payment}' order by 1, 2",
    "totals": "select total_minor, counted from refund_totals where payment_ref = '{payment}'",
    "disputes": "select ref, status, is_closed, counted from disputes where payment_ref = '{payment}'",
    "refunds": "select cause, amount_minor, status from refunds where order_id = '{order}'",
    "reservation": "select r.status, r.late, r.over_cap from reservations r join orders o on o.reservation_id = r.id"
    " where o.id = '{order}'",
    # Of money on its way there is nothing to tell any more once it is there, nor of totals once their parts are known.
    "history": "select distinct event from order_history where order_id = '{order}'"
    " and event not in ('payment_pending', 'refund_pending', 'refund_owed', 'refund_total') order by 1",
}


@pytest.fixture
async def shop(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Shop]:
    async with open_shop(redis_backend.url, database_url) as opened:
        await opened.stock(cap=None)
        await opened.stock_naira()
        yield opened


def news(name: str, payment: str, **facts: Any) -> ProviderEvent:
    kind = EventKind.DISPUTE if "dispute" in facts else EventKind.REFUND
    return ProviderEvent(kind, name, f"{name}:{next(_numbers)}", None, payment, None, None, None, **facts)


def refund(
    payment: str, amount: int, status: str, *, ref: str | None = None, alias: str | None = None
) -> ProviderEvent:
    currency = "GBP" if ref else "NGN"
    told = ProviderRefund(ref, payment, amount, currency, ProviderRefundStatus(status), alias=alias)
    return news(f"refund.{status}", payment, refund=told)


def of_stripe(session: str) -> list[ProviderEvent]:
    payment = f"pi_{session}"
    return [
        event(EventKind.UNPAID, session, dedup_key=f"{session}:unpaid"),
        event(EventKind.PAID, session, dedup_key=f"{session}:paid"),
        event(EventKind.PAID, session, dedup_key=f"{session}:paid again"),
        refund(payment, 1000, "pending", ref=f"re_1_{session}"),
        refund(payment, 1000, "succeeded", ref=f"re_1_{session}"),
        refund(payment, 500, "succeeded", ref=f"re_2_{session}"),
        refund(payment, 700, "succeeded", ref=f"re_3_{session}"),
        refund(payment, 700, "failed", ref=f"re_3_{session}"),
        news("charge.refunded", payment, refund_total=RefundTotal(payment, 1000, "GBP")),
        news("charge.refunded", payment, refund_total=RefundTotal(payment, 1500, "GBP")),
        news("dispute", payment, dispute=Dispute(f"dp_{session}", payment, 4410, "GBP", "needs_response", None, False)),
        news("dispute", payment, dispute=Dispute(f"dp_{session}", payment, 4410, "GBP", "lost", None, True)),
    ]


def of_paystack(session: str) -> list[ProviderEvent]:
    def charge(amount: int, currency: str = "NGN") -> ProviderEvent:
        return event(
            EventKind.PAID,
            session,
            amount_minor=amount,
            currency=currency,
            payment_ref=session,
            dedup_key=f"charge.success|{session}|{amount}|{currency}|success",
        )

    return [
        charge(225000),
        charge(1000),
        charge(225000, "GHS"),
        refund(session, 100000, "pending"),
        refund(session, 100000, "pending", alias=f"trf_{session}"),
        refund(session, 100000, "succeeded", alias=f"trf_{session}"),
        refund(session, 25000, "succeeded", alias=f"trf_2_{session}"),
    ]


async def tell(shop: Shop, provider: Provider, events: Sequence[ProviderEvent]) -> None:
    for one in events:
        while True:
            try:
                if one.kind in (EventKind.REFUND, EventKind.DISPUTE):
                    await shop.refunds.receive(provider, one)
                else:
                    await shop.settlement.receive(provider, one)
                break
            except StorageUnavailable:
                continue
        await shop.persist()
    await shop.refunds.count_pending()


async def rows_of(shop: Shop, order: str, session: str, payment: str) -> dict[str, str]:
    """Every row about one order, with what is its own written the same for all."""
    found = {}
    for name, query in ROWS.items():
        rows = await shop.rows(query.format(order=order, payment=payment))
        found[name] = repr(rows).replace(session, "SESSION").replace(order, "ORDER")
    return found


@pytest.mark.parametrize("provider", [Provider.STRIPE, Provider.PAYSTACK])
async def test_every_order_and_number_of_events_ends_in_the_same_rows(shop: Shop, provider: Provider) -> None:
    seen: dict[str, str] | None = None
    for seed in range(ORDERINGS):
        random = Random(seed)  # noqa: S311  (an ordering, no secret)
        lines = {} if provider is Provider.STRIPE else {"lines": (WantedLine("ng", 1),)}
        answer = await shop.buy(f"k{seed}", customer=f"c{seed}", provider=provider, **lines)
        assert answer.attempt is not None
        session = answer.attempt.session_id or ""
        is_stripe = provider is Provider.STRIPE
        events = of_stripe(session) if is_stripe else of_paystack(session)
        if seed:
            events += random.choices(events, k=4)
            random.shuffle(events)
        await tell(shop, provider, events)
        rows = await rows_of(shop, answer.order.id, session, f"pi_{session}" if is_stripe else session)
        if seen is None:
            seen = rows
            refunded = 1500 if is_stripe else 125000
            assert rows["orders"] == f"[('paid', False, {refunded})]"
        told = [one.type for one in events]
        assert rows == seen, f"seed {seed}: {told}"
    assert (await shop.pool()).completed == ORDERINGS
