"""The memory of the stand-in payment providers."""

from __future__ import annotations

from importlib.resources import files

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TABLES = ("calls", "clock", "events", "faults", "idempotency_keys", "sessions")


def upgrade() -> None:
    script = files("persistence.migrations").joinpath("versions/0002_sandbox.sql").read_text("utf-8")
    for statement in script.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    for table in _TABLES:
        op.drop_table(f"sandbox_{table}")
