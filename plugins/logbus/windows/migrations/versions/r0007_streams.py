"""Streams: aggregates that are computed as records arrive, the chain of their epochs, and what was proven of them."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"

TABLES = """
create table logbus.stream (
    name text primary key,
    pipeline text not null references logbus.pipeline,
    topic text not null,
    topic_id text not null,
    table_name text not null unique,
    definition jsonb not null,
    since timestamptz,
    columns jsonb,
    registered_at timestamptz not null,
    owner bigint not null default 0,
    owner_run text,
    began_at timestamptz,
    heartbeat_at timestamptz,
    ended_at timestamptz,
    error text
);
create table logbus.stream_partition (
    stream text not null references logbus.stream,
    partition integer not null,
    start_offset bigint not null,
    end_offset bigint not null,
    primary key (stream, partition)
);
create table logbus.stream_epoch (
    stream text not null references logbus.stream,
    number bigint not null,
    committed_at timestamptz not null,
    read_count bigint not null,
    newest_timestamp timestamptz,
    primary key (stream, number)
);
create table logbus.epoch_part (
    stream text not null references logbus.stream,
    partition integer not null,
    start_offset bigint not null,
    end_offset bigint not null,
    epoch bigint not null,
    hour timestamptz not null,
    read_count bigint not null,
    filtered_count bigint not null,
    dead_lettered_count bigint not null,
    untimed_count bigint not null,
    fingerprint text not null,
    primary key (stream, partition, start_offset)
);
create index ix_logbus_epoch_part_hour on logbus.epoch_part (stream, hour);
create table logbus.stream_hour (
    stream text not null references logbus.stream,
    hour timestamptz not null,
    state text not null,
    loaded_attempt integer not null,
    loaded_count bigint not null,
    record_count bigint not null,
    proven_at timestamptz not null,
    replaced_by integer,
    difference_count bigint not null,
    differences jsonb not null,
    primary key (stream, hour)
);
"""


def upgrade() -> None:
    op.execute(TABLES)
