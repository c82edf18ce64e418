"""The first schema: catalogue, reservations, orders, settlements, outbox."""

from __future__ import annotations

from importlib.resources import files

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    script = files("persistence.migrations").joinpath("versions/0001_first_schema.sql").read_text("utf-8")
    for statement in script.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("there is nothing before the first schema; drop the database instead")
