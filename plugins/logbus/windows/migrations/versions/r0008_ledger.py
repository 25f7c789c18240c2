"""The first ledger: exactly the tables of `windows/schema.py` at the time of the first release. No state before is upgraded."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = None

# In SQL, not by schema.py's own tables: those change with later revisions, this one does not.
TABLES = """
create table logbus.pipeline (
    name text primary key,
    topic text not null,
    topic_id text not null,
    table_name text not null unique,
    parse text not null,
    "interval" interval not null,
    lateness interval not null,
    starts_at timestamptz,
    isolation_level text not null,
    settings jsonb not null,
    registered_at timestamptz not null,
    cluster_id text,
    timezone text not null default 'UTC'
);
create table logbus.inferred_column (
    pipeline text not null references logbus.pipeline,
    name text not null,
    type text not null,
    found_at timestamptz not null,
    primary key (pipeline, name)
);
create table logbus.pipeline_dag (
    pipeline text not null references logbus.pipeline,
    dag_id text not null,
    seen_at timestamptz not null,
    definition jsonb,
    primary key (pipeline, dag_id)
);
create table logbus.anchor (
    pipeline text not null references logbus.pipeline,
    topic_id text not null,
    partition integer not null,
    at timestamptz,
    "offset" bigint not null,
    frozen_at timestamptz not null,
    lost_until timestamptz,
    primary key (pipeline, topic_id, partition)
);
create table logbus.boundary (
    pipeline text not null references logbus.pipeline,
    topic_id text not null,
    partition integer not null,
    at timestamptz not null,
    "offset" bigint not null,
    leader_epoch integer,
    frozen_at timestamptz not null,
    witness_offset bigint,
    witness_epoch integer,
    witness_ms bigint,
    witness_hash bigint,
    primary key (pipeline, topic_id, partition, at)
);
create table logbus."window" (
    id bigint generated always as identity primary key,
    pipeline text not null references logbus.pipeline,
    topic_id text not null,
    starts_at timestamptz not null,
    ends_at timestamptz not null,
    head_unknown boolean not null default false,
    frozen_at timestamptz not null,
    last_attempt integer not null default 0,
    loaded_attempt integer,
    loaded_at timestamptz,
    read_count bigint,
    loaded_count bigint,
    dead_lettered_count bigint,
    filtered_count bigint,
    late_count bigint,
    early_count bigint,
    lost_count bigint,
    byte_count bigint,
    fingerprint text,
    audited_at timestamptz,
    audit_problems jsonb,
    unstamped_count bigint,
    far_count bigint,
    values_hash jsonb,
    other_records jsonb,
    loss_accepted jsonb,
    unique (pipeline, starts_at)
);
create table logbus.window_range (
    window_id bigint not null references logbus."window",
    partition integer not null,
    start_offset bigint not null,
    end_offset bigint not null,
    lost bigint not null default 0,
    first_timestamp timestamptz,
    last_timestamp timestamptz,
    primary key (window_id, partition)
);
create table logbus.window_hour (
    window_id bigint not null references logbus."window",
    hour timestamptz not null,
    record_count bigint not null,
    primary key (window_id, hour)
);
create index ix_logbus_window_hour_hour on logbus.window_hour (hour);
create table logbus.attempt (
    window_id bigint not null references logbus."window",
    number integer not null,
    state text not null,
    run_id text not null,
    try_number integer not null,
    staging_table text not null,
    dead_letter_table text not null,
    cleaned boolean not null default false,
    began_at timestamptz not null,
    heartbeat_at timestamptz not null,
    ended_at timestamptz,
    error text,
    read_count bigint,
    loaded_count bigint,
    dead_lettered_count bigint,
    filtered_count bigint,
    late_count bigint,
    early_count bigint,
    lost_count bigint,
    byte_count bigint,
    fingerprint text,
    partitions jsonb,
    error_samples jsonb,
    streams integer,
    dag_id text,
    task_id text,
    map_index integer,
    key text not null,
    definition jsonb,
    error_kind text,
    accepts_other_records boolean not null default false,
    task_logins jsonb,
    task_logins_note text,
    primary key (window_id, number)
);
create index ix_logbus_attempt_task_logins on logbus.attempt (window_id) where task_logins is not null;
create table logbus.dead_letter (
    topic text not null,
    partition integer not null,
    "offset" bigint not null,
    window_id bigint not null references logbus."window",
    "timestamp" timestamptz,
    key bytea,
    value bytea,
    headers jsonb,
    error_class text not null,
    error text not null,
    attempt integer not null,
    fingerprint bigint not null,
    run_id text,
    primary key (partition, "offset", window_id)
);
create table logbus.redrive (
    id bigint generated always as identity primary key,
    window_id bigint not null references logbus."window",
    attempt integer not null,
    run_id text not null,
    redriven_at timestamptz not null,
    tried_count bigint not null,
    loaded_count bigint not null,
    dead_lettered_count bigint not null
);
create index ix_logbus_redrive_window_id on logbus.redrive (window_id);
create table logbus.producer_count (
    window_id bigint not null references logbus."window",
    stream text not null,
    attempt integer not null,
    record_count bigint not null,
    first_number bigint not null,
    last_number bigint not null,
    runs jsonb,
    primary key (window_id, stream)
);
create index ix_logbus_producer_count_stream on logbus.producer_count (stream, last_number);
create table logbus.retention_policy (
    topic text primary key,
    retain interval,
    retain_bytes bigint,
    max_hold interval not null,
    when_overdue text not null,
    adopted jsonb,
    changed_at timestamptz not null
);
create table logbus.retention_hold (
    id bigint generated always as identity primary key,
    topic text not null,
    until timestamptz,
    reason text not null,
    made_at timestamptz not null,
    released_at timestamptz
);
create table logbus.retention_run (
    id bigint generated always as identity primary key,
    run_id text not null,
    began_at timestamptz not null,
    ended_at timestamptz,
    alarms jsonb,
    error text
);
create table logbus.retention_deletion (
    run bigint not null references logbus.retention_run,
    topic text not null,
    partition integer not null,
    topic_id text not null,
    start_offset bigint not null,
    end_offset bigint not null,
    reason text not null,
    state text not null,
    log_start_offset bigint,
    deleted_at timestamptz,
    primary key (run, topic, partition)
);
create table logbus.watcher (
    name text primary key,
    pipeline text not null,
    stage text not null,
    began_at timestamptz not null
);
create table logbus.announcement (
    watcher text not null references logbus.watcher,
    starts_at timestamptz not null,
    announced_at timestamptz not null,
    primary key (watcher, starts_at)
);
create table logbus.taken_window (
    consumer text not null,
    pipeline text not null,
    starts_at timestamptz not null,
    run_id text not null,
    taken_at timestamptz not null,
    primary key (consumer, pipeline, starts_at)
);
create table logbus.audited_table (
    table_name text not null,
    topic text not null,
    audited_at timestamptz not null,
    foreign_rows bigint not null,
    remarks jsonb not null,
    primary key (table_name, topic)
);
create table logbus.audited_hour (
    table_name text not null,
    topic text not null,
    starts_at timestamptz not null,
    audited_at timestamptz not null,
    verdict text not null,
    record_count bigint not null,
    row_count bigint not null,
    missing_count bigint not null,
    doubled_count bigint not null,
    remarks jsonb not null,
    foreign_count bigint,
    primary key (table_name, topic, starts_at),
    foreign key (table_name, topic) references logbus.audited_table
);
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
create table logbus.schema (
    pipeline text not null references logbus.pipeline (name),
    reference bytea not null,
    type text not null,
    text text not null,
    id bigint,
    guid text,
    imports jsonb not null,
    registry text,
    frozen_at timestamptz not null,
    primary key (pipeline, reference)
);
create table logbus.schema_use (
    window_id bigint not null references logbus."window" (id),
    prefix bytea not null,
    attempt integer not null,
    record_count bigint not null,
    primary key (window_id, prefix)
);
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
create table logbus.stream_join (
    name text primary key,
    left_stream text not null references logbus.stream,
    right_stream text not null references logbus.stream,
    table_name text not null unique,
    definition jsonb not null,
    registered_at timestamptz not null
);
create view logbus.complete_until as
    with chain as (
        select pipeline, starts_at, ends_at, audited_at,
            lag(ends_at) over (partition by pipeline order by starts_at) as end_before
        from logbus.window
    )
    select p.name as pipeline, p.topic, p.table_name, least(
        max(c.ends_at),
        min(c.starts_at) filter (where c.audited_at is null),
        min(c.end_before) filter (where c.end_before < c.starts_at)
    ) as complete_until
    from logbus.pipeline p
    left join lateral (
        select exists (
            select from logbus.window_range r
            join logbus.anchor a on (a.pipeline, a.topic_id, a.partition) = (w.pipeline, w.topic_id, r.partition)
            where r.window_id = w.id and r.start_offset > a.offset
        ) as is_headless
        from logbus.window w where w.pipeline = p.name order by w.starts_at limit 1
    ) head on true
    left join chain c on c.pipeline = p.name and not head.is_headless
    group by p.name;
"""


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)
