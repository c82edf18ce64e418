"""What this process counts for Prometheus; children are kept by label, so that counting costs next to nothing."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from api.readiness import Readiness
    from engine.domain import Provider
    from engine.refunds import OwedRefunds

__all__ = [
    "CONTENT_TYPE_LATEST",
    "WebhookResult",
    "count_request",
    "count_reservation",
    "count_webhook",
    "exposition",
    "report_money",
    "report_readiness",
]


class WebhookResult(StrEnum):
    """What became of a webhook. ``foreign`` is authentic and about nothing that we act on."""

    ACCEPTED = "accepted"
    FOREIGN = "foreign"
    BAD_SIGNATURE = "bad_signature"
    MALFORMED = "malformed"
    UNAVAILABLE = "unavailable"


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
WEBHOOKS = Counter("lastportion_webhooks_total", "Webhooks by provider and result.", ("provider", "result"))
READY = Gauge("lastportion_ready", "Whether this deployment could reserve and persist when last looked at.")
JOB_SUCCESS = Gauge("lastportion_job_last_success_timestamp_seconds", "When a job last succeeded.", ("job",))
JOB_FAILURES = Gauge("lastportion_job_failures", "Failures of a job since it last succeeded.", ("job",))
JOB_OVERDUE = Gauge("lastportion_job_overdue", "Whether a job has not succeeded for two of its periods.", ("job",))
REFUNDS_OWED = Gauge("lastportion_refunds_owed", "Refunds that have not gone back yet.")
OLDEST_REFUND_OWED = Gauge("lastportion_oldest_refund_owed_seconds", "How long the oldest of them has been owed.")
UNMATCHED = Gauge("lastportion_unmatched_settlements", "Events about money for a session that nothing here knows.")


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


def count_webhook(provider: Provider, result: WebhookResult) -> None:
    """Count one webhook that was read whole."""
    WEBHOOKS.labels(provider.value, result.value).inc()


def report_readiness(readiness: Readiness) -> None:
    """Set what is read from Postgres and Redis rather than counted here."""
    READY.set(readiness.ready)
    for report in readiness.jobs:
        if report.last_success_at is not None:
            JOB_SUCCESS.labels(report.job).set(report.last_success_at.timestamp())
        JOB_FAILURES.labels(report.job).set(report.failures)
        JOB_OVERDUE.labels(report.job).set(report.overdue)


def report_money(owed: OwedRefunds, unmatched: int) -> None:
    """Set what the ledger and the inbox say; while Postgres is away they stay as they were last seen."""
    REFUNDS_OWED.set(owed.count)
    OLDEST_REFUND_OWED.set(owed.oldest_seconds)
    UNMATCHED.set(unmatched)


def exposition() -> bytes:
    """Everything counted, in Prometheus' text format."""
    return generate_latest()
