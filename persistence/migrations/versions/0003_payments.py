"""Payments in full: the refund ledger, what providers say of refunds and disputes, attempts that follow each other."""

from __future__ import annotations

from importlib.resources import files

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    script = files("persistence.migrations").joinpath("versions/0003_payments.sql").read_text("utf-8")
    for statement in script.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("A ledger of money that went back is not thrown away; restore a backup instead.")
