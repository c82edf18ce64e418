"""A crash at every await of checkout and of settlement: afterwards either nothing is held or payable, or all is well.

The crash is no ``Exception``, so nothing that tidies up after an error runs: what is left is what a killed process
leaves. Each place is crashed twice: before the call took effect, and after it did while the answer was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from engine.checkout import CheckoutService
from engine.code_reservations import CodeReservations
from engine.domain import OrderStatus, Provider
from engine.paying import Paying
from engine.payments.port import EventKind, SessionState
from engine.pricing import WantedLine
from engine.settlement import SettlementService
from tests.crashing import MOST_CALLS, Crash, Fuse
from tests.shop import Shop, event, open_shop

if TYPE_CHECKING:
    from tests.conftest import RedisBackend


def dying_checkout(shop: Shop, fuse: Fuse) -> CheckoutService:
    """The shop's checkout as a process of its own, whose every way out passes the fuse."""
    engine = fuse.around(shop.engine)
    held = CodeReservations(
        shop.settings, engine, fuse.around(shop.held._lookup), fuse.around(shop.held._catalogue), shop.definitions
    )
    orders, attempts = fuse.around(shop.orders), fuse.around(shop.attempts)
    paying = Paying(
        held=held,
        orders=orders,
        attempts=attempts,
        payments={provider: fuse.around(port) for provider, port in shop.payments.items()},
        settlements=dying_settlement(shop, fuse),
        most_attempts=shop.settings.checkout_attempts,
    )
    return CheckoutService(
        held=held,
        orders=orders,
        paying=paying,
        offered=frozenset(shop.payments),
    )


def dying_settlement(shop: Shop, fuse: Fuse) -> SettlementService:
    """The shop's settlement, likewise."""
    return SettlementService(
        fuse.around(shop.settlements), fuse.around(shop.engine), shop.settings.delayed_hold_seconds
    )


@pytest.fixture
async def shop(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Shop]:
    async with open_shop(redis_backend.url, database_url) as opened:
        await opened.stock(cap=None)
        yield opened


async def crash_everywhere(shop: Shop, *, after: bool) -> list[str]:
    """One checkout for each place to crash at; answers the keys, the last of which met no crash."""
    keys = []
    real = shop.checkout
    for place in range(1, MOST_CALLS):
        fuse = Fuse(place, after=after)
        shop.checkout = dying_checkout(shop, fuse)
        key = f"k{place}"
        keys.append(key)
        try:
            await shop.buy(key, customer=f"c{place}")
        except Crash:
            continue
        finally:
            shop.checkout = real
        assert fuse.calls < place, "the crash was swallowed"
        return keys
    raise AssertionError("checkout never came to its end")


@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
async def test_a_repeat_after_a_crash_anywhere_ends_in_one_paid_order(shop: Shop, after: bool) -> None:
    keys = await crash_everywhere(shop, after=after)
    assert len(keys) > 6
    for key in keys:
        answer = await shop.buy(key, customer=f"c{key[1:]}")
        assert answer.attempt is not None
        session = answer.attempt.session_id or ""
        shop.provider.pay(session)
        await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, session))
    await shop.persist()
    assert await shop.rows("select status, count(*) from orders group by 1") == [("paid", len(keys))]
    assert await shop.rows("select status, count(*) from payments group by 1") == [("kept", len(keys))]
    pool = await shop.pool()
    assert (pool.reserved, pool.completed, shop.provider.payable) == (0, len(keys), [])


@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
async def test_without_a_repeat_nothing_stays_reserved_or_payable(shop: Shop, after: bool) -> None:
    keys = await crash_everywhere(shop, after=after)
    await shop.advance(2500)
    await shop.overdue.close()
    await shop.persist()
    pool = await shop.pool()
    assert (pool.reserved, pool.completed, shop.provider.payable) == (0, 0, [])
    assert await shop.rows("select count(*) from attempts where status in ('frozen', 'open', 'paid')") == [(0,)]
    orders = await shop.rows("select id from orders")
    assert 0 < len(orders) <= len(keys)
    for (order_id,) in orders:
        assert (await shop.reader.order("school", order_id)).order.status is OrderStatus.CANCELLED


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
async def test_a_buyer_who_hangs_up_anywhere_leaves_the_whole(shop: Shop, after: bool) -> None:
    hung_up = 0
    for place in range(1, MOST_CALLS):
        asking: list[asyncio.Task[object]] = []
        fuse = Fuse(place, after=after, blow=lambda asking=asking: asking[0].cancel())  # type: ignore[misc]
        checkout, real = dying_checkout(shop, fuse), shop.checkout
        shop.checkout = checkout
        asking.append(asyncio.ensure_future(shop.buy(f"k{place}", customer=f"c{place}")))
        await asyncio.wait(asking)
        shop.checkout = real
        await checkout.close()
        if not asking[0].cancelled():
            break
        hung_up += 1
    assert hung_up > 6
    whole = await shop.rows("select count(*) from attempts where status = 'open' and session_id is not null")
    assert whole == [(hung_up + 1,)]
    assert ((await shop.pool()).reserved, len(shop.provider.payable)) == (hung_up + 1, hung_up + 1)
    again = await shop.buy("k3", customer="c3")
    assert again.attempt is not None
    assert again.attempt.url is not None
    assert (await shop.pool()).reserved == hung_up + 1


