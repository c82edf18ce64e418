"""The scripts: composing a text for an epoch, loading it, and calling it by name with named keys and arguments.

A text contains its epoch and build, so its SHA-1 does too: a server that was not admitted under this epoch answers
NOSCRIPT. Only :func:`load`, called by admission, puts texts on a server.

``python -m engine.scripts --compose DIR`` writes the composed texts to a folder, for the linter.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.admission import Admitted
from engine.domain import Outcome

if TYPE_CHECKING:
    from redis.asyncio import Redis

_INCLUDE = re.compile(r"^--@include (\w+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One transition: its file, and the names of its keys and arguments as its header gives them.

    A name that ends in ``…`` stands for any number. ``replies`` are the words that it may answer with.
    """

    name: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    replies: frozenset[Outcome]


def _script(name: str, keys: str, args: str, *replies: Outcome) -> Script:
    return Script(name, tuple(keys.split()), tuple(args.split()), frozenset(replies))


_OF_RESERVING = (
    Outcome.GRANTED,
    Outcome.EXISTING,
    Outcome.ID_CONFLICT,
    Outcome.UNKNOWN_POOL,
    Outcome.PAUSED,
    Outcome.CLOSED,
    Outcome.NOT_OPEN,
    Outcome.CUSTOMER_REQUIRED,
    Outcome.LIMIT_REACHED,
    Outcome.SOLD_OUT,
    Outcome.ALL_RESERVED,
    Outcome.STALE,
    Outcome.ROLL,
    Outcome.NOT_READY,
)

RESERVE = _script(
    "reserve",
    "tenant expiries outbox records",
    "tenant id ttl_ms fingerprint tail customer claims…",
    *_OF_RESERVING,
)
RESERVE_MANY = _script("reserve_many", "tenant expiries outbox records…", "tenant requests…", *_OF_RESERVING)
COMPLETE = _script(
    "complete",
    "tenant expiries outbox records",
    "tenant id payment settlement",
    Outcome.COMPLETED,
    Outcome.ALREADY_COMPLETED,
    Outcome.DUPLICATE_PAYMENT,
    Outcome.REFUND_DUE,
    Outcome.ILLEGAL_TRANSITION,
    Outcome.UNKNOWN_RESERVATION,
    Outcome.ROLL,
    Outcome.NOT_READY,
)
RELEASE = _script(
    "release",
    "tenant expiries outbox records",
    "tenant id settlement",
    Outcome.RELEASED,
    Outcome.ALREADY_RELEASED,
    Outcome.ALREADY_COMPLETED,
    Outcome.ILLEGAL_TRANSITION,
    Outcome.UNKNOWN_RESERVATION,
    Outcome.NOT_READY,
)
EXTEND = _script(
    "extend",
    "tenant expiries outbox records",
    "tenant id ttl_ms bound_ms",
    Outcome.EXTENDED,
    Outcome.ILLEGAL_TRANSITION,
    Outcome.UNKNOWN_RESERVATION,
    Outcome.NOT_READY,
)
HOLD = _script(
    "hold",
    "tenant expiries outbox records",
    "tenant id ttl_ms settlement",
    Outcome.HELD,
    Outcome.NOT_HELD,
    Outcome.ALREADY_COMPLETED,
    Outcome.UNKNOWN_RESERVATION,
    Outcome.ROLL,
    Outcome.NOT_READY,
)
CANCEL = _script(
    "cancel",
    "tenant outbox records",
    "tenant id restock settlement",
    Outcome.CANCELLED,
    Outcome.ALREADY_CANCELLED,
    Outcome.ILLEGAL_TRANSITION,
    Outcome.UNKNOWN_RESERVATION,
    Outcome.NOT_READY,
)
READ = _script("read", "tenant records", "id", Outcome.FOUND, Outcome.UNKNOWN_RESERVATION, Outcome.NOT_READY)
READ_POOLS = _script(
    "read_pools", "tenant expiries", "pools…", Outcome.FOUND, Outcome.UNKNOWN_POOL, Outcome.ROLL, Outcome.NOT_READY
)
DEFINE_POOL = _script(
    "define_pool", "tenant mark", "pool definition rev first clock", Outcome.DEFINED, Outcome.NOT_READY
)
REMOVE_POOL = _script(
    "remove_pool",
    "tenant expiries",
    "pool rev customers…",
    Outcome.REMOVED,
    Outcome.UNKNOWN_POOL,
    Outcome.STALE,
    Outcome.ILLEGAL_TRANSITION,
    Outcome.NOT_READY,
)
REMOVE_RESERVATIONS = _script(
    "remove_reservations", "tenant records", "retention_ms records…", Outcome.REMOVED, Outcome.NOT_READY
)
RESTORE = _script(
    "restore",
    "tenant expiries records",
    "id record",
    Outcome.RESTORED,
    Outcome.EXISTING,
    Outcome.ILLEGAL_TRANSITION,
    Outcome.ROLL,
    Outcome.NOT_READY,
)
MOVE_CLOCK = _script("move_clock", "tenant", "offset", Outcome.DEFINED, Outcome.NOT_READY)
BEGIN_EPOCH = _script("begin_epoch", "outbox mark", "expected epoch build", Outcome.DEFINED, Outcome.STALE)

