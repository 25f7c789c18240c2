"""Which record numbers of each producer's stream arrived in which window, for producers that number their records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"

SCHEMA = "logbus"


def upgrade() -> None:
    op.add_column("attempt", sa.Column("streams", sa.Integer), schema=SCHEMA)
    op.create_table(
        "producer_count",
        sa.Column("window_id", sa.BigInteger, sa.ForeignKey(f"{SCHEMA}.window.id"), primary_key=True, autoincrement=False),
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("record_count", sa.BigInteger, nullable=False),
        sa.Column("first_number", sa.BigInteger, nullable=False),
        sa.Column("last_number", sa.BigInteger, nullable=False),
        sa.Column("runs", JSONB(none_as_null=True)),
        schema=SCHEMA,
    )
    op.create_index("ix_logbus_producer_count_stream", "producer_count", ["stream", "last_number"], schema=SCHEMA)
