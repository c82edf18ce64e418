"""How far Postgres has each partition's outbox, and the fence: an offset moves only from where it was read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson
from sqlalchemy import select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from persistence.outbox import EntryId
from persistence.tables import OutboxOffset

_MOVE = text("""
update outbox_offsets as o set epoch = n.to_epoch, seq = n.to_seq
from json_to_recordset(cast(:rows as json))
    as n(partition integer, from_epoch bigint, from_seq bigint, to_epoch bigint, to_seq bigint)
where o.partition = n.partition and o.epoch = n.from_epoch and o.seq = n.from_seq
""")


class OffsetMoved(Exception):
    """Another persister, or an admission, moved an offset first: what was read must be dropped."""


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's step from the offset that was read to the last entry stored with it."""

    partition: int
    start: EntryId
    end: EntryId


async def load_offsets(connection: AsyncConnection) -> dict[int, EntryId]:
    """The offset of each partition; empty before the first admission."""
    rows = await connection.execute(select(OutboxOffset.partition, OutboxOffset.epoch, OutboxOffset.seq))
    return {row.partition: EntryId(row.epoch, row.seq) for row in rows}


async def move_offsets(connection: AsyncConnection, moves: Sequence[Move]) -> None:
    """Move each offset, all or none; raises :class:`OffsetMoved` when one is not where it was read.

    Called before anything else in its transaction: whoever comes second waits here and then has nothing to undo.
    """
    rows = [
        {
            "partition": move.partition,
            "from_epoch": move.start.epoch,
            "from_seq": move.start.seq,
            "to_epoch": move.end.epoch,
            "to_seq": move.end.seq,
        }
        for move in moves
    ]
    moved = await connection.execute(_MOVE, {"rows": orjson.dumps(rows).decode()})
    if moved.rowcount != len(moves):
        raise OffsetMoved


async def set_offsets(connection: AsyncConnection, partitions: Iterable[int], offset: EntryId) -> None:
    """Put the offset of each partition at the begin of an epoch. For admission alone, under its lock."""
    seen = {"epoch": offset.epoch, "seq": offset.seq}
    await connection.execute(
        insert(OutboxOffset)
        .values([{"partition": partition, **seen} for partition in partitions])
        .on_conflict_do_update(index_elements=["partition"], set_=seen)
    )