ADMITTED_SCRIPTS = (
    RESERVE,
    RESERVE_MANY,
    COMPLETE,
    RELEASE,
    EXTEND,
    HOLD,
    CANCEL,
    READ,
    READ_POOLS,
    DEFINE_POOL,
    REMOVE_POOL,
    REMOVE_RESERVATIONS,
    RESTORE,
    MOVE_CLOCK,
)
"""Loaded by admission only. BEGIN_EPOCH is not among them: it belongs to no epoch."""


def _source(path: str) -> str:
    return files("lua").joinpath(path).read_text(encoding="utf-8")


@cache
def composed(script: Script, admitted: Admitted, sandbox: bool = False) -> str:
    """The text of a script as the server runs it: includes in place, epoch and build filled in.

    With ``sandbox`` its clock obeys the test clock. Raises ``FileNotFoundError`` for a missing include.
    """

    def include(match: re.Match[str]) -> str:
        name = match.group(1)
        return _source(f"includes/{'clock_sandbox' if name == 'clock' and sandbox else name}.lua")

    text = _INCLUDE.sub(include, _source(f"{script.name}.lua"))
    header_end = text.index("]]") + 2
    return text[header_end:].replace("@EPOCH@", str(admitted.epoch)).replace("@BUILD@", str(admitted.build)).lstrip()


@cache
def sha_of(script: Script, admitted: Admitted, sandbox: bool = False) -> str:
    """The name under which a server keeps the composed text."""
    return sha1(composed(script, admitted, sandbox).encode(), usedforsecurity=False).hexdigest()


async def load(redis: Redis, admitted: Admitted, *, sandbox: bool = False) -> None:
    """Put the texts of this epoch on the server. For admission alone, under its lock."""
    pipeline = redis.pipeline(transaction=False)
    for script in ADMITTED_SCRIPTS:
        pipeline.script_load(composed(script, admitted, sandbox))
    await pipeline.execute()


async def begin_epoch(redis: Redis, outbox_key: str, mark_key: str, expected: str, admitted: Admitted) -> bool:
    """Fence one partition; False when its outbox moved on past ``expected`` (an entry id, "" for none)."""
    text = composed(BEGIN_EPOCH, admitted)
    reply: Any = await redis.eval(text, 2, outbox_key, mark_key, expected, str(admitted.epoch), str(admitted.build))
    return str(reply) == Outcome.DEFINED


def compose_all(folder: Path) -> list[Path]:
    """Write every composed text, both clocks, for the linter; the epoch and the build are samples."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for script in (*ADMITTED_SCRIPTS, BEGIN_EPOCH):
        for sandbox in (False, True):
            path = folder / f"{script.name}{'.sandbox' if sandbox else ''}.lua"
            path.write_text(composed(script, Admitted(1, 1), sandbox), encoding="utf-8")
            written.append(path)
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the composed scripts to a folder.")
    parser.add_argument("--compose", type=Path, required=True, metavar="DIR")
    for written_path in compose_all(parser.parse_args().compose):
        print(written_path)
