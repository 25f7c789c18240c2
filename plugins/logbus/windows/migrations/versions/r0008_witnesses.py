"""What lets a load, a reload and an audit notice that log, settings or rows are not what they were: witnesses of boundaries, the
hours that records are stamped with, the definition an attempt was begun with, a checksum over what was published."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"

SCHEMA = "logbus"


def upgrade() -> None:
    for name, kind in (
        ("witness_offset", sa.BigInteger),
        ("witness_epoch", sa.Integer),
        ("witness_ms", sa.BigInteger),
        ("witness_hash", sa.BigInteger),
    ):
        op.add_column("boundary", sa.Column(name, kind), schema=SCHEMA)
    op.add_column("pipeline", sa.Column("cluster_id", sa.Text), schema=SCHEMA)
    op.add_column("anchor", sa.Column("lost_until", sa.DateTime(timezone=True)), schema=SCHEMA)
    op.add_column("window", sa.Column("values_hash", sa.Text), schema=SCHEMA)
    op.add_column("window", sa.Column("other_records", JSONB), schema=SCHEMA)
    op.add_column("window", sa.Column("loss_accepted", JSONB), schema=SCHEMA)
    op.add_column("attempt", sa.Column("key", sa.Text), schema=SCHEMA)
    op.add_column("attempt", sa.Column("definition", JSONB), schema=SCHEMA)
    op.add_column("pipeline_dag", sa.Column("definition", JSONB), schema=SCHEMA)
    op.create_table(
        "window_hour",
        sa.Column("window_id", sa.BigInteger, sa.ForeignKey(f"{SCHEMA}.window.id"), primary_key=True, autoincrement=False),
        sa.Column("hour", sa.DateTime(timezone=True), primary_key=True),
        sa.Column("record_count", sa.BigInteger, nullable=False),
        schema=SCHEMA,
    )
    op.create_index("ix_logbus_window_hour_hour", "window_hour", ["hour"], schema=SCHEMA)
