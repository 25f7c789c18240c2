"""Streams: what is counted as it arrives, and the chain of its epochs."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"

TABLES = """
create table logbus.stream (
    name text primary key,
    topic text not null,
    topic_id text not null,
    pipeline text references logbus.pipeline,
    definition jsonb not null,
    registered_at timestamptz not null,
    owner bigint not null default 0,
    heartbeat_at timestamptz
);
create table logbus.epoch_part (
    stream text not null references logbus.stream,
    partition integer not null,
    start_offset bigint not null,
    end_offset bigint not null,
    epoch bigint not null,
    hour timestamptz not null,
    read_count bigint not null,
    counted_count bigint not null,
    filtered_count bigint not null,
    dead_lettered_count bigint not null,
    fingerprint text not null,
    committed_at timestamptz not null,
    primary key (stream, partition, start_offset)
);
create index ix_logbus_epoch_part_hour on logbus.epoch_part (stream, hour);
"""


def upgrade() -> None:
    op.execute(TABLES)
