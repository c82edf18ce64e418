"""Structured logs: JSON lines for machines, coloured lines for a person; the libraries' own logs take the same way."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor

from engine.settings import LogFormat

QUIET_LIBRARIES = ("httpx", "httpcore", "stripe", "alembic", "sqlalchemy.engine", "uvicorn.access", "uvicorn.error")
"""What these say per call at INFO is said once by us, or is nobody's business (addresses, parameters)."""


def configure_logs(log_format: LogFormat, log_level: str) -> None:
    """Send everything from ``log_level`` up to standard error in that form."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if log_format is LogFormat.JSON
        else [
            # The default formatter prints local variables: headers with keys, addresses with passwords.
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(log_level)
    for name in QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
