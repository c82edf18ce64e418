"""What persister and admission count for Prometheus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

ENTRIES_STORED = Counter("lastportion_outbox_entries_stored_total", "Outbox entries that Postgres has taken.")
ENTRIES_SET_ASIDE = Counter(
    "lastportion_outbox_entries_set_aside_total", "Outbox entries that could not be stored and were set aside."
)
LAG_ENTRIES = Gauge("lastportion_outbox_lag_entries", "Outbox entries that Postgres has not taken yet.")
PARTITIONS_STOPPED = Gauge(
    "lastportion_outbox_partitions_stopped",
    "Partitions whose outbox has a gap: they persist nothing.",
)
EPOCH = Gauge("lastportion_redis_epoch", "The epoch that this process is admitted under, 0 while it is not.")
ADMISSIONS = Counter("lastportion_redis_epochs_begun_total", "Epochs begun by this process, by reason.", ("reason",))
