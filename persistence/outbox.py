"""Reading the outbox: entry ids, entries, and whether a run of them has a gap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

KIND_FIELD = "k"
EPOCH_KIND = "e"
RESERVATION_KIND = "r"


@dataclass(frozen=True, slots=True, order=True)
class EntryId:
    """Where an entry stands: its epoch, and its number within it, which rises by one from 0."""

    epoch: int
    seq: int

    @classmethod
    def parse(cls, text: str) -> EntryId:
        """From the stream's ``epoch-seq``; raises ``ValueError``."""
        epoch, _, seq = text.partition("-")
        return cls(int(epoch), int(seq))

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of one partition's outbox."""

    partition: int
    id: EntryId
    fields: Mapping[str, str]

    @property
    def begins_epoch(self) -> bool:
        return self.fields.get(KIND_FIELD) == EPOCH_KIND


async def read_entries(
    redis: Redis, outboxes: Mapping[int, str], after: Mapping[int, EntryId], count: int, block_ms: int | None = None
) -> dict[int, list[Entry]]:
    """What each partition's outbox holds after a place, at most ``count`` each; waits ``block_ms`` when all are empty.

    ``outboxes`` gives the key of each partition that is to be read.
    """
    partitions = {key: partition for partition, key in outboxes.items()}
    reply: Any = await redis.xread(
        {key: str(after[partition]) for key, partition in partitions.items()}, count=count, block=block_ms
    )
    return {
        partitions[key]: [Entry(partitions[key], EntryId.parse(text), fields or {}) for text, fields in entries]
        for key, entries in _by_stream(reply)
    }


def _by_stream(reply: Any) -> Iterable[tuple[str, Iterable[tuple[str, dict[str, str]]]]]:
    # RESP3 answers a mapping whose values wrap the list once more; RESP2 and fakeredis answer pairs.
    if isinstance(reply, Mapping):
        return [(key, entries[0]) for key, entries in reply.items()]
    return reply or ()


async def last_ids(redis: Redis, outboxes: Sequence[str]) -> list[EntryId | None]:
    """The last entry of each outbox, None where there is none."""
    pipeline = redis.pipeline(transaction=False)
    for key in outboxes:
        pipeline.xrevrange(key, count=1)
    replies = await pipeline.execute()
    return [EntryId.parse(entries[0][0]) if entries else None for entries in replies]


def unbroken(after: EntryId, entries: Iterable[Entry], *, across_epochs: bool = False) -> tuple[list[Entry], bool]:
    """The entries that follow one another from ``after`` on, and whether something is missing behind them.

    An epoch's first entry follows whatever was last in the epoch before, since it is written only there; with
    ``across_epochs`` the run goes on through it, else it ends there without a gap.
    """
    run: list[Entry] = []
    for entry in entries:
        begins = entry.id.epoch > after.epoch and entry.id.seq == 0 and entry.begins_epoch
        if begins and not across_epochs:
            return run, False
        if not begins and entry.id != EntryId(after.epoch, after.seq + 1):
            return run, True
        run.append(entry)
        after = entry.id
    return run, False
