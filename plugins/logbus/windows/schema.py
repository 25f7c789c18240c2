"""The ledger's tables: schema `logbus` in the warehouse's own PostgreSQL, so that rows and offsets commit together.

    pipeline       what is loaded where, and how
    inferred_column  columns that its records showed, where it infers them
    pipeline_dag   the DAGs whose tasks work on it
    anchor         where a pipeline's chain of windows begins in each partition
    boundary       B(T) of a partition: inserted once, never changed
    window         an interval whose ranges are decided; counts and fingerprint of the attempt that is loaded
    window_range   its offsets in each partition
    window_hour    how many of its records are stamped with each hour
    attempt        one try at loading a window; the number is the fence
    dead_letter    records that did not parse, with the reason and the raw bytes
    redrive        dead letters of a window parsed again
    producer_count which numbers of a producer's stream arrived in a window

    retention_policy    how long and how much of a topic is kept, and for how long unloaded windows hold it back
    retention_hold      a topic from which nothing is deleted, until when and why
    retention_run       one run of the managed retention
    retention_deletion  offsets it deleted, or was about to

    watcher        a trigger in Airflow that waits for windows of a pipeline to reach a stage
    announcement   windows announced to it
    taken_window   which run of an event-driven DAG a window belongs to

They are created and changed by the revisions in `migrations/`, which lead to exactly these.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.postgresql import JSONB

from logbus.windows.table_names import SCHEMA

metadata = MetaData(schema=SCHEMA)

pipeline = Table(
    "pipeline",
    metadata,
    Column("name", Text, primary_key=True),
    Column("topic", Text, nullable=False),
    Column("topic_id", Text, nullable=False),  # the broker's: a recreated topic has another
    Column("table_name", Text, nullable=False, unique=True),
    Column("parse", Text, nullable=False),
    Column("interval", Interval, nullable=False),
    Column("lateness", Interval, nullable=False),  # how long after its end a window stays open
    Column("starts_at", DateTime(timezone=True)),  # null: at the earliest record
    Column("isolation_level", Text, nullable=False),
    Column("settings", JSONB, nullable=False),
    Column("registered_at", DateTime(timezone=True), nullable=False),
    Column("cluster_id", Text),  # the cluster that has the topic; null: not asked yet
)

inferred_column = Table(
    "inferred_column",
    metadata,
    Column("pipeline", Text, ForeignKey(pipeline.c.name), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("type", Text, nullable=False),
    Column("found_at", DateTime(timezone=True), nullable=False),
)

pipeline_dag = Table(
    "pipeline_dag",
    metadata,
    Column("pipeline", Text, ForeignKey(pipeline.c.name), primary_key=True),
    Column("dag_id", Text, primary_key=True),
    Column("seen_at", DateTime(timezone=True), nullable=False),  # first
    Column("definition", JSONB),  # of the pipeline, as the DAG last defined it
)

anchor = Table(
    "anchor",
    metadata,
    Column("pipeline", Text, ForeignKey(pipeline.c.name), primary_key=True),
    Column("topic_id", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("at", DateTime(timezone=True)),  # null: from the beginning of time
    Column("offset", BigInteger, nullable=False),
    Column("frozen_at", DateTime(timezone=True), nullable=False),
    Column("lost_until", DateTime(timezone=True)),  # windows that begin earlier may lack records that are gone; null: none do
)

boundary = Table(
    "boundary",
    metadata,
    Column("pipeline", Text, ForeignKey(pipeline.c.name), primary_key=True),
    Column("topic_id", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("at", DateTime(timezone=True), primary_key=True),  # T: where one window ends and the next begins
    Column("offset", BigInteger, nullable=False),
    Column("leader_epoch", Integer),
    Column("frozen_at", DateTime(timezone=True), nullable=False),
    # The last record before the offset, as it was when the boundary was frozen; null: there was none, or it was not read.
    Column("witness_offset", BigInteger),
    Column("witness_epoch", Integer),
    Column("witness_ms", BigInteger),  # its timestamp
    Column("witness_hash", BigInteger),  # logbus.fingerprint, signed
)


def what_was_loaded() -> list[Column[Any]]:
    """An attempt has these columns, and the window has them for the attempt that is public."""
    return [
        Column("read_count", BigInteger),
        Column("loaded_count", BigInteger),
        Column("dead_lettered_count", BigInteger),
        Column("filtered_count", BigInteger),
        Column("late_count", BigInteger),  # stamped before the window
        Column("early_count", BigInteger),  # stamped after it
        Column("lost_count", BigInteger),  # deleted before they were read
        Column("byte_count", BigInteger),
        Column("fingerprint", Text),
    ]


window = Table(
    "window",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("pipeline", Text, ForeignKey(pipeline.c.name), nullable=False),
    Column("topic_id", Text, nullable=False),
    Column("starts_at", DateTime(timezone=True), nullable=False),
    Column("ends_at", DateTime(timezone=True), nullable=False),
    Column("head_unknown", Boolean, nullable=False, server_default="false"),  # retention was faster: never audited
    Column("frozen_at", DateTime(timezone=True), nullable=False),
    Column("last_attempt", Integer, nullable=False, server_default="0"),  # the fence: only this one may commit
    Column("loaded_attempt", Integer),  # the attempt whose rows are public; null: none; 0: proven empty by its boundaries
    Column("loaded_at", DateTime(timezone=True)),
    *what_was_loaded(),
    Column("audited_at", DateTime(timezone=True)),
    Column("audit_problems", JSONB),
    Column("unstamped_count", BigInteger),  # without a usable timestamp
    Column("far_count", BigInteger),  # stamped with hours far from the window's own, too many to count each of them
    Column("values_hash", JSONB),  # checksums over what was published, taken at commit: logbus.loads.checksum; null: nothing was
    Column("other_records", JSONB),  # reloads that were allowed to read other records than the load before; kept forever
    Column("loss_accepted", JSONB),  # who accepted the loss of a window whose head is unknown, by name
    UniqueConstraint("pipeline", "starts_at"),
)

window_range = Table(
    "window_range",
    metadata,
    Column("window_id", BigInteger, ForeignKey(window.c.id), primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("start_offset", BigInteger, nullable=False),
    Column("end_offset", BigInteger, nullable=False),  # exclusive
    Column("lost", BigInteger, nullable=False, server_default="0"),
    Column("first_timestamp", DateTime(timezone=True)),
    Column("last_timestamp", DateTime(timezone=True)),
)

window_hour = Table(
    "window_hour",
    metadata,
    Column("window_id", BigInteger, ForeignKey(window.c.id), primary_key=True, autoincrement=False),
    Column("hour", DateTime(timezone=True), primary_key=True),  # with which the records are stamped, not the window's
    Column("record_count", BigInteger, nullable=False),
    Index("ix_logbus_window_hour_hour", "hour"),
)

attempt = Table(
    "attempt",
    metadata,
    Column("window_id", BigInteger, ForeignKey(window.c.id), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("try_number", Integer, nullable=False),
    Column("staging_table", Text, nullable=False),
    Column("dead_letter_table", Text, nullable=False),
    Column("cleaned", Boolean, nullable=False, server_default="false"),
    Column("began_at", DateTime(timezone=True), nullable=False),
    Column("heartbeat_at", DateTime(timezone=True), nullable=False),
    Column("ended_at", DateTime(timezone=True)),
    Column("error", Text),
    *what_was_loaded(),  # if it is committed
    Column("partitions", JSONB),
    Column("error_samples", JSONB),  # of an attempt over its error budget: what did not parse
    Column("streams", Integer),  # how many streams of numbered records it holds; null: not committed
    # The Airflow task that began it; null: the command line.
    Column("dag_id", Text),
    Column("task_id", Text),
    Column("map_index", Integer),  # null: the task is not mapped
    Column("key", Text, nullable=False),  # random: distinguishes it from an attempt with the same number in a restored ledger
    Column("definition", JSONB),  # of the pipeline, as it was when the attempt began: what the driver uses; null: rebuilt
    Column("error_kind", Text),  # the class of the error, if the driver itself reported why it failed
    # A reload that finds other records than the load before may replace them; explicitly allowed for this run.
    Column("accepts_other_records", Boolean, nullable=False, server_default="false"),
)

dead_letter = Table(
    "dead_letter",
    metadata,
    Column("topic", Text, nullable=False),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("offset", BigInteger, primary_key=True, autoincrement=False),
    Column("window_id", BigInteger, primary_key=True, autoincrement=False),
    Column("timestamp", DateTime(timezone=True)),
    Column("key", LargeBinary),
    Column("value", LargeBinary),
    Column("headers", JSONB),
    Column("error_class", Text, nullable=False),
    Column("error", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("fingerprint", BigInteger, nullable=False),
    Column("run_id", Text),
    ForeignKeyConstraint(["window_id"], [window.c.id]),
)

redrive = Table(
    "redrive",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("window_id", BigInteger, ForeignKey(window.c.id), nullable=False, index=True),
    Column("attempt", Integer, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("redriven_at", DateTime(timezone=True), nullable=False),
    Column("tried_count", BigInteger, nullable=False),  # dead letters it looked at
    Column("loaded_count", BigInteger, nullable=False),
    Column("dead_lettered_count", BigInteger, nullable=False),
)

producer_count = Table(
    "producer_count",
    metadata,
    Column("window_id", BigInteger, ForeignKey(window.c.id), primary_key=True, autoincrement=False),
    Column("stream", Text, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("record_count", BigInteger, nullable=False),
    Column("first_number", BigInteger, nullable=False),
    Column("last_number", BigInteger, nullable=False),
    Column("runs", JSONB(none_as_null=True)),  # [first, last] each; null: too many to keep
    Index("ix_logbus_producer_count_stream", "stream", "last_number"),
)

retention_policy = Table(
    "retention_policy",
    metadata,
    Column("topic", Text, primary_key=True),
    Column("retain", Interval),  # null: whatever its age
    Column("retain_bytes", BigInteger),  # null: whatever its size
    Column("max_hold", Interval, nullable=False),
    Column("when_overdue", Text, nullable=False),
    Column("adopted", JSONB),  # the topic's own settings, as they were before adoption
    Column("changed_at", DateTime(timezone=True), nullable=False),
)

retention_hold = Table(
    "retention_hold",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("topic", Text, nullable=False),
    Column("until", DateTime(timezone=True)),  # null: until it is released
    Column("reason", Text, nullable=False),
    Column("made_at", DateTime(timezone=True), nullable=False),
    Column("released_at", DateTime(timezone=True)),
)

retention_run = Table(
    "retention_run",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("began_at", DateTime(timezone=True), nullable=False),
    Column("ended_at", DateTime(timezone=True)),
    Column("alarms", JSONB),
    Column("error", Text),
)

retention_deletion = Table(
    "retention_deletion",
    metadata,
    Column("run", BigInteger, ForeignKey(retention_run.c.id), primary_key=True),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("topic_id", Text, nullable=False),
    Column("start_offset", BigInteger, nullable=False),
    Column("end_offset", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("log_start_offset", BigInteger),
    Column("deleted_at", DateTime(timezone=True)),
)

watcher = Table(
    "watcher",
    metadata,
    Column("name", Text, primary_key=True),
    Column("pipeline", Text, nullable=False),  # by name: it may be watched before it is registered
    Column("stage", Text, nullable=False),
    Column("began_at", DateTime(timezone=True), nullable=False),
)

announcement = Table(
    "announcement",
    metadata,
    Column("watcher", Text, ForeignKey(watcher.c.name), primary_key=True),
    Column("starts_at", DateTime(timezone=True), primary_key=True),
    Column("announced_at", DateTime(timezone=True), nullable=False),
)

taken_window = Table(
    "taken_window",
    metadata,
    Column("consumer", Text, primary_key=True),
    Column("pipeline", Text, primary_key=True),
    Column("starts_at", DateTime(timezone=True), primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("taken_at", DateTime(timezone=True), nullable=False),
)
