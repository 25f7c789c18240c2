"""Which windows have been announced to which watcher, and which run has taken them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

SCHEMA = "logbus"
INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "watcher",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("pipeline", sa.Text, nullable=False),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("began_at", INSTANT, nullable=False),
        schema=SCHEMA,
    )
    op.create_table(
        "announcement",
        sa.Column("watcher", sa.Text, sa.ForeignKey(f"{SCHEMA}.watcher.name"), primary_key=True),
        sa.Column("starts_at", INSTANT, primary_key=True),
        sa.Column("announced_at", INSTANT, nullable=False),
        schema=SCHEMA,
    )
    op.create_table(
        "taken_window",
        sa.Column("consumer", sa.Text, primary_key=True),
        sa.Column("pipeline", sa.Text, primary_key=True),
        sa.Column("starts_at", INSTANT, primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("taken_at", INSTANT, nullable=False),
        schema=SCHEMA,
    )
