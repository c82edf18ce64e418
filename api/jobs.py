"""Which jobs a worker runs, and how often."""

from __future__ import annotations

from api.services import Services
from engine.jobs import Job
from engine.reconciling import RECONCILE_PROVIDERS_JOB
from persistence.retention import REMOVE_RECORDS_JOB, RecordRemover


def jobs_of(services: Services) -> list[Job]:
    """The jobs of a deployment; several workers at once repeat work and spoil nothing."""
    remover = RecordRemover(services.settings, services.database, services.engine)
    return [
        Job("apply_settlements", 1.0, services.settlement.apply_pending),
        Job("push_definitions", 1.0, services.definitions.push_pending),
        Job("pay_refunds", 2.0, services.refunds.pay_due),
        Job("count_refund_news", 2.0, services.refunds.count_pending),
        Job("close_overdue_attempts", 15.0, services.overdue.close),
        Job(RECONCILE_PROVIDERS_JOB, 900.0, services.reconciler.run_job, first_after_seconds=10.0),
        Job(REMOVE_RECORDS_JOB, 60.0, remover.run),
    ]
