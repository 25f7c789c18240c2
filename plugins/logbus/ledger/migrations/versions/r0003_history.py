"""What each attempt read and loaded, and why it was refused; which run a dead letter is from; what redrives changed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"

SCHEMA = "logbus"
INSTANT = sa.DateTime(timezone=True)

COUNTS = ("read", "loaded", "dead_lettered", "filtered", "late", "early", "lost", "byte")


def upgrade() -> None:
    for name in COUNTS:
        op.add_column("attempt", sa.Column(f"{name}_count", sa.BigInteger), schema=SCHEMA)
    op.add_column("attempt", sa.Column("fingerprint", sa.Text), schema=SCHEMA)
    op.add_column("attempt", sa.Column("partitions", JSONB), schema=SCHEMA)
    op.add_column("attempt", sa.Column("error_samples", JSONB), schema=SCHEMA)
    op.add_column("dead_letter", sa.Column("run_id", sa.Text), schema=SCHEMA)
    make_redrive()


def make_redrive() -> None:
    op.create_table(
        "redrive",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("window_id", sa.BigInteger, sa.ForeignKey(f"{SCHEMA}.window.id"), nullable=False, index=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("redriven_at", INSTANT, nullable=False),
        sa.Column("tried_count", sa.BigInteger, nullable=False),
        sa.Column("loaded_count", sa.BigInteger, nullable=False),
        sa.Column("dead_lettered_count", sa.BigInteger, nullable=False),
        schema=SCHEMA,
    )
