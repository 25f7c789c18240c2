"""Managed retention: what each topic may keep, what is held back, and everything that was deleted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"

SCHEMA = "logbus"
INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    make_policy()
    make_hold()
    make_run()
    make_deletion()


def make_policy() -> None:
    op.create_table(
        "retention_policy",
        sa.Column("topic", sa.Text, primary_key=True),
        sa.Column("retain", sa.Interval),
        sa.Column("retain_bytes", sa.BigInteger),
        sa.Column("max_hold", sa.Interval, nullable=False),
        sa.Column("when_overdue", sa.Text, nullable=False),
        sa.Column("adopted", JSONB),
        sa.Column("changed_at", INSTANT, nullable=False),
        schema=SCHEMA,
    )


def make_hold() -> None:
    op.create_table(
        "retention_hold",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("until", INSTANT),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("made_at", INSTANT, nullable=False),
        sa.Column("released_at", INSTANT),
        schema=SCHEMA,
    )


def make_run() -> None:
    op.create_table(
        "retention_run",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("began_at", INSTANT, nullable=False),
        sa.Column("ended_at", INSTANT),
        sa.Column("alarms", JSONB),
        sa.Column("error", sa.Text),
        schema=SCHEMA,
    )


def make_deletion() -> None:
    op.create_table(
        "retention_deletion",
        sa.Column("run", sa.BigInteger, sa.ForeignKey(f"{SCHEMA}.retention_run.id"), primary_key=True),
        sa.Column("topic", sa.Text, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("topic_id", sa.Text, nullable=False),
        sa.Column("start_offset", sa.BigInteger, nullable=False),
        sa.Column("end_offset", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("log_start_offset", sa.BigInteger),
        sa.Column("deleted_at", INSTANT),
        schema=SCHEMA,
    )
