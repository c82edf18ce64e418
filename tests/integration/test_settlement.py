"""Settlement: every event in any order, any number of times, with either server away, ends in the same rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from engine.code_reservations import Holder
from engine.domain import OrderStatus, Outcome, PaymentStatus, Provider, ReservationStatus
from engine.errors import IllegalTransition, NotReady, ProviderError, StorageUnavailable, Unknown
from engine.orders import OrderFilter
from engine.payments.port import EventKind
from tests.shop import CODE, PRODUCT, TENANT, Shop, event, open_shop

if TYPE_CHECKING:
    from api.servers import PostgresServer, RedisServer
    from tests.conftest import RedisBackend


@pytest.fixture
async def shop(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Shop]:
    async with open_shop(redis_backend.url, database_url) as opened:
        await opened.stock()
        yield opened


async def test_a_paid_session_pays_the_order_once_with_its_payment_and_history(shop: Shop) -> None:
    answer = await shop.buy("k1")
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1"))
    assert (await shop.pool()).completed == 1
    story = await shop.story(answer.order.id)
    assert (story.order.status, story.order.late) == (OrderStatus.PAID, False)
    (payment,) = story.payments
    assert (payment.ref, payment.amount_minor, payment.currency) == ("pi_cs_1", 4410, "GBP")
    assert payment.status is PaymentStatus.KEPT
    assert [entry.event for entry in story.history] == ["created", "session_opened", "paid"]
    redemptions = await shop.rows("select code, period, customer, order_id from redemptions")
    assert redemptions == [("SCHOOL10", "all", "ada", answer.order.id)]


async def test_whoever_waits_for_an_event_sees_its_effect(shop: Shop) -> None:
    answer = await shop.buy("k1")
    paid = event(EventKind.PAID, "cs_1")
    await shop.settlement.receive(Provider.STRIPE, paid)
    await asyncio.gather(shop.settlement.wait_for_effect(Provider.STRIPE, paid), shop.persist())
    assert (await shop.reader.order(TENANT, answer.order.id)).order.status is OrderStatus.PAID
    # Without a persister nobody waits for ever, nor for what never was stored.
    other = await shop.buy("k2", customer="bob")
    late = event(EventKind.PAID, other.attempt.session_id or "" if other.attempt else "")
    await shop.settlement.receive(Provider.STRIPE, late)
    await shop.settlement.wait_for_effect(Provider.STRIPE, late)
    await shop.settlement.wait_for_effect(Provider.STRIPE, event(EventKind.PAID, "cs_other"))


async def test_the_same_event_twice_at_the_same_moment_has_one_effect(shop: Shop) -> None:
    answer = await shop.buy("k1")
    paid = event(EventKind.PAID, "cs_1")
    await asyncio.gather(*(shop.settlement.receive(Provider.STRIPE, paid) for _ in range(8)))
    await shop.settlement.receive(Provider.STRIPE, paid)
    story = await shop.story(answer.order.id)
    assert (story.order.status, len(story.payments)) == (OrderStatus.PAID, 1)
    assert await shop.rows("select state, outcome from settlements") == [("applied", "completed")]
    assert (await shop.pool()).completed == 1
    assert [entry.event for entry in story.history].count("paid") == 1


async def test_a_repeated_event_does_not_wait_for_the_persister(shop: Shop) -> None:
    answer = await shop.buy("k1")
    paid = event(EventKind.PAID, "cs_1")
    await shop.settlement.receive(Provider.STRIPE, paid)
    async with shop.database.begin() as persister:
        await persister.execute(text("update settlements set tries = tries"))
        # It takes settlements before orders: a repeat that waits here with the order locked would be a deadlock.
        await shop.settlement.receive(Provider.STRIPE, paid)
        await persister.execute(text("update orders set late = late"))
    assert (await shop.order(answer.order.id)).status is OrderStatus.PAID


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_state_decides_not_the_order_of_arrival(shop: Shop, order: tuple[int, ...]) -> None:
    answer = await shop.buy("k1")
    # One second apart, in the same second, and the paid one stamped before the others.
    events = [
        event(EventKind.UNPAID, "cs_1", created_at_s=1623979265),
        event(EventKind.PAID, "cs_1", created_at_s=1623979265),
        event(EventKind.PAID, "cs_1", created_at_s=1623979266),
    ]
    for index in order:
        await shop.settlement.receive(Provider.STRIPE, events[index])
    story = await shop.story(answer.order.id)
    assert (story.order.status, len(story.payments)) == (OrderStatus.PAID, 1)
    pool = await shop.pool()
    assert (pool.completed, pool.reserved) == (1, 0)


async def test_an_unpaid_session_is_kept_and_not_completed(shop: Shop) -> None:
    answer = await shop.buy("k1")
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.UNPAID, "cs_1"))
    story = await shop.story(answer.order.id)
    assert story.order.status is OrderStatus.PENDING
    assert story.history[-1].event == "payment_pending"
    assert (await shop.pool()).reserved == 1


async def test_an_expired_session_gives_its_units_back_at_once(shop: Shop) -> None:
    answer = await shop.buy("k1")
    for _ in range(2):
        await shop.settlement.receive(Provider.STRIPE, event(EventKind.EXPIRED, "cs_1"))
    assert (await shop.pool()).reserved == 0
    assert (await shop.order(answer.order.id)).status is OrderStatus.CANCELLED


async def test_an_expiry_after_the_payment_changes_nothing(shop: Shop) -> None:
    answer = await shop.buy("k1")
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1"))
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.EXPIRED, "cs_1"))
    assert (await shop.order(answer.order.id)).status is OrderStatus.PAID
    outcomes = await shop.rows("select outcome from settlements order by received_at")
    assert outcomes == [("completed",), ("already_completed",)]
    assert (await shop.pool()).completed == 1


# One second of life is held where the clock stands still: contract/test_completing.py.
@pytest.mark.parametrize("left_s", [2280, 121, 120, 119, 60, -15])
async def test_settling_passes_the_same_guards_whatever_life_is_left(shop: Shop, left_s: int) -> None:
    await shop.stock(cap=1)
    answer = await shop.buy("k1")
    await shop.advance(2400 - left_s)
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1"))
    order = await shop.order(answer.order.id)
    # Fifteen seconds late is honoured and marked; in time, the reservation never counts against itself.
    assert (order.status, order.late) == (OrderStatus.PAID, left_s < 0)
    assert await shop.rows("select over_cap, late from reservations") == [(0, left_s < 0)]
    assert await shop.rows("select count(*) from payments where status <> 'kept'") == [(0,)]


async def test_a_late_payment_over_the_cap_is_honoured_and_marked(shop: Shop) -> None:
    await shop.stock(cap=1)
    first = await shop.buy("k1")
    await shop.advance(2401)
    second = await shop.buy("k2", customer="grace")
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_2"))
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1"))
    story = await shop.story(first.order.id)
    assert (story.order.status, story.order.late) == (OrderStatus.PAID, True)
    assert story.history[-1].details["over_cap"] == 1
    assert (await shop.order(second.order.id)).late is False
    assert (await shop.pool()).available == 0


async def test_a_second_payment_for_one_order_is_owed_back(shop: Shop) -> None:
    answer = await shop.buy("k1")
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1"))
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1", payment_ref="pi_other"))
    story = await shop.story(answer.order.id)
    assert [(p.ref, p.status.value) for p in story.payments] == [("pi_cs_1", "kept"), ("pi_other", "refund_owed")]
    assert (await shop.pool()).completed == 1


@pytest.mark.parametrize(
    ("amount_minor", "currency"), [(4409, "GBP"), (4411, "GBP"), (441000, "GBP"), (4410, "EUR"), (None, None)]
)
async def test_another_amount_or_currency_never_completes_and_is_owed_back(
    shop: Shop, amount_minor: int | None, currency: str | None
) -> None:
    answer = await shop.buy("k1")
    wrong = event(EventKind.PAID, "cs_1", amount_minor=amount_minor, currency=currency, payment_ref="pi_wrong")
    for _ in range(2):
        await shop.settlement.receive(Provider.STRIPE, wrong)
    story = await shop.story(answer.order.id)
    assert story.order.status is OrderStatus.PENDING
    owed = [] if amount_minor is None else [("pi_wrong", amount_minor, currency, PaymentStatus.REFUND_OWED)]
    assert [(p.ref, p.amount_minor, p.currency, p.status) for p in story.payments] == owed
    assert [entry.event for entry in story.history].count("amount_mismatch") == 1
    assert (await shop.pool()).completed == 0
    # A right event after a mismatched one is its own settlement.
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1", payment_ref="pi_right"))
    assert (await shop.order(answer.order.id)).status is OrderStatus.PAID


async def test_our_mark_for_an_order_not_visible_yet_asks_for_another_delivery(shop: Shop) -> None:
    paid = event(EventKind.PAID, "cs_1", order="not-there-yet")
    with pytest.raises(StorageUnavailable):
        await shop.settlement.receive(Provider.STRIPE, paid)
    assert await shop.rows("select count(*) from settlements") == [(0,)]


async def test_an_event_without_mark_waits_until_its_session_is_known(shop: Shop) -> None:
    async def pays_before_we_hear(session: object) -> None:
        await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, session.id))  # type: ignore[attr-defined]
        assert await shop.rows("select state from settlements") == [("unmatched",)]

    shop.provider.opened = pays_before_we_hear
    answer = await shop.buy("k1")
    assert (await shop.order(answer.order.id)).status is OrderStatus.PAID
    assert (await shop.pool()).completed == 1


async def test_a_session_that_was_never_attached_is_settled_by_its_mark(shop: Shop) -> None:
    class Killed(BaseException):
        pass

    shop.provider.after["open"] = [Killed()]
    with pytest.raises(Killed):
        await shop.buy("k1")
    ((order_id,),) = await shop.rows("select id from orders")
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1", order=order_id, attempt=1))
    assert (await shop.order(order_id)).status is OrderStatus.PAID
    again = await shop.buy("k1")
    assert (again.order.status, again.attempt and again.attempt.session_id) == (OrderStatus.PAID, "cs_1")
    assert (await shop.pool()).completed == 1
    # Without the mark the event is resolved by its session, which is known by now.
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1"))
    assert (await shop.pool()).completed == 1


async def test_a_foreign_session_is_stored_and_changes_nothing(shop: Shop) -> None:
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_of_somebody_else"))
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.FOREIGN, "cs_1"))
    assert await shop.rows("select state, session_id from settlements") == [("unmatched", "cs_of_somebody_else")]
    assert await shop.settlement.apply_pending() == 0


async def test_news_of_an_attempt_that_was_followed_by_another_leaves_the_other_alone(shop: Shop) -> None:
    shop.provider.before["open"] = [ProviderError()]
    with pytest.raises(ProviderError):
        await shop.buy("k1")
    answer = await shop.buy("k1")
    stray = event(EventKind.EXPIRED, "cs_stray", order=answer.order.id, attempt=1)
    await shop.settlement.receive(Provider.STRIPE, stray)
    assert (await shop.order(answer.order.id)).status is OrderStatus.PENDING
    assert (await shop.pool()).reserved == 1
    # Money for the first attempt after all counts for what the order holds now.
    late = event(EventKind.PAID, "cs_stray", order=answer.order.id, attempt=1)
    await shop.settlement.receive(Provider.STRIPE, late)
    assert (await shop.order(answer.order.id)).status is OrderStatus.PAID
    pool = await shop.pool()
    assert (pool.completed, pool.reserved) == (1, 0)


async def test_an_order_without_reservation_is_settled_in_postgres(shop: Shop) -> None:
    paid, left = await shop.buy("k1", code=None), await shop.buy("k2", code=None)
    for _ in range(2):
        await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1", amount_minor=4900))
    await shop.settlement.receive(
        Provider.STRIPE, event(EventKind.PAID, "cs_1", amount_minor=4900, payment_ref="pi_second")
    )
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.EXPIRED, "cs_2", amount_minor=4900))
    story = await shop.story(paid.order.id)
    assert story.order.status is OrderStatus.PAID
    assert [(p.ref, p.status.value) for p in story.payments] == [("pi_cs_1", "kept"), ("pi_second", "refund_owed")]
    assert (await shop.order(left.order.id)).status is OrderStatus.CANCELLED


async def test_a_thousand_releases_give_the_units_back_once(shop: Shop) -> None:
    await shop.stock(cap=5)
    answers = [await shop.buy(f"k{n}", customer=f"c{n}") for n in range(3)]
    shop.provider.before["expire"] = [ProviderError()] * 1000
    one = answers[0].order.reservation_id or ""
    for _ in range(20):
        events = [event(EventKind.EXPIRED, "cs_1") for _ in range(25)]
        await asyncio.gather(
            *(shop.engine.release(TENANT, one) for _ in range(25)),
            *(shop.settlement.receive(Provider.STRIPE, e) for e in events),
        )
    assert ((await shop.pool()).reserved, (await shop.pool()).available) == (2, 3)


async def test_an_api_caller_completes_and_cancels_with_a_stored_settlement(shop: Shop) -> None:
    answer = await shop.buy("k1")
    reservation = answer.order.reservation_id or ""
    done = await shop.settlement.complete(TENANT, reservation, "till-7")
    assert (done.outcome, done.reservation.status) == (Outcome.COMPLETED, ReservationStatus.COMPLETED)
    assert await shop.rows("select provider, kind, state from settlements") == [("api", "complete", "stored")]
    assert (await shop.order(answer.order.id)).status is OrderStatus.PAID
    assert await shop.rows("select state, outcome from settlements") == [("applied", "completed")]
    assert (await shop.settlement.complete(TENANT, reservation, "till-7")).outcome is Outcome.ALREADY_COMPLETED
    assert (await shop.settlement.complete(TENANT, reservation, "till-8")).outcome is Outcome.DUPLICATE_PAYMENT
    cancelled = await shop.settlement.cancel(TENANT, reservation, restock=True)
    assert cancelled.outcome is Outcome.CANCELLED
    assert (await shop.settlement.cancel(TENANT, reservation, restock=True)).outcome is Outcome.ALREADY_CANCELLED
    assert (await shop.pool()).available == 30
    assert (await shop.order(answer.order.id)).status is OrderStatus.CANCELLED
    with pytest.raises(Unknown):
        await shop.settlement.complete(TENANT, "nobody", "")


async def test_what_a_dead_checkout_left_is_sold_though_its_order_was_never_placed(shop: Shop) -> None:
    offer = await shop.held.offer(TENANT, [PRODUCT], CODE)
    held, _ = await shop.held.reserve(Holder(TENANT, "ada", "never-placed", is_repeatable=True), 1, offer)
    assert (await shop.settlement.complete(TENANT, held.id, "cash-1")).outcome is Outcome.COMPLETED
    await shop.persist()
    assert await shop.rows("select status from reservations") == [("completed",)]
    assert await shop.rows("select state, outcome from settlements") == [("applied", "completed")]
    assert await shop.rows("select reason from set_aside_entries") == []


async def test_what_can_not_be_cancelled_stores_nothing(shop: Shop) -> None:
    answer = await shop.buy("k1")
    with pytest.raises(IllegalTransition):
        await shop.settlement.cancel(TENANT, answer.order.reservation_id or "", restock=True)
    assert await shop.rows("select count(*) from settlements") == [(0,)]


async def test_stored_and_never_applied_is_applied_by_the_job(shop: Shop) -> None:
    answer = await shop.buy("k1")
    stored = await shop.settlements.store_event(Provider.STRIPE, event(EventKind.PAID, "cs_1"), "")
    assert stored is not None
    assert (await shop.pool()).completed == 0
    # What was stored this second is left to whoever stored it.
    assert await shop.settlement.apply_pending() == 0
    async with shop.database.begin() as connection:
        await connection.exec_driver_sql("update settlements set received_at = now() - interval '5 seconds'")
    assert await shop.settlement.apply_pending() == 1
    assert (await shop.pool()).completed == 1
    # The persister has not said so yet; the next try waits for a while.
    assert await shop.settlement.apply_pending() == 0
    assert (await shop.order(answer.order.id)).status is OrderStatus.PAID


async def test_the_job_waits_for_nothing_that_the_persister_is_marking(shop: Shop) -> None:
    """Both take many rows, each in an order of its own: to wait here would be a dead-lock."""
    for number in (1, 2):
        await shop.buy(f"k{number}")
        await shop.settlements.store_event(Provider.STRIPE, event(EventKind.PAID, f"cs_{number}"), "")
    ids = [str(row[0]) for row in await shop.rows("select id from settlements order by id")]
    async with shop.database.begin() as persister:
        await persister.execute(text("update settlements set last_error = null where id = :id"), {"id": ids[0]})
        await shop.settlements.note_tried(ids)
        await persister.execute(text("update settlements set last_error = null where id = :id"), {"id": ids[1]})
    assert await shop.rows("select tries from settlements order by id") == [(0,), (1,)]


async def test_lists_show_each_order_as_it_reads_now(shop: Shop) -> None:
    orders = [(await shop.buy(f"k{n}", customer=f"c{n % 2}")).order.id for n in range(5)]
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1"))
    await shop.persist()

    async def listed(**wanted: object) -> list[str]:
        return [story.order.id for story in await shop.reader.orders(TENANT, OrderFilter(**wanted))]  # type: ignore[arg-type]

    assert await listed() == orders
    assert await listed(limit=2) == orders[:2]
    assert await listed(limit=2, after=orders[1]) == orders[2:4]
    assert await listed(customer="c1") == [orders[1], orders[3]]
    assert await listed(status=OrderStatus.PAID) == [orders[0]]
    assert await listed(status=OrderStatus.CANCELLED) == []
    await shop.advance(2401)
    assert await listed(status=OrderStatus.CANCELLED) == orders[1:]
    assert await listed(status=OrderStatus.PENDING) == []


async def test_postgres_away_marks_nothing_as_seen_and_the_retry_completes(
    redis_server: RedisServer, own_postgres_server: PostgresServer
) -> None:
    async with open_shop(redis_server.url, own_postgres_server.url, database_timeout_seconds=2) as shop:
        await shop.stock()
        answer = await shop.buy("k1")
        paid = event(EventKind.PAID, "cs_1")
        own_postgres_server.stop()
        with pytest.raises(StorageUnavailable):
            await shop.settlement.receive(Provider.STRIPE, paid)
        assert (await shop.pool()).completed == 0
        own_postgres_server.start()
        await shop.settlement.receive(Provider.STRIPE, paid)
        assert (await shop.pool()).completed == 1
        assert (await shop.order(answer.order.id)).status is OrderStatus.PAID


async def test_redis_away_is_stored_and_completes_without_a_retry(
    own_redis_server: RedisServer, database_url: str
) -> None:
    async with open_shop(own_redis_server.url, database_url, redis_timeout_seconds=1) as shop:
        await shop.stock()
        answer = await shop.buy("k1")
        own_redis_server.kill()
        await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1"))
        assert await shop.rows("select state from settlements") == [("stored",)]
        with pytest.raises(NotReady):
            await shop.settlement.complete(TENANT, answer.order.reservation_id or "", "till-1")
        own_redis_server.start()
        shop.state.revoke()
        await shop.admission.ensure()
        async with shop.database.begin() as connection:
            await connection.exec_driver_sql("update settlements set received_at = now() - interval '5 seconds'")
        assert await shop.settlement.apply_pending() == 1
        assert (await shop.order(answer.order.id)).status is OrderStatus.PAID
        assert (await shop.pool()).completed == 1
