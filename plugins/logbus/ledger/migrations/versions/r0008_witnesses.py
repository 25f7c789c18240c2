"""What lets a load, a reload or an audit notice that log, settings or rows have changed: witnesses of boundaries, the hours in
records' timestamps, the definition that an attempt began with, a checksum over the published rows."""

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
    op.add_column("window", sa.Column("unstamped_count", sa.BigInteger), schema=SCHEMA)
    op.add_column("window", sa.Column("far_count", sa.BigInteger), schema=SCHEMA)
    op.add_column("window", sa.Column("values_hash", JSONB), schema=SCHEMA)
    op.add_column("window", sa.Column("other_records", JSONB), schema=SCHEMA)
    op.add_column("window", sa.Column("loss_accepted", JSONB), schema=SCHEMA)
    op.add_column("attempt", sa.Column("key", sa.Text), schema=SCHEMA)
    op.add_column("attempt", sa.Column("definition", JSONB), schema=SCHEMA)
    op.add_column("attempt", sa.Column("error_kind", sa.Text), schema=SCHEMA)
    accepts = sa.Column("accepts_other_records", sa.Boolean, nullable=False, server_default="false")
    op.add_column("attempt", accepts, schema=SCHEMA)
    op.add_column("pipeline_dag", sa.Column("definition", JSONB), schema=SCHEMA)
    op.create_table(
        "window_hour",
        sa.Column("window_id", sa.BigInteger, sa.ForeignKey(f"{SCHEMA}.window.id"), primary_key=True, autoincrement=False),
        sa.Column("hour", sa.DateTime(timezone=True), primary_key=True),
        sa.Column("record_count", sa.BigInteger, nullable=False),
        schema=SCHEMA,
    )
    op.create_index("ix_logbus_window_hour_hour", "window_hour", ["hour"], schema=SCHEMA)
    make_table_names_canonical()


def make_table_names_canonical() -> None:
    """`public.t` becomes `t`. Where another pipeline has that name already, both names stay and the conflict is found when they
    are compared: neither pipeline loads anything until one has a different table."""
    op.execute(
        f"update {SCHEMA}.pipeline one set table_name = substr(table_name, 8) where table_name like 'public.%' "
        f"and not exists (select from {SCHEMA}.pipeline other where other.table_name = substr(one.table_name, 8))"
    )
