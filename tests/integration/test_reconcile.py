"""What was paid while nobody listened is found at the provider and settled; what is not ours is left alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from engine import reconciling
from engine.catalogue import Product
from engine.domain import OrderStatus, Provider, SettlementState
from engine.errors import ProviderError, ProviderTimeout, StorageUnavailable
from engine.payments.port import EventKind, Session, SessionState
from engine.pricing import WantedLine
from engine.reconciling import Difference, DifferenceKind, ProviderReconciler
from engine.settlement import SettlementService
from persistence.job_diary import PostgresJobDiary
from persistence.repositories.reconciling import PostgresReconciling
from tests.shop import TENANT, Shop, event, open_shop

if TYPE_CHECKING:
    from tests.conftest import RedisBackend

BOTH = (Provider.STRIPE, Provider.PAYSTACK)
HOUR = 3600
DAY = 24 * HOUR


@pytest.fixture
async def shop(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Shop]:
    async with open_shop(redis_backend.url, database_url) as opened:
        await opened.stock()
        yield opened


def reconciler(shop: Shop, offered: tuple[Provider, ...] = BOTH, **changes: Any) -> ProviderReconciler:
    async def offset_ms() -> int:
        return shop.clock[0] * 1000

    return ProviderReconciler(
        **{
            "reservations": shop.engine,
            "store": PostgresReconciling(shop.database),
            "payments": shop.payments,
            "offered": offered,
            "settlements": shop.settlement,
            "clock_offset_ms": offset_ms,
        }
        | changes
    )


def found(provider: Provider, session: str, order: str, became: SettlementState | None = None) -> Difference:
    return Difference(DifferenceKind.PAID_NOT_SETTLED, provider, session, order, became or SettlementState.STORED)


async def test_a_payment_that_nobody_told_of_is_found_once(shop: Shop) -> None:
    told, untold, open_one = [await shop.buy(f"k{n}", customer=f"c{n}") for n in range(3)]
    for session in ("cs_1", "cs_2"):
        shop.provider.pay(session)
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1"))
    findings = await reconciler(shop).look_back(DAY)
    assert findings.differences == [found(Provider.STRIPE, "cs_2", untold.order.id)]
    assert findings.unasked == {}
    statuses = [(await shop.order(answer.order.id)).status for answer in (told, untold, open_one)]
    assert statuses == [OrderStatus.PAID, OrderStatus.PAID, OrderStatus.PENDING]
    assert (await shop.pool()).completed == 2
    assert (await reconciler(shop).look_back(DAY)).differences == []
    # And the event, should it come after all, changes nothing more.
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_2"))
    await shop.persist()
    assert await shop.rows("select count(*) from payments") == [(2,)]
    assert (await shop.pool()).completed == 2


async def test_the_session_of_a_process_that_died_before_noting_it_is_found_by_our_mark(shop: Shop) -> None:
    answer = await shop.buy("k1")
    shop.provider.pay("cs_1")
    async with shop.database.begin() as connection:
        await connection.exec_driver_sql("update attempts set session_id = null, status = 'frozen'")
    # Its event came without marks: stored, and nothing leads from it to the order.
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1"))
    assert await reconciler(shop).count_unmatched() == 1
    findings = await reconciler(shop).look_back(DAY)
    assert findings.differences == [found(Provider.STRIPE, "cs_1", answer.order.id)]
    await shop.settlement.apply_pending()
    assert (await shop.order(answer.order.id)).status is OrderStatus.PAID
    assert await shop.rows("select ref, status from payments") == [("pi_cs_1", "kept")]
    assert (await shop.pool()).completed == 1
    assert await reconciler(shop).count_unmatched() == 0


async def test_what_is_not_ours_is_left_alone(shop: Shop) -> None:
    await shop.buy("k1")
    foreign = Session("cs_else", SessionState.PAID, None, None, 4410, "GBP", "pi_else")
    marked_elsewhere = replace(
        foreign, id="cs_there", payment_ref="pi_there", marked_order_id="order-of-another-deployment", marked_attempt=1
    )
    for session in (foreign, marked_elsewhere):
        shop.provider.sessions[session.id] = session
        shop.provider.made_at_s[session.id] = shop.provider.now_s()
    assert (await reconciler(shop).look_back(DAY)).differences == []
    assert await shop.rows("select count(*) from settlements") == [(0,)]


async def test_another_amount_is_set_aside_and_said_once(shop: Shop) -> None:
    answer = await shop.buy("k1")
    shop.provider.sessions["cs_1"] = replace(shop.provider.sessions["cs_1"], amount_minor=4409)
    shop.provider.pay("cs_1")
    assert (await reconciler(shop).look_back(DAY)).differences == [
        found(Provider.STRIPE, "cs_1", answer.order.id, SettlementState.MISMATCHED)
    ]
    assert (await shop.order(answer.order.id)).status is OrderStatus.PENDING
    assert await shop.rows("select amount_minor, status from payments") == [(4409, "refund_owed")]
    assert (await reconciler(shop).look_back(DAY)).differences == []


async def test_the_right_amount_is_found_although_a_wrong_one_was_told(shop: Shop) -> None:
    answer = await shop.buy("k1")
    shop.provider.pay("cs_1")
    await shop.settlement.receive(Provider.STRIPE, event(EventKind.PAID, "cs_1", amount_minor=4409))
    assert (await shop.order(answer.order.id)).status is OrderStatus.PENDING
    assert (await reconciler(shop).look_back(DAY)).differences == [found(Provider.STRIPE, "cs_1", answer.order.id)]
    assert (await shop.order(answer.order.id)).status is OrderStatus.PAID
    assert (await reconciler(shop).look_back(DAY)).differences == []


@pytest.mark.parametrize("trouble", [ProviderTimeout(), ProviderError(provider_code="unauthorised")])
async def test_a_provider_in_trouble_keeps_the_other_from_nothing(shop: Shop, trouble: Exception) -> None:
    await shop.catalogue.put_product(Product(TENANT, "pack-ng", "Practice pack", 250_000, "NGN"))
    answer = await shop.buy("k1", code=None, provider=Provider.PAYSTACK, lines=(WantedLine("pack-ng", 1),))
    reference = next(iter(shop.paystack.sessions))
    shop.paystack.pay(reference)
    shop.provider.before["paid_since"] = [trouble, trouble]
    findings = await reconciler(shop).look_back(DAY)
    assert findings.differences == [found(Provider.PAYSTACK, reference, answer.order.id, SettlementState.APPLIED)]
    assert findings.unasked == {Provider.STRIPE: trouble.code}
    # The job says so, which keeps its last success where it was.
    with pytest.raises(ProviderTimeout, match="stripe"):
        await reconciler(shop).run_job()
    assert await reconciler(shop).run_job() == {"differences": 0, "looked_back_seconds": 3 * DAY}


async def test_a_list_that_breaks_off_has_what_came_of_it_settled(shop: Shop) -> None:
    answers = [await shop.buy(f"k{n}", customer=f"c{n}") for n in range(2)]
    for session in ("cs_1", "cs_2"):
        shop.provider.pay(session)

    async def broken(_since_s: int) -> AsyncIterator[Session]:
        yield shop.provider.sessions["cs_1"]
        raise ProviderTimeout

    whole, shop.provider.paid_since = shop.provider.paid_since, broken  # type: ignore[method-assign]
    findings = await reconciler(shop).look_back(DAY)
    assert (findings.differences, findings.unasked) == (
        [found(Provider.STRIPE, "cs_1", answers[0].order.id)],
        {Provider.STRIPE: "payment_provider_timeout"},
    )
    shop.provider.paid_since = whole  # type: ignore[method-assign]
    assert (await reconciler(shop).look_back(DAY)).differences == [found(Provider.STRIPE, "cs_2", answers[1].order.id)]


async def test_only_providers_with_a_key_are_asked(shop: Shop) -> None:
    await reconciler(shop, (Provider.STRIPE,)).look_back(DAY)
    assert (len(shop.provider.called("paid_since")), shop.paystack.called("paid_since")) == (1, [])


async def test_more_than_a_batch_is_looked_at(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "BATCH", 2)
    answers = [await shop.buy(f"k{n}", customer=f"c{n}") for n in range(5)]
    for session in list(shop.provider.sessions):
        shop.provider.pay(session)
    assert [d.order_id for d in (await reconciler(shop).look_back(DAY)).differences] == [a.order.id for a in answers]
    await shop.persist()
    assert await shop.rows("select distinct status from orders") == [("paid",)]


async def test_the_job_looks_back_behind_its_last_success(shop: Shop) -> None:
    diary, job = PostgresJobDiary(shop.database), reconciling.RECONCILE_PROVIDERS_JOB
    run = reconciler(shop, (Provider.STRIPE,))
    assert (await run.run_job())["looked_back_seconds"] == 3 * DAY
    await diary.succeeded(job, 900, None)
    back = (await run.run_job())["looked_back_seconds"]
    assert 26 * HOUR <= back <= 26 * HOUR + 60
    # After a failure the last success counts still.
    await diary.failed(job, 900, "away")
    async with shop.database.begin() as connection:
        await connection.exec_driver_sql("update job_runs set last_success_at = now() - interval '5 days'")
    back = (await run.run_job())["looked_back_seconds"]
    assert 5 * DAY + 26 * HOUR <= back <= 5 * DAY + 26 * HOUR + 60
    asked_at = shop.provider.now_s() - int(shop.provider.called("paid_since")[-1])
    assert abs(asked_at - back) < 60


async def test_the_test_clock_moves_what_is_looked_at(shop: Shop) -> None:
    await shop.buy("k1")
    shop.provider.pay("cs_1")
    await shop.advance(2 * DAY)
    assert (await reconciler(shop).look_back(DAY)).differences == []
    assert len((await reconciler(shop).look_back(2 * DAY + 60)).differences) == 1


async def test_a_store_that_is_away_ends_the_run_and_the_next_finds_the_rest(shop: Shop) -> None:
    answers = [await shop.buy(f"k{n}", customer=f"c{n}") for n in range(2)]
    for session in ("cs_1", "cs_2"):
        shop.provider.pay(session)

    class Failing(SettlementService):
        async def receive(self, provider: Provider, event: Any) -> None:
            if event.session_id == "cs_2":
                raise StorageUnavailable
            await super().receive(provider, event)

    failing = Failing(shop.settlements, shop.engine, shop.settings.delayed_hold_seconds)
    with pytest.raises(StorageUnavailable):
        await reconciler(shop, settlements=failing).look_back(DAY)
    assert (await reconciler(shop).look_back(DAY)).differences == [found(Provider.STRIPE, "cs_2", answers[1].order.id)]
