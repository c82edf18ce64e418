"""Outbox entries that could not be stored, kept with the reason."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Boolean, case, func, literal, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from persistence.outbox import Entry, EntryId
from persistence.tables import SetAsideEntry

ID_GRANTED_TWICE = "id_granted_twice"
"""Reason: Postgres holds another reservation under this id, made at another instant."""

LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class SetAside:
    """An entry and why it was not stored; ``resolved`` when nothing is left to do about it."""

    entry: Entry
    reason: str
    resolved: bool = False


async def add_set_aside(connection: AsyncConnection, entries: Collection[SetAside]) -> None:
    """Keep these entries; one that is kept already stays as it is."""
    if not entries:
        return
    rows = [
        {
            "partition": one.entry.partition,
            "epoch": one.entry.id.epoch,
            "seq": one.entry.id.seq,
            "fields": {_printable(name): _printable(value) for name, value in one.entry.fields.items()},
            "reason": _printable(one.reason)[:LONGEST_REASON],
            "resolved_at": case((literal(one.resolved, Boolean), func.now()), else_=None),
        }
        for one in entries
    ]
    await connection.execute(
        insert(SetAsideEntry).values(rows).on_conflict_do_nothing(index_elements=["partition", "epoch", "seq"])
    )


async def load_unresolved_repeats(connection: AsyncConnection, limit: int) -> list[tuple[int, Entry]]:
    """Row id and entry of repeated ids that may still hold units in Redis, oldest first."""
    rows = await connection.execute(
        select(SetAsideEntry)
        .where(SetAsideEntry.reason == ID_GRANTED_TWICE, SetAsideEntry.resolved_at.is_(None))
        .order_by(SetAsideEntry.id)
        .limit(limit)
    )
    return [(row.id, Entry(row.partition, EntryId(row.epoch, row.seq), row.fields)) for row in rows]


async def mark_resolved(connection: AsyncConnection, row_id: int) -> None:
    """Nothing is left to do about this entry."""
    await connection.execute(update(SetAsideEntry).where(SetAsideEntry.id == row_id).values(resolved_at=func.now()))


def _printable(value: str) -> str:
    # Postgres stores no NUL character in text; an entry that holds one must be kept none the less.
    return value.replace("\x00", "\\u0000")
