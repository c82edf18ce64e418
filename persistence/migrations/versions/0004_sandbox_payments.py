"""The sandbox's memory of refunds, disputes and Paystack's transactions."""

from __future__ import annotations

from importlib.resources import files

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    script = files("persistence.migrations").joinpath("versions/0004_sandbox_payments.sql").read_text("utf-8")
    for statement in script.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("Sessions without an end have no place in the schema before; restore a backup instead.")
