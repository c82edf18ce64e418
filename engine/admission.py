"""What it means for Redis to be admitted, on the engine's side; ``persistence.admission`` does the admitting.

A script's text contains its epoch. It is loaded only by admission, after Postgres and Redis were brought together, so
a server that lost or rolled back its data answers NOSCRIPT and grants nothing. A caller that sees NOSCRIPT or
``not_ready`` never reloads by itself: it reports the loss here and answers 503.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Admitted:
    """The epoch that scripts carry and the build that key names carry, as agreed with Postgres."""

    epoch: int
    build: int


class AdmissionState:
    """Whether this process may use the scripts now; shared by the engine (reads) and admission (writes)."""

    def __init__(self) -> None:
        self._admitted: Admitted | None = None
        self.lost = asyncio.Event()
        """Set when admission has to look at once, before its next turn."""
        self.ready = asyncio.Event()
        """Set while admitted."""
        self.reachable = True
        """Whether the last look at Redis got an answer; losing sight of it alone revokes nothing."""
        self.full_partitions: frozenset[int] = frozenset()
        """Partitions whose outbox holds ``outbox_limit`` entries past the committed offset; kept by admission."""

    @property
    def admitted(self) -> Admitted | None:
        return self._admitted

    def admit(self, admitted: Admitted) -> None:
        """Called by admission once the scripts of this epoch are loaded."""
        self._admitted = admitted
        self.lost.clear()
        self.ready.set()

    def revoke(self) -> None:
        """Called by whoever sees that the server is not the one that was admitted."""
        self._admitted = None
        self.ready.clear()
        self.lost.set()
