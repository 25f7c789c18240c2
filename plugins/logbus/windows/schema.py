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
    schema         what a pipeline's values were decoded by, kept for loads without a registry
    schema_use     how many records of a window each was for

    retention_policy    how long and how much of a topic is kept, and for how long unloaded windows hold it back
    retention_hold      a topic from which nothing is deleted, until when and why
    retention_run       one run of the managed retention
    retention_deletion  offsets it deleted, or was about to

    watcher        a trigger in Airflow that waits for windows of a pipeline to reach a stage
    announcement   windows announced to it
    taken_window   which run of an event-driven DAG a window belongs to

    aggregate          a table that is computed from a pipeline's rows, by the hours of their own times
    aggregation        one run that brought it up to date; the newest is the fence
    aggregated_window  which load of a window is in it
    touched_hour       event hours that the window's rows fall into
    aggregated_hour    what it holds of an event hour, and whether that was audited

    stream            an aggregate that is computed as records arrive; its owner number is the fence
    stream_partition  where its chain of epochs begins, and up to where it is committed
    stream_epoch      its newest commits, for lag and rates
    epoch_part        what an epoch read of one partition and hour of arrival; one for each of them once the hour is proven
    stream_hour       an hour of arrival that was compared with the load of its window
    stream_join       a view that joins two streams of rows

    audited_table  a table that others load, and what its last audit found
    audited_hour   what the newest audit of an hour of it found

And a view for readers who know SQL and not logbus, `complete_until`: before which instant everything in a pipeline's table is
audited; null: nothing is.

They are created and changed by the revisions in `migrations/`, which lead to exactly these.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from logbus.windows.table_names import SCHEMA

metadata = sa.MetaData(schema=SCHEMA)

pipeline = sa.Table(
    "pipeline",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("topic", sa.Text, nullable=False),
    sa.Column("topic_id", sa.Text, nullable=False),  # the broker's: a recreated topic has another
    sa.Column("table_name", sa.Text, nullable=False, unique=True),
    sa.Column("parse", sa.Text, nullable=False),
    sa.Column("interval", sa.Interval, nullable=False),
    sa.Column("timezone", sa.Text, nullable=False, server_default="UTC"),  # at whose midnights windows of a day begin
    sa.Column("lateness", sa.Interval, nullable=False),  # how long after its end a window stays open
    sa.Column("starts_at", sa.DateTime(timezone=True)),  # null: at the earliest record
    sa.Column("isolation_level", sa.Text, nullable=False),
    sa.Column("settings", JSONB, nullable=False),
    sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("cluster_id", sa.Text),  # the cluster that has the topic; null: not asked yet
)

inferred_column = sa.Table(
    "inferred_column",
    metadata,
    sa.Column("pipeline", sa.Text, sa.ForeignKey(pipeline.c.name), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("found_at", sa.DateTime(timezone=True), nullable=False),
)

pipeline_dag = sa.Table(
    "pipeline_dag",
    metadata,
    sa.Column("pipeline", sa.Text, sa.ForeignKey(pipeline.c.name), primary_key=True),
    sa.Column("dag_id", sa.Text, primary_key=True),
    sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),  # first
    sa.Column("definition", JSONB),  # of the pipeline, as the DAG last defined it
)

anchor = sa.Table(
    "anchor",
    metadata,
    sa.Column("pipeline", sa.Text, sa.ForeignKey(pipeline.c.name), primary_key=True),
    sa.Column("topic_id", sa.Text, primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.DateTime(timezone=True)),  # null: from the beginning of time
    sa.Column("offset", sa.BigInteger, nullable=False),
    sa.Column("frozen_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column(
        "lost_until", sa.DateTime(timezone=True)
    ),  # windows that begin earlier may lack records that are gone; null: none do
)

boundary = sa.Table(
    "boundary",
    metadata,
    sa.Column("pipeline", sa.Text, sa.ForeignKey(pipeline.c.name), primary_key=True),
    sa.Column("topic_id", sa.Text, primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.DateTime(timezone=True), primary_key=True),  # T: where one window ends and the next begins
    sa.Column("offset", sa.BigInteger, nullable=False),
    sa.Column("leader_epoch", sa.Integer),
    sa.Column("frozen_at", sa.DateTime(timezone=True), nullable=False),
    # The last record before the offset, as it was when the boundary was frozen; null: there was none, or it was not read.
    sa.Column("witness_offset", sa.BigInteger),
    sa.Column("witness_epoch", sa.Integer),
    sa.Column("witness_ms", sa.BigInteger),  # its timestamp
    sa.Column("witness_hash", sa.BigInteger),  # logbus.fingerprint, signed
)


