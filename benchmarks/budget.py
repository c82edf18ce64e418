"""A budget: what is measured, beside what, and how much of it is asked for."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report. ``ratio`` None says that it was not measured, and ``note`` why."""

    name: str
    ratio: float | None
    least: float
    note: str

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return "not measured"
        return "holds" if self.ratio >= self.least else "falls short"

    def __str__(self) -> str:
        shown = "—" if self.ratio is None else f"{self.ratio:.2f}"
        return f"{self.name}: {shown} (at least {self.least:.2f}) {self.verdict} · {self.note}"


def interleaved(
    rounds: int, reference: Callable[[], float], subject: Callable[[], float]
) -> tuple[float, float, float]:
    """Medians over rounds in which one follows the other: the ratio, the reference and the subject."""
    pairs = [(reference(), subject()) for _ in range(rounds)]
    return (
        statistics.median(after / before for before, after in pairs),
        statistics.median(before for before, _ in pairs),
        statistics.median(after for _, after in pairs),
    )
