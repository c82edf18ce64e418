"""``python -m benchmarks``: every budget that is measured so far, one line each; exit 1 if one falls short.

``QUICK=1`` in the environment takes fewer rounds and stays under three minutes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from api.servers import RedisBinary, find_redis, redis_binary
from benchmarks import hot_path, over_http
from benchmarks.budget import Line


def _binaries() -> list[RedisBinary]:
    """The best Redis found and those named in LASTPORTION_TEST_REDIS, one of each version."""
    paths = os.environ.get("LASTPORTION_TEST_REDIS", "").split(os.pathsep)
    named = [redis_binary(Path(path)) for path in paths if path]
    by_label = {binary.label: binary for binary in [*find_redis(), *named] if binary is not None}
    return list(by_label.values())


def _lines(quick: bool) -> Iterator[Line]:
    binaries = _binaries()
    rounds, count = (3, 20_000) if quick else (7, 60_000)
    for binary in binaries:
        yield from hot_path.measure(binary, rounds=rounds, count=count)
    for major in sorted({7, 8} - {binary.major for binary in binaries}):
        yield Line(f"redis-{major} hot path", None, 0.45, "no such server on this machine")
    yield from over_http.measure(rounds=rounds, count=count // 4)


def main() -> int:
    failed = False
    for line in _lines(quick=os.environ.get("QUICK") == "1"):
        print(line, flush=True)
        failed = failed or line.verdict == "falls short"
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
