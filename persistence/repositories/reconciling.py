"""What reconciling asks of Postgres: which paid sessions are ours and not settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from engine.domain import Provider, SettlementKind, SettlementState
from engine.payments.port import Session
from persistence.database import transaction
from persistence.tables import JobRun, Settlement

# An attempt is found by its session, or by our mark where the process died before it could note the session: as when an
# event is bound to its order. What waits unmatched is not settled, since only a mark can lead it to its order.
_UNSETTLED = text("""
select distinct on (paid.id) paid.id, a.order_id
from jsonb_to_recordset(cast(:paid as jsonb))
    as paid(id text, amount bigint, currency text, marked_order text, marked_tenant text, marked_attempt integer)
join attempts a on a.provider = :provider and (
    a.session_id = paid.id
    or (a.order_id = paid.marked_order and a.number = coalesce(
        paid.marked_attempt, (select max(number) from attempts where order_id = paid.marked_order))
        and exists (select from orders o
            where o.id = a.order_id and o.tenant = coalesce(paid.marked_tenant, o.tenant))))
where not exists (
        select from settlements s
        where s.provider = :provider and s.session_id = paid.id and s.kind = 'complete' and s.state <> 'unmatched'
            and s.amount_minor = paid.amount and upper(s.currency) = upper(paid.currency))
order by paid.id, (a.session_id = paid.id) desc nulls last
""")


class PostgresReconciling:
    """Implements :class:`engine.reconciling.ReconcileStore`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def orders_of_unsettled(self, provider: Provider, paid: Sequence[Session]) -> Mapping[str, str]:
        """Session ids of ours without a settlement of that amount, each with its order."""
        sent = orjson.dumps([_row(session) for session in paid]).decode()
        async with transaction(self._engine) as connection:
            rows = await connection.execute(_UNSETTLED, {"provider": provider.value, "paid": sent})
            return {row.id: row.order_id for row in rows}

    async def state_of(self, provider: Provider, dedup_key: str) -> SettlementState | None:
        """How far the settlement of an event is; None when there is none."""
        statement = select(Settlement.state).where(Settlement.provider == provider, Settlement.dedup_key == dedup_key)
        async with transaction(self._engine) as connection:
            state = await connection.scalar(statement)
        return None if state is None else SettlementState(state)

    async def count_unmatched(self) -> int:
        """Money that was paid, or is on its way, for sessions that nothing here knows."""
        statement = select(func.count()).where(
            Settlement.state == SettlementState.UNMATCHED,
            Settlement.kind.in_((SettlementKind.COMPLETE, SettlementKind.HOLD)),
        )
        async with transaction(self._engine) as connection:
            return await connection.scalar(statement) or 0

    async def seconds_since_success(self, job: str) -> float | None:
        """By Postgres's clock, which also wrote when that was."""
        statement = select(func.extract("epoch", func.now() - JobRun.last_success_at)).where(JobRun.job == job)
        async with transaction(self._engine) as connection:
            age = await connection.scalar(statement)
        return None if age is None else float(age)


def _row(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "amount": session.amount_minor,
        "currency": session.currency,
        "marked_order": session.marked_order_id,
        "marked_tenant": session.marked_tenant,
        "marked_attempt": session.marked_attempt,
    }