@pytest.mark.parametrize("provider", [Provider.STRIPE, Provider.PAYSTACK])
@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
async def test_a_crash_anywhere_in_a_further_attempt_loses_nothing(shop: Shop, after: bool, provider: Provider) -> None:
    """The same customer asks again, and the process dies: some repeat, some pay where they can, some walk away."""
    await shop.stock(cap=None, per_customer=1)
    await shop.stock_naira()
    port = shop.provider if provider is Provider.STRIPE else shop.paystack
    wish: dict[str, Any] = {"provider": provider}
    if provider is Provider.PAYSTACK:
        wish["lines"] = (WantedLine("ng", 1),)
    orders, real = [], shop.checkout
    for place in range(1, MOST_CALLS):
        customer = f"c{place}"
        first = await shop.buy(f"first{place}", customer=customer, **wish)
        fuse = Fuse(place, after=after)
        shop.checkout = dying_checkout(shop, fuse)
        orders.append(first.order.id)
        try:
            await shop.buy(f"again{place}", customer=customer, **wish)
        except Crash:
            pass
        else:
            break
        finally:
            shop.checkout = real
        if place % 3 == 0:
            repeated = await shop.buy(f"again{place}", customer=customer, **wish)
            assert repeated.order.id == first.order.id
    assert len(orders) > 8
    on_offer = [session for session in port.payable if port.sessions_end]
    assert len({port.sessions[session].marked_order_id for session in on_offer}) == len(on_offer)
    paid = pay_half(shop, provider)
    for session in paid:
        facts = {"amount_minor": 225000, "currency": "NGN"} if provider is Provider.PAYSTACK else {}
        ref = port.sessions[session].payment_ref
        await shop.settlement.receive(provider, event(EventKind.PAID, session, payment_ref=ref, **facts))
    await shop.advance(2500)
    await shop.overdue.close()
    await shop.persist()
    bought = {port.sessions[session].marked_order_id for session in paid}
    for order_id in orders:
        order = (await shop.reader.order("school", order_id)).order
        assert order.status is (OrderStatus.PAID if order_id in bought else OrderStatus.CANCELLED)
    kept = await shop.rows("select count(*) from payments where status = 'kept'")
    assert kept == [(len(bought),)]
    pool = await shop.pool()
    assert (pool.reserved, pool.completed) == (0, len(bought))
    assert await shop.rows("select count(*) from attempts where status in ('frozen', 'open', 'closing')") == [(0,)]


def pay_half(shop: Shop, provider: Provider) -> list[str]:
    """Every second session that can be paid is paid; answers which."""
    port = shop.provider if provider is Provider.STRIPE else shop.paystack
    chosen = port.payable[::2]
    for session in chosen:
        port.pay(session)
    return chosen


@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
async def test_a_crash_anywhere_in_settlement_is_mended_by_a_delivery_or_the_job(shop: Shop, after: bool) -> None:
    places = 0
    for place in range(1, MOST_CALLS):
        answer = await shop.buy(f"k{place}", customer=f"c{place}")
        session = answer.attempt.session_id if answer.attempt else None
        assert session is not None
        shop.provider.pay(session)
        paid = event(EventKind.PAID, session, dedup_key=f"evt_place_{place}")
        fuse = Fuse(place, after=after)
        dying = dying_settlement(shop, fuse)
        try:
            await dying.receive(Provider.STRIPE, paid)
        except Crash:
            if paid.dedup_key not in {key for (key,) in await shop.rows("select dedup_key from settlements")}:
                # Not committed, so the provider was not told 200 and comes again.
                await shop.settlement.receive(Provider.STRIPE, paid)
            else:
                for waiting in await shop.settlements.load_waiting_of(answer.order.id):
                    await shop.settlement.apply_quietly(waiting)
            places += 1
            continue
        break
    assert places >= 4
    await shop.persist()
    assert await shop.rows("select status, count(*) from orders group by 1") == [("paid", places + 1)]
    assert await shop.rows("select state, count(*) from settlements group by 1") == [("applied", places + 1)]
    pool = await shop.pool()
    assert (pool.reserved, pool.completed) == (0, places + 1)
    assert all(s.state is SessionState.PAID for s in shop.provider.sessions.values())
