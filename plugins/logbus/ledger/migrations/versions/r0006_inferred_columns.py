"""Columns found in a pipeline's records, for pipelines that infer them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

SCHEMA = "logbus"


def upgrade() -> None:
    op.create_table(
        "inferred_column",
        sa.Column("pipeline", sa.Text, sa.ForeignKey(f"{SCHEMA}.pipeline.name"), primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("found_at", sa.DateTime(timezone=True), nullable=False),
        schema=SCHEMA,
    )
