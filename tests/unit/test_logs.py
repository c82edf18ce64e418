"""What a log shows of a failure: where it happened, and not what was in the variables there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.settings import LogFormat

BREAK = """
import structlog
from api.logs import configure_logs
from engine.settings import LogFormat

configure_logs(LogFormat({format!r}), "INFO")

def fail():
    secret = "-".join(("much", "too", "secret"))
    raise RuntimeError(f"{{len(secret)}} characters")

try:
    fail()
except RuntimeError:
    structlog.get_logger("test").exception("broke", order="o1")
"""


@pytest.mark.parametrize("log_format", LogFormat)
def test_a_failure_is_logged_without_its_variables(log_format: LogFormat) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BREAK.format(format=log_format.value)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    for expected in ("broke", "o1", "RuntimeError", "15 characters", "in fail"):
        assert expected in done.stderr
    assert "much-too-secret" not in done.stderr
