"""What this process counts for Prometheus; children are kept by label, so that counting costs next to nothing."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from api.readiness import Readiness

__all__ = ["CONTENT_TYPE_LATEST", "count_request", "count_reservation", "exposition", "report_readiness"]

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

REQUESTS = Histogram(
    "lastportion_http_request_duration_seconds",
    "Time from the first byte of a request to the last of its answer.",
    ("method", "route", "status"),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
RESERVATIONS = Counter(
    "lastportion_reservations_total", "Answers to requests for a reservation, by outcome.", ("outcome",)
)
READY = Gauge("lastportion_ready", "Whether this deployment could reserve and persist when last looked at.")
JOB_SUCCESS = Gauge("lastportion_job_last_success_timestamp_seconds", "When a job last succeeded.", ("job",))
JOB_FAILURES = Gauge("lastportion_job_failures", "Failures of a job since it last succeeded.", ("job",))
JOB_OVERDUE = Gauge("lastportion_job_overdue", "Whether a job has not succeeded for two of its periods.", ("job",))


@lru_cache(maxsize=2048)
def _request(method: str, route: str, status: int) -> Histogram:
    return REQUESTS.labels(method, route, str(status))


@lru_cache(maxsize=64)
def _reservation(outcome: str) -> Counter:
    return RESERVATIONS.labels(outcome)


def count_request(method: str, route: str, status: int, seconds: float) -> None:
    """Count one request; ``status`` is 0 where the client left before an answer."""
    _request(method if method in _METHODS else "other", route, status).observe(seconds)


def count_reservation(outcome: str) -> None:
    """Count one answer: ``granted``, ``existing``, or the code of an error."""
    _reservation(outcome).inc()


def report_readiness(readiness: Readiness) -> None:
    """Set what is read from Postgres and Redis rather than counted here."""
    READY.set(readiness.ready)
    for report in readiness.jobs:
        if report.last_success_at is not None:
            JOB_SUCCESS.labels(report.job).set(report.last_success_at.timestamp())
        JOB_FAILURES.labels(report.job).set(report.failures)
        JOB_OVERDUE.labels(report.job).set(report.overdue)


def exposition() -> bytes:
    """Everything counted, in Prometheus' text format."""
    return generate_latest()
