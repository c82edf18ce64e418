"""The processes that race tests share."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor

import pytest

from tests.concurrency.contention import four_processes


@pytest.fixture(scope="session")
def processes() -> Iterator[Executor]:
    """Four processes beside this one."""
    with four_processes() as executor:
        yield executor
