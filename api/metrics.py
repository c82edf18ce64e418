"""What this process counts for Prometheus; children are kept by label, so that counting costs next to nothing."""

from __future__ import annotations

from functools import lru_cache

from prometheus_client import CONTENT_TYPE_LATEST, Counter, Gauge, Histogram, generate_latest

__all__ = ["CONTENT_TYPE_LATEST", "READY", "count_request", "count_reservation", "exposition"]

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
READY = Gauge("lastportion_ready", "Whether this process could reserve and persist when last asked by /readyz.")


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


def exposition() -> bytes:
    """Everything counted, in Prometheus' text format."""
    return generate_latest()
