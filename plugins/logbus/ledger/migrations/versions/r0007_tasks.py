"""Which Airflow task began an attempt and which DAGs work on a pipeline, to decide which users may see and rerun what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

SCHEMA = "logbus"


def upgrade() -> None:
    op.add_column("attempt", sa.Column("dag_id", sa.Text), schema=SCHEMA)
    op.add_column("attempt", sa.Column("task_id", sa.Text), schema=SCHEMA)
    op.add_column("attempt", sa.Column("map_index", sa.Integer), schema=SCHEMA)
    op.create_table(
        "pipeline_dag",
        sa.Column("pipeline", sa.Text, sa.ForeignKey(f"{SCHEMA}.pipeline.name"), primary_key=True),
        sa.Column("dag_id", sa.Text, primary_key=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        schema=SCHEMA,
    )