def what_was_loaded() -> list[sa.Column[Any]]:
    """An attempt has these columns, and the window has them for the attempt that is public."""
    return [
        sa.Column("read_count", sa.BigInteger),
        sa.Column("loaded_count", sa.BigInteger),
        sa.Column("dead_lettered_count", sa.BigInteger),
        sa.Column("filtered_count", sa.BigInteger),
        sa.Column("late_count", sa.BigInteger),  # stamped before the window
        sa.Column("early_count", sa.BigInteger),  # stamped after it
        sa.Column("lost_count", sa.BigInteger),  # deleted before they were read
        sa.Column("byte_count", sa.BigInteger),
        sa.Column("fingerprint", sa.Text),
    ]


window = sa.Table(
    "window",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("pipeline", sa.Text, sa.ForeignKey(pipeline.c.name), nullable=False),
    sa.Column("topic_id", sa.Text, nullable=False),
    sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("head_unknown", sa.Boolean, nullable=False, server_default="false"),  # retention was faster: never audited
    sa.Column("frozen_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("last_attempt", sa.Integer, nullable=False, server_default="0"),  # the fence: only this one may commit
    sa.Column("loaded_attempt", sa.Integer),  # the attempt whose rows are public; null: none; 0: proven empty by its boundaries
    sa.Column("loaded_at", sa.DateTime(timezone=True)),
    *what_was_loaded(),
    sa.Column("audited_at", sa.DateTime(timezone=True)),
    sa.Column("audit_problems", JSONB),
    sa.Column("unstamped_count", sa.BigInteger),  # without a usable timestamp
    sa.Column("far_count", sa.BigInteger),  # stamped with hours far from the window's own, too many to count each of them
    sa.Column("values_hash", JSONB),  # checksums over what was published, taken at commit: logbus.loads.tally; null: nothing was
    sa.Column("other_records", JSONB),  # reloads that were allowed to read other records than the load before; kept forever
    sa.Column("loss_accepted", JSONB),  # who accepted the loss of a window whose head is unknown, by name
    sa.UniqueConstraint("pipeline", "starts_at"),
)

window_range = sa.Table(
    "window_range",
    metadata,
    sa.Column("window_id", sa.BigInteger, sa.ForeignKey(window.c.id), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("start_offset", sa.BigInteger, nullable=False),
    sa.Column("end_offset", sa.BigInteger, nullable=False),  # exclusive
    sa.Column("lost", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("first_timestamp", sa.DateTime(timezone=True)),
    sa.Column("last_timestamp", sa.DateTime(timezone=True)),
)

window_hour = sa.Table(
    "window_hour",
    metadata,
    sa.Column("window_id", sa.BigInteger, sa.ForeignKey(window.c.id), primary_key=True, autoincrement=False),
    sa.Column("hour", sa.DateTime(timezone=True), primary_key=True),  # with which the records are stamped, not the window's
    sa.Column("record_count", sa.BigInteger, nullable=False),
    sa.Index("ix_logbus_window_hour_hour", "hour"),
)

attempt = sa.Table(
    "attempt",
    metadata,
    sa.Column("window_id", sa.BigInteger, sa.ForeignKey(window.c.id), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("try_number", sa.Integer, nullable=False),
    sa.Column("staging_table", sa.Text, nullable=False),
    sa.Column("dead_letter_table", sa.Text, nullable=False),
    sa.Column("cleaned", sa.Boolean, nullable=False, server_default="false"),
    sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("ended_at", sa.DateTime(timezone=True)),
    sa.Column("error", sa.Text),
    *what_was_loaded(),  # if it is committed
    sa.Column("partitions", JSONB),
    sa.Column("error_samples", JSONB),  # of an attempt over its error budget: what did not parse
    sa.Column("streams", sa.Integer),  # how many streams of numbered records it holds; null: not committed
    # The Airflow task that began it; null: the command line.
    sa.Column("dag_id", sa.Text),
    sa.Column("task_id", sa.Text),
    sa.Column("map_index", sa.Integer),  # null: the task is not mapped
    sa.Column(
        "key", sa.Text, nullable=False
    ),  # random: distinguishes it from an attempt with the same number in a restored ledger
    sa.Column("definition", JSONB),  # of the pipeline, as it was when the attempt began: what the driver uses; null: rebuilt
    sa.Column("error_kind", sa.Text),  # the class of the error, if the driver itself reported why it failed
    # A reload that finds other records than the load before may replace them; explicitly allowed for this run.
    sa.Column("accepts_other_records", sa.Boolean, nullable=False, server_default="false"),
    # What its tasks log in with and nobody has deleted yet (logbus.loads.roles); null: nothing.
    sa.Column("task_logins", JSONB(none_as_null=True)),
    sa.Column("task_logins_note", sa.Text),  # why its tasks logged in as the driver did; empty: they did not; null: not known
    sa.Index("ix_logbus_attempt_task_logins", "window_id", postgresql_where=sa.text("task_logins is not null")),
)

dead_letter = sa.Table(
    "dead_letter",
    metadata,
    sa.Column("topic", sa.Text, nullable=False),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("offset", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("window_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("timestamp", sa.DateTime(timezone=True)),
    sa.Column("key", sa.LargeBinary),
    sa.Column("value", sa.LargeBinary),
    sa.Column("headers", JSONB),
    sa.Column("error_class", sa.Text, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("fingerprint", sa.BigInteger, nullable=False),
    sa.Column("run_id", sa.Text),
    sa.ForeignKeyConstraint(["window_id"], [window.c.id]),
)

redrive = sa.Table(
    "redrive",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("window_id", sa.BigInteger, sa.ForeignKey(window.c.id), nullable=False, index=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("redriven_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("tried_count", sa.BigInteger, nullable=False),  # dead letters it looked at
    sa.Column("loaded_count", sa.BigInteger, nullable=False),
    sa.Column("dead_lettered_count", sa.BigInteger, nullable=False),
)

producer_count = sa.Table(
    "producer_count",
    metadata,
    sa.Column("window_id", sa.BigInteger, sa.ForeignKey(window.c.id), primary_key=True, autoincrement=False),
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("record_count", sa.BigInteger, nullable=False),
    sa.Column("first_number", sa.BigInteger, nullable=False),
    sa.Column("last_number", sa.BigInteger, nullable=False),
    sa.Column("runs", JSONB(none_as_null=True)),  # [first, last] each; null: too many to keep
    sa.Index("ix_logbus_producer_count_stream", "stream", "last_number"),
)

frozen_schema = sa.Table(
    "schema",
    metadata,
    sa.Column("pipeline", sa.Text, sa.ForeignKey(pipeline.c.name), primary_key=True),
    sa.Column("reference", sa.LargeBinary, primary_key=True),  # as values begin: logbus.parsing.decoders
    sa.Column("type", sa.Text, nullable=False),  # AVRO, PROTOBUF or JSON
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("id", sa.BigInteger),  # in the registry; null: values name it by its GUID
    sa.Column("guid", sa.Text),
    sa.Column("imports", JSONB, nullable=False),  # the schemas it refers to, with their texts, dependencies first
    sa.Column("registry", sa.Text),  # the URL it came from
    sa.Column("frozen_at", sa.DateTime(timezone=True), nullable=False),
)

schema_use = sa.Table(
    "schema_use",
    metadata,
    sa.Column("window_id", sa.BigInteger, sa.ForeignKey(window.c.id), primary_key=True, autoincrement=False),
    sa.Column("prefix", sa.LargeBinary, primary_key=True),  # the reference, and in Protobuf which message
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("record_count", sa.BigInteger, nullable=False),
)

retention_policy = sa.Table(
    "retention_policy",
    metadata,
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("retain", sa.Interval),  # null: whatever its age
    sa.Column("retain_bytes", sa.BigInteger),  # null: whatever its size
    sa.Column("max_hold", sa.Interval, nullable=False),
    sa.Column("when_overdue", sa.Text, nullable=False),
    sa.Column("adopted", JSONB),  # the topic's own settings, as they were before adoption
    sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
)

retention_hold = sa.Table(
    "retention_hold",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("topic", sa.Text, nullable=False),
    sa.Column("until", sa.DateTime(timezone=True)),  # null: until it is released
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("released_at", sa.DateTime(timezone=True)),
)

retention_run = sa.Table(
    "retention_run",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("ended_at", sa.DateTime(timezone=True)),
    sa.Column("alarms", JSONB),
    sa.Column("error", sa.Text),
)

retention_deletion = sa.Table(
    "retention_deletion",
    metadata,
    sa.Column("run", sa.BigInteger, sa.ForeignKey(retention_run.c.id), primary_key=True),
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("topic_id", sa.Text, nullable=False),
    sa.Column("start_offset", sa.BigInteger, nullable=False),
    sa.Column("end_offset", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("log_start_offset", sa.BigInteger),
    sa.Column("deleted_at", sa.DateTime(timezone=True)),
)

watcher = sa.Table(
    "watcher",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("pipeline", sa.Text, nullable=False),  # by name: it may be watched before it is registered
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
)

announcement = sa.Table(
    "announcement",
    metadata,
    sa.Column("watcher", sa.Text, sa.ForeignKey(watcher.c.name), primary_key=True),
    sa.Column("starts_at", sa.DateTime(timezone=True), primary_key=True),
    sa.Column("announced_at", sa.DateTime(timezone=True), nullable=False),
)

taken_window = sa.Table(
    "taken_window",
    metadata,
    sa.Column("consumer", sa.Text, primary_key=True),
    sa.Column("pipeline", sa.Text, primary_key=True),
    sa.Column("starts_at", sa.DateTime(timezone=True), primary_key=True),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("taken_at", sa.DateTime(timezone=True), nullable=False),
)

aggregate = sa.Table(
    "aggregate",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("pipeline", sa.Text, sa.ForeignKey(pipeline.c.name), nullable=False),
    sa.Column("table_name", sa.Text, nullable=False, unique=True),
    sa.Column("definition", JSONB, nullable=False),
    sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("columns", JSONB(none_as_null=True)),  # of its table, name to type; null: it was not made yet
    sa.Column("newest", sa.BigInteger),  # the aggregation that may write; null: none has begun
)

aggregation = sa.Table(
    "aggregation",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("aggregate", sa.Text, sa.ForeignKey(aggregate.c.name), nullable=False, index=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("ended_at", sa.DateTime(timezone=True)),
    sa.Column("window_count", sa.BigInteger, nullable=False, server_default="0"),  # whose load was new
    sa.Column("hour_count", sa.BigInteger, nullable=False, server_default="0"),  # that these touch, or touched before
    sa.Column("row_count", sa.BigInteger, nullable=False, server_default="0"),  # written
    sa.Column("error", sa.Text),
)

# Without a foreign key to the window: its check would wait for whatever load is at work on that, and fail after it. A window that
# was loaded is never deleted.
aggregated_window = sa.Table(
    "aggregated_window",
    metadata,
    sa.Column("aggregate", sa.Text, sa.ForeignKey(aggregate.c.name), primary_key=True),
    sa.Column("window_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("loaded_attempt", sa.Integer, nullable=False),
    sa.Column("loaded_count", sa.BigInteger, nullable=False),  # a redrive adds rows to the same attempt
    sa.Column("untimed_count", sa.BigInteger, nullable=False),  # rows without an event time, which are in no hour
    sa.Column("missing_count", sa.BigInteger, nullable=False),  # all of its rows, if its partition was gone by then
)

touched_hour = sa.Table(
    "touched_hour",
    metadata,
    sa.Column("aggregate", sa.Text, primary_key=True),
    sa.Column("hour", sa.DateTime(timezone=True), primary_key=True),
    sa.Column("window_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("row_count", sa.BigInteger, nullable=False),
    sa.ForeignKeyConstraint(["aggregate", "window_id"], [aggregated_window.c.aggregate, aggregated_window.c.window_id]),
    sa.Index("ix_logbus_touched_hour_window", "aggregate", "window_id"),
)

aggregated_hour = sa.Table(
    "aggregated_hour",
    metadata,
    sa.Column("aggregate", sa.Text, sa.ForeignKey(aggregate.c.name), primary_key=True),
    sa.Column("hour", sa.DateTime(timezone=True), primary_key=True),
    sa.Column("aggregation", sa.BigInteger, sa.ForeignKey(aggregation.c.id), nullable=False),  # that wrote it last
    sa.Column("row_count", sa.BigInteger, nullable=False),
    sa.Column("audited_at", sa.DateTime(timezone=True)),  # null: not since it was written
    sa.Column("audit_problems", JSONB(none_as_null=True)),
    sa.Column("kept_because", sa.Text),  # why it was not computed again although a load has touched it; null: it was
)

stream = sa.Table(
    "stream",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("pipeline", sa.Text, sa.ForeignKey(pipeline.c.name), nullable=False),
    sa.Column("topic", sa.Text, nullable=False),
    sa.Column("topic_id", sa.Text, nullable=False),  # of the log that its positions are in
    sa.Column("table_name", sa.Text, nullable=False, unique=True),  # of the view
    sa.Column("definition", JSONB, nullable=False),
    sa.Column(
        "since", sa.DateTime(timezone=True)
    ),  # the boundary at which it begins; null: at the beginning of the pipeline's chain
    sa.Column("columns", JSONB(none_as_null=True)),  # that epochs add to, name to type; null: its table was not made yet
    sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("owner", sa.BigInteger, nullable=False, server_default="0"),  # counts the drivers; only the newest may commit
    sa.Column("owner_run", sa.Text),  # the run of the newest driver; null: none has begun
    sa.Column("began_at", sa.DateTime(timezone=True)),
    sa.Column("heartbeat_at", sa.DateTime(timezone=True)),
    sa.Column("ended_at", sa.DateTime(timezone=True)),  # null: it runs, or was killed
    sa.Column("error", sa.Text),
)

stream_partition = sa.Table(
    "stream_partition",
    metadata,
    sa.Column("stream", sa.Text, sa.ForeignKey(stream.c.name), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("start_offset", sa.BigInteger, nullable=False),
    sa.Column("end_offset", sa.BigInteger, nullable=False),  # exclusive: where the next epoch begins
)

stream_epoch = sa.Table(
    "stream_epoch",
    metadata,
    sa.Column("stream", sa.Text, sa.ForeignKey(stream.c.name), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("committed_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("read_count", sa.BigInteger, nullable=False),
    sa.Column("newest_timestamp", sa.DateTime(timezone=True)),  # of its records; null: none has a usable one
)

epoch_part = sa.Table(
    "epoch_part",
    metadata,
    sa.Column("stream", sa.Text, sa.ForeignKey(stream.c.name), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("start_offset", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("end_offset", sa.BigInteger, nullable=False),  # exclusive
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("hour", sa.DateTime(timezone=True), nullable=False),  # the start of the window in which its records arrived
    sa.Column("read_count", sa.BigInteger, nullable=False),
    sa.Column("filtered_count", sa.BigInteger, nullable=False),
    sa.Column("dead_lettered_count", sa.BigInteger, nullable=False),
    sa.Column("untimed_count", sa.BigInteger, nullable=False),  # rows without an event time, which are in no window
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Index("ix_logbus_epoch_part_hour", "stream", "hour"),
)

stream_hour = sa.Table(
    "stream_hour",
    metadata,
    sa.Column("stream", sa.Text, sa.ForeignKey(stream.c.name), primary_key=True),
    sa.Column("hour", sa.DateTime(timezone=True), primary_key=True),  # the window's start
    sa.Column("state", sa.Text, nullable=False),  # proven or different
    sa.Column("loaded_attempt", sa.Integer, nullable=False),  # the load that it was compared with
    sa.Column("loaded_count", sa.BigInteger, nullable=False),  # a redrive adds rows to the same attempt
    sa.Column("record_count", sa.BigInteger, nullable=False),  # that the stream read
    sa.Column("proven_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("replaced_by", sa.Integer),  # the attempt whose rows took the place of the stream's; null: none has
    sa.Column("difference_count", sa.BigInteger, nullable=False),  # rows that only the stream or only the load has
    sa.Column("differences", JSONB, nullable=False),  # sentences, the first of them
)

stream_join = sa.Table(
    "stream_join",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("left_stream", sa.Text, sa.ForeignKey(stream.c.name), nullable=False),
    sa.Column("right_stream", sa.Text, sa.ForeignKey(stream.c.name), nullable=False),
    sa.Column("table_name", sa.Text, nullable=False, unique=True),  # of the view
    sa.Column("definition", JSONB, nullable=False),
    sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
)

audited_table = sa.Table(
    "audited_table",
    metadata,
    sa.Column("table_name", sa.Text, primary_key=True),
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("audited_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("foreign_rows", sa.BigInteger, nullable=False),  # that no record of the topic can have
    sa.Column("remarks", JSONB, nullable=False),
)

audited_hour = sa.Table(
    "audited_hour",
    metadata,
    sa.Column("table_name", sa.Text, primary_key=True),
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("starts_at", sa.DateTime(timezone=True), primary_key=True),
    sa.Column("audited_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("verdict", sa.Text, nullable=False),
    sa.Column("record_count", sa.BigInteger, nullable=False),  # in the log
    sa.Column("row_count", sa.BigInteger, nullable=False),
    sa.Column("missing_count", sa.BigInteger, nullable=False),
    sa.Column("doubled_count", sa.BigInteger, nullable=False),
    sa.Column("foreign_count", sa.BigInteger),  # rows with a time in it; null: the table has no times
    sa.Column("remarks", JSONB, nullable=False),
    sa.ForeignKeyConstraint(["table_name", "topic"], [audited_table.c.table_name, audited_table.c.topic]),
)
