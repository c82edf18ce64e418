"""Epochs in Postgres: which lives of the Redis data there were, and which one is admitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.errors import NotReady
from persistence.identity import Identity
from persistence.tables import RedisEpoch, redis_epoch

_SHARED = text("select pg_advisory_xact_lock_shared(hashtextextended(:name, 0))")
_EXCLUSIVE = text("select pg_advisory_xact_lock(hashtextextended(:name, 0))")
_SKIP_TO = text("select setval('redis_epoch', :epoch)")


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch as Postgres knows it."""

    epoch: int
    build: int
    identity: Identity


@dataclass(frozen=True, slots=True)
class History:
    """The newest admitted epoch, those begun since and never admitted, and the largest build ever begun."""

    current: Epoch | None
    unfinished: Sequence[Epoch]
    largest_build: int

    def intact_epochs(self) -> set[int]:
        """Epochs whose mark says that the current build's data is whole: an interrupted admission that kept the
        data may have marked some partitions already."""
        if self.current is None:
            return set()
        same_build = {epoch.epoch for epoch in self.unfinished if epoch.build == self.current.build}
        return {self.current.epoch, *same_build}


async def load_history(connection: AsyncConnection) -> History:
    """What Postgres knows of epochs."""
    rows = (await connection.execute(select(RedisEpoch).order_by(RedisEpoch.epoch))).all()
    epochs = [
        (Epoch(row.epoch, row.build, Identity(row.server, row.run_id, row.replication_id)), row.admitted_at is not None)
        for row in rows
    ]
    current = next((epoch for epoch, admitted in reversed(epochs) if admitted), None)
    return History(
        current,
        [epoch for epoch, _ in epochs if current is None or epoch.epoch > current.epoch],
        max((epoch.build for epoch, _ in epochs), default=0),
    )


async def begin(connection: AsyncConnection, identity: Identity, build: int, reason: str, above: int) -> int:
    """Write the row of a new epoch, whose number is above every one seen in Redis; answers the number."""
    epoch = int(await connection.scalar(select(redis_epoch.next_value())) or 0)
    if epoch <= above:
        # Postgres stepped back in a fail-over, its sequence with it, while Redis went on.
        await connection.execute(_SKIP_TO, {"epoch": above + 1})
        epoch = above + 1
    await connection.execute(
        insert(RedisEpoch).values(
            epoch=epoch,
            server=identity.server,
            run_id=identity.run_id,
            replication_id=identity.replication_id,
            build=build,
            reason=reason,
        )
    )
    return epoch


async def mark_admitted(connection: AsyncConnection, epoch: int) -> None:
    """The epoch is the current one from now on. Raises ``NotReady`` when a newer one has begun meanwhile."""
    newer = select(RedisEpoch.epoch).where(RedisEpoch.epoch > epoch).exists()
    marked = await connection.execute(
        update(RedisEpoch).where(RedisEpoch.epoch == epoch, ~newer).values(admitted_at=func.now())
    )
    if marked.rowcount != 1:
        raise NotReady("Another admission began meanwhile.")


async def require_epoch(connection: AsyncConnection, prefix: str, epoch: int) -> None:
    """Until this transaction ends, no rebuild reads Postgres past it; raises ``NotReady`` when one has begun already.

    For transactions that commit what a script granted: what was granted under an epoch that has ended is not in the
    data that followed it, and must not be sold.
    """
    await connection.execute(_SHARED, {"name": f"{prefix}:epoch"})
    if await connection.scalar(select(RedisEpoch.epoch).where(RedisEpoch.epoch > epoch).limit(1)) is not None:
        raise NotReady


async def wait_for_commits(connection: AsyncConnection, prefix: str) -> None:
    """Wait until no transaction is left that relied on an earlier epoch; see :func:`require_epoch`."""
    await connection.execute(_EXCLUSIVE, {"name": f"{prefix}:epoch"})
