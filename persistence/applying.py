"""Storing outbox entries: the one way in which what Redis did reaches Postgres, for persister and admission alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import orjson
import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from engine.domain import Outcome, Reservation, ReservationStatus
from engine.records import decode_reservation
from persistence.database import is_unavailable, transaction
from persistence.outbox import KIND_FIELD, RESERVATION_KIND, Entry, EntryId
from persistence.repositories.offsets import Move, move_offsets
from persistence.repositories.reservations import find_repeated, upsert_reservations
from persistence.repositories.set_aside import ID_GRANTED_TWICE, SetAside, add_set_aside
from persistence.settling import AppliedSettlement, apply_settlements

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Transition:
    """A decoded entry: the reservation afterwards, and the settlement that asked for it, if any."""

    entry: Entry
    reservation: Reservation
    settlement_id: str | None
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Unbroken entries of one or more partitions, with the steps of the offsets that they stand for."""

    entries: Sequence[Entry]
    moves: Sequence[Move]


def batch_of(starts: dict[int, EntryId], entries: Sequence[Entry]) -> Batch:
    """A batch of entries that follow, within each partition, on its start."""
    ends: dict[int, EntryId] = {}
    for entry in entries:
        ends[entry.partition] = entry.id
    return Batch(entries, [Move(partition, starts[partition], ends[partition]) for partition in sorted(ends)])


async def store_batch(engine: AsyncEngine, batch: Batch) -> list[SetAside]:
    """Store a batch and move its offsets in one transaction; answers what had to be set aside.

    Raises ``OffsetMoved`` when another was first, with nothing stored, and ``StorageUnavailable``, after which it is
    unknown whether it was stored: the offset has to be read again.
    """
    async with transaction(engine) as connection:
        return await apply_batch(connection, batch)


async def apply_batch(connection: AsyncConnection, batch: Batch) -> list[SetAside]:
    """:func:`store_batch` within a transaction of the caller's."""
    await move_offsets(connection, batch.moves)
    aside = await apply_entries(connection, batch.entries)
    for one in aside:
        log.error("outbox_entry_set_aside", partition=one.entry.partition, entry=str(one.entry.id), reason=one.reason)
    return aside


async def apply_entries(connection: AsyncConnection, entries: Sequence[Entry]) -> list[SetAside]:
    """Bring reservations, settlements and orders to where these entries say they are.

    What can't be stored goes to ``set_aside_entries`` in the same transaction, and the rest flows.
    """
    transitions: list[Transition] = []
    aside: list[SetAside] = []
    for entry in entries:
        if entry.begins_epoch:
            continue
        try:
            transitions.append(decode_entry(entry))
        except (ValueError, LookupError) as error:
            aside.append(SetAside(entry, f"undecodable: {error!r}"))
    aside += await _store(connection, transitions)
    await add_set_aside(connection, aside)
    return aside


def decode_entry(entry: Entry) -> Transition:
    """What an entry says. Raises ``ValueError`` or ``LookupError`` when it is not one of ours."""
    fields = entry.fields
    if fields[KIND_FIELD] != RESERVATION_KIND:
        raise ValueError(f"unknown kind {fields[KIND_FIELD]!r}")
    reservation = decode_reservation(fields["t"], fields["i"], fields["r"])
    settlement_id = fields.get("s")
    return Transition(entry, reservation, settlement_id, Outcome(fields["o"]) if settlement_id else None)


async def _store(connection: AsyncConnection, transitions: Sequence[Transition]) -> list[SetAside]:
    """Store all in a savepoint; where that fails, each half on its own, down to the one that is to blame."""
    if not transitions:
        return []
    try:
        async with connection.begin_nested():
            return await _store_whole(connection, transitions)
    except (DBAPIError, orjson.JSONEncodeError) as error:
        if is_unavailable(error):
            raise
        if len(transitions) == 1:
            cause = error.orig if isinstance(error, DBAPIError) else error
            return [SetAside(transitions[0].entry, f"not storable: {cause}")]
    middle = len(transitions) // 2
    return [*await _store(connection, transitions[:middle]), *await _store(connection, transitions[middle:])]


async def _store_whole(connection: AsyncConnection, transitions: Sequence[Transition]) -> list[SetAside]:
    newest: dict[tuple[str, str], Reservation] = {}
    for transition in transitions:
        reservation = transition.reservation
        before = newest.setdefault((reservation.tenant, reservation.id), reservation)
        if before.created_at_ms == reservation.created_at_ms and before.version < reservation.version:
            newest[reservation.tenant, reservation.id] = reservation
    repeats = await _upsert(connection, newest, transitions)
    repeated = {(repeat.entry.partition, repeat.entry.id) for repeat in repeats}
    await apply_settlements(
        connection,
        [
            AppliedSettlement(
                transition.settlement_id,
                # A payment for the repeat of an id can't be honoured: what it paid for is not in the books.
                Outcome.REFUND_DUE
                if (transition.entry.partition, transition.entry.id) in repeated
                else transition.outcome,
                transition.reservation.late,
                transition.reservation.over_cap,
            )
            for transition in transitions
            if transition.settlement_id is not None and transition.outcome is not None
        ],
    )
    return [
        SetAside(repeat.entry, ID_GRANTED_TWICE, resolved=not _holds_units(repeat.reservation)) for repeat in repeats
    ]


async def _upsert(
    connection: AsyncConnection,
    newest: dict[tuple[str, str], Reservation],
    transitions: Sequence[Transition],
) -> list[Transition]:
    """Write the newest versions; answers the transitions of an id that Postgres, or an earlier entry, has already."""
    repeats = [t for t in transitions if _made_at(newest, t) != t.reservation.created_at_ms]
    written = await upsert_reservations(connection, newest.values())
    if written < len(newest):
        stored_otherwise = await find_repeated(connection, newest.values())
        repeats += [
            t
            for t in transitions
            if (t.reservation.tenant, t.reservation.id) in stored_otherwise
            and _made_at(newest, t) == t.reservation.created_at_ms
        ]
    return repeats


def _made_at(newest: dict[tuple[str, str], Reservation], transition: Transition) -> int:
    return newest[transition.reservation.tenant, transition.reservation.id].created_at_ms


def _holds_units(reservation: Reservation) -> bool:
    return reservation.status in (ReservationStatus.RESERVED, ReservationStatus.COMPLETED)


def repeats_among(aside: Collection[SetAside]) -> bool:
    """Whether an id was granted twice and still holds units."""
    return any(one.reason == ID_GRANTED_TWICE and not one.resolved for one in aside)
