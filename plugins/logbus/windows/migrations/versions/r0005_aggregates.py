"""Aggregates: tables that are computed from a pipeline's rows, by the hours of their own times."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"

TABLES = """
create table logbus.aggregate (
    name text primary key,
    pipeline text not null references logbus.pipeline,
    table_name text not null unique,
    definition jsonb not null,
    registered_at timestamptz not null,
    columns jsonb,
    newest bigint
);
create table logbus.aggregation (
    id bigint generated always as identity primary key,
    aggregate text not null references logbus.aggregate,
    state text not null,
    run_id text not null,
    began_at timestamptz not null,
    ended_at timestamptz,
    window_count bigint not null default 0,
    hour_count bigint not null default 0,
    row_count bigint not null default 0,
    error text
);
create index ix_logbus_aggregation_aggregate on logbus.aggregation (aggregate);
create table logbus.aggregated_window (
    aggregate text not null references logbus.aggregate,
    window_id bigint not null,
    loaded_attempt integer not null,
    loaded_count bigint not null,
    untimed_count bigint not null,
    missing_count bigint not null,
    primary key (aggregate, window_id)
);
create table logbus.touched_hour (
    aggregate text not null,
    hour timestamptz not null,
    window_id bigint not null,
    row_count bigint not null,
    primary key (aggregate, hour, window_id),
    foreign key (aggregate, window_id) references logbus.aggregated_window
);
create index ix_logbus_touched_hour_window on logbus.touched_hour (aggregate, window_id);
create table logbus.aggregated_hour (
    aggregate text not null references logbus.aggregate,
    hour timestamptz not null,
    aggregation bigint not null references logbus.aggregation,
    row_count bigint not null,
    audited_at timestamptz,
    audit_problems jsonb,
    kept_because text,
    primary key (aggregate, hour)
);
"""


def upgrade() -> None:
    op.execute(TABLES)
