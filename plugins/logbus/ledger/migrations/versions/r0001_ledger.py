"""The ledger as it was when revisions were introduced: the tables that `schema_version` 1 stands for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None

SCHEMA = "logbus"
INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    make_schema_version()
    make_pipeline()
    make_boundaries()
    make_window()
    make_attempt()
    make_dead_letter()


def make_schema_version() -> None:
    made = op.create_table(
        "schema_version", sa.Column("version", sa.Integer, primary_key=True, autoincrement=False), schema=SCHEMA
    )
    op.bulk_insert(made, [{"version": 2}])


def make_pipeline() -> None:
    op.create_table(
        "pipeline",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("topic_id", sa.Text, nullable=False),
        sa.Column("table_name", sa.Text, nullable=False, unique=True),
        sa.Column("parse", sa.Text, nullable=False),
        sa.Column("interval", sa.Interval, nullable=False),
        sa.Column("lateness", sa.Interval, nullable=False),
        sa.Column("starts_at", INSTANT),
        sa.Column("isolation_level", sa.Text, nullable=False),
        sa.Column("settings", JSONB, nullable=False),
        sa.Column("registered_at", INSTANT, nullable=False),
        schema=SCHEMA,
    )


def make_boundaries() -> None:
    op.create_table(
        "anchor",
        sa.Column("pipeline", sa.Text, sa.ForeignKey(f"{SCHEMA}.pipeline.name"), primary_key=True),
        sa.Column("topic_id", sa.Text, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", INSTANT),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("frozen_at", INSTANT, nullable=False),
        schema=SCHEMA,
    )
    op.create_table(
        "boundary",
        sa.Column("pipeline", sa.Text, sa.ForeignKey(f"{SCHEMA}.pipeline.name"), primary_key=True),
        sa.Column("topic_id", sa.Text, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", INSTANT, primary_key=True),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("leader_epoch", sa.Integer),
        sa.Column("frozen_at", INSTANT, nullable=False),
        schema=SCHEMA,
    )


def make_window() -> None:
    op.create_table(
        "window",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("pipeline", sa.Text, sa.ForeignKey(f"{SCHEMA}.pipeline.name"), nullable=False),
        sa.Column("topic_id", sa.Text, nullable=False),
        sa.Column("starts_at", INSTANT, nullable=False),
        sa.Column("ends_at", INSTANT, nullable=False),
        sa.Column("head_unknown", sa.Boolean, nullable=False, server_default="false"),
        sa.Column("frozen_at", INSTANT, nullable=False),
        sa.Column("last_attempt", sa.Integer, nullable=False, server_default="0"),
        sa.Column("loaded_attempt", sa.Integer),
        sa.Column("loaded_at", INSTANT),
        sa.Column("read_count", sa.BigInteger),
        sa.Column("loaded_count", sa.BigInteger),
        sa.Column("dead_lettered_count", sa.BigInteger),
        sa.Column("filtered_count", sa.BigInteger),
        sa.Column("late_count", sa.BigInteger),
        sa.Column("early_count", sa.BigInteger),
        sa.Column("lost_count", sa.BigInteger),
        sa.Column("byte_count", sa.BigInteger),
        sa.Column("fingerprint", sa.Text),
        sa.Column("audited_at", INSTANT),
        sa.Column("audit_problems", JSONB),
        sa.UniqueConstraint("pipeline", "starts_at"),
        schema=SCHEMA,
    )
    op.create_table(
        "window_range",
        sa.Column("window_id", sa.BigInteger, sa.ForeignKey(f"{SCHEMA}.window.id"), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("start_offset", sa.BigInteger, nullable=False),
        sa.Column("end_offset", sa.BigInteger, nullable=False),
        sa.Column("lost", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("first_timestamp", INSTANT),
        sa.Column("last_timestamp", INSTANT),
        schema=SCHEMA,
    )


def make_attempt() -> None:
    op.create_table(
        "attempt",
        sa.Column("window_id", sa.BigInteger, sa.ForeignKey(f"{SCHEMA}.window.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("try_number", sa.Integer, nullable=False),
        sa.Column("staging_table", sa.Text, nullable=False),
        sa.Column("dead_letter_table", sa.Text, nullable=False),
        sa.Column("cleaned", sa.Boolean, nullable=False, server_default="false"),
        sa.Column("began_at", INSTANT, nullable=False),
        sa.Column("heartbeat_at", INSTANT, nullable=False),
        sa.Column("ended_at", INSTANT),
        sa.Column("error", sa.Text),
        schema=SCHEMA,
    )


def make_dead_letter() -> None:
    op.create_table(
        "dead_letter",
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("offset", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("window_id", sa.BigInteger, sa.ForeignKey(f"{SCHEMA}.window.id"), primary_key=True, autoincrement=False),
        sa.Column("timestamp", INSTANT),
        sa.Column("key", sa.LargeBinary),
        sa.Column("value", sa.LargeBinary),
        sa.Column("headers", JSONB),
        sa.Column("error_class", sa.Text, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("fingerprint", sa.BigInteger, nullable=False),
        schema=SCHEMA,
    )
