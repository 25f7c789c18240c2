"""DAGs of streams, from one call: sums, rows and joins of what has arrived, each hour proven after its audit. `logbus.pipelines`
has them too, with all others.

Whichever it is, a run computes what has arrived since the last one (`once`), and then compares the hours that were audited since
(`prove`). With `continuous=True` a process of its own computes, and the run looks after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, AssetAny, AssetOrTimeSchedule, BaseOperator, CronTriggerTimetable

from logbus import assets, expressions
from logbus.dag_arguments import CONNECTIONS_DEFAULT, Connections, dag_defaults
from logbus.expressions import count
from logbus.model import Pipeline
from logbus.operators.stream import JoinStreamsOperator, ProveStreamOperator, StreamOnceOperator
from logbus.sensors import stream_healthy
from logbus.streams.aggregate_definition import EVENT_TIME_DEFAULT
from logbus.streams.definition import (
    MAX_OFFSETS_DEFAULT,
    MAX_ROWS_DEFAULT,
    TRIGGER_DEFAULT,
    WINDOW_DEFAULT,
    Lookup,
    Stream,
    define_live_rows,
    define_stream,
)
from logbus.streams.joins import Columns, define_join

# A start of Spark costs some ten seconds: more often is not worth it; then it is `logbus stream run`, a process of its own.
EVERY_FIVE_MINUTES = "*/5 * * * *"
HEALTH_TIMEOUT = timedelta(minutes=10)  # of the sensor beside a continuous stream; the next run looks again


def windowed_aggregate(
    pipeline: Pipeline | str,
    connections: Connections = CONNECTIONS_DEFAULT,
    *,
    name: str,
    keys: Sequence[str] = (),
    measures: Mapping[str, expressions.Measure],
    event_time: str = EVENT_TIME_DEFAULT,
    window: str | timedelta = WINDOW_DEFAULT,
    where: str | None = None,
    lookup: Lookup | None = None,
    table: str | None = None,
    trigger: str | timedelta = TRIGGER_DEFAULT,
    max_offsets_per_trigger: int = MAX_OFFSETS_DEFAULT,
    schedule: str = EVERY_FIVE_MINUTES,
    continuous: bool = False,
    dag_arguments: Mapping[str, Any] | None = None,
) -> DAG:
    """The DAG `name`, of a stream: what has arrived is counted within minutes, or seconds, and each hour is proven equal to what
    its load brings.

    A run counts all that has arrived since the last one (`once`), and then compares the hours that were audited since (`prove`):
    offsets, records, and every value. It begins by the schedule, and after each audit of the pipeline. The proof's success is an
    event of `assets.stream_asset`, and for each proven hour one of `assets.proven_hours_asset`.

    A record counts in the window of its own time, however late it comes. Users read the view; where a load and the stream differ,
    the load's values take the stream's place, and the run fails.

    :param pipeline: a `Pipeline` that loads into PostgreSQL, or the name of a registered one
    :param name: of the stream, and of its view unless `table` is given
    :param keys: columns of the pipeline's table by which rows are grouped
    :param measures: columns of the view, by name: `count()`, `sum_of`, `min_of`, `max_of`, `avg_of` of a column
    :param event_time: the column with the time at which something happened; by default the record's own timestamp
    :param window: the length of what a row stands for, a part of an hour: `1m`, `5m`, `15m`, `1h`
    :param where: a condition that rows have to meet (logbus.expressions): `status >= 500 and method = 'GET'`
    :param lookup: a table of the warehouse whose columns stand in the view for one of the keys: `Lookup(table=, on=, columns=)`
    :param trigger: an epoch begins at most this often
    :param max_offsets_per_trigger: how many offsets one epoch reads at most
    :param schedule: when a run begins by the clock, as a cron expression; each starts Spark, which takes some ten seconds
    :param continuous: `logbus stream run` computes it, a process of its own, whose counts are seconds old; the DAG then looks
        after it (`healthy`) and proves
    :param dag_arguments: arguments for the DAG itself
    """
    stream = define_stream(
        name,
        pipeline,
        keys=keys,
        measures=measures,
        event_time=event_time,
        window=window,
        where=where,
        lookup=lookup,
        table=table,
        trigger=trigger,
        max_offsets_per_trigger=max_offsets_per_trigger,
    )
    description = f"{stream.words()}, of {stream.pipeline} into {stream.table}, as it arrives"
    with _dag(name, [stream], description, schedule, dag_arguments) as dag:
        _compute_and_prove(stream, connections, continuous)
    return dag


def windowed_counts(
    pipeline: Pipeline | str,
    connections: Connections = CONNECTIONS_DEFAULT,
    *,
    name: str,
    keys: Sequence[str] = (),
    event_time: str = EVENT_TIME_DEFAULT,
    window: str | timedelta = WINDOW_DEFAULT,
    where: str | None = None,
    lookup: Lookup | None = None,
    table: str | None = None,
    schedule: str = EVERY_FIVE_MINUTES,
    continuous: bool = False,
    dag_arguments: Mapping[str, Any] | None = None,
) -> DAG:
    """`windowed_aggregate` with one measure, `count`: how many records of each key in each window. Its arguments are the same."""
    return windowed_aggregate(
        pipeline,
        connections,
        name=name,
        keys=keys,
        measures={"count": count()},
        event_time=event_time,
        window=window,
        where=where,
        lookup=lookup,
        table=table,
        schedule=schedule,
        continuous=continuous,
        dag_arguments=dag_arguments,
    )


def live_rows(
    pipeline: Pipeline | str,
    connections: Connections = CONNECTIONS_DEFAULT,
    *,
    name: str,
    columns: Sequence[str],
    indexed: Sequence[str] = (),
    table: str | None = None,
    trigger: str | timedelta = TRIGGER_DEFAULT,
    max_offsets_per_trigger: int = MAX_ROWS_DEFAULT,
    schedule: str = EVERY_FIVE_MINUTES,
    continuous: bool = False,
    dag_arguments: Mapping[str, Any] | None = None,
) -> DAG:
    """The DAG `name`, of a stream of rows: a view with the pipeline's loaded rows and, minutes or seconds after they arrive,
    those that are not loaded yet. Each record is in it once, whatever is loaded meanwhile, and each hour's rows are proven equal
    to the loaded ones.

    :param pipeline: a `Pipeline` that loads into PostgreSQL, or the name of a registered one
    :param name: of the stream, and of its view unless `table` is given
    :param columns: of the pipeline's table, which the view has beside arrived_hour, _partition, _offset and _timestamp
    :param indexed: those of them by which rows are looked for before they are loaded
    :param trigger: an epoch begins at most this often
    :param max_offsets_per_trigger: how many offsets one epoch reads at most; its rows go through the driver's memory
    :param schedule: when a run begins by the clock, as a cron expression
    :param continuous: `logbus stream run` brings the rows, a process of its own
    :param dag_arguments: arguments for the DAG itself
    """
    stream = define_live_rows(
        name,
        pipeline,
        columns=columns,
        indexed=indexed,
        table=table,
        trigger=trigger,
        max_offsets_per_trigger=max_offsets_per_trigger,
    )
    description = f"{stream.words()} of {stream.pipeline} in {stream.table}, as they arrive"
    with _dag(name, [stream], description, schedule, dag_arguments) as dag:
        _compute_and_prove(stream, connections, continuous)
    return dag


def joined(
    name: str,
    connections: Connections = CONNECTIONS_DEFAULT,
    *,
    left: Pipeline | str,
    right: Pipeline | str,
    on: str | Mapping[str, str],
    within: str | timedelta = "1h",
    kind: str = "inner",
    left_columns: Columns = (),
    right_columns: Columns = (),
    event_time: str | tuple[str, str] = EVENT_TIME_DEFAULT,
    table: str | None = None,
    trigger: str | timedelta = TRIGGER_DEFAULT,
    max_offsets_per_trigger: int = MAX_ROWS_DEFAULT,
    schedule: str = EVERY_FIVE_MINUTES,
    continuous: bool = False,
    dag_arguments: Mapping[str, Any] | None = None,
) -> DAG:
    """The DAG `name`, of a join: a view of the rows of two pipelines that belong together, as they arrive. Each side is a stream
    of rows, NAME_left and NAME_right, which is computed and proven like any other.

    No row is given up that waits for its other half: it is in the warehouse, loaded or not, and the view joins whatever is there.
    Its columns are those of `on`, then the chosen ones, `left_time`, `right_time`, `left_arrived_hour`, `right_arrived_hour`, and
    `is_late`: whether one half arrived in another hour than the other.

    :param left: a `Pipeline` that loads into PostgreSQL, or the name of a registered one
    :param right: another one
    :param on: the column that is equal in both, or a mapping of columns of the left side to those of the right one
    :param within: how far apart the times of two rows may be that belong together
    :param kind: `inner`, or `left`: rows of the left side are there without another half, too
    :param left_columns: of the left side, for the view; a mapping gives them other names there
    :param right_columns: of the right side
    :param event_time: the column with the time at which something happened, or a pair of both sides'
    :param table: the view's name, by default `name`
    :param trigger: an epoch begins at most this often
    :param max_offsets_per_trigger: how many offsets one epoch reads at most
    :param schedule: when a run begins by the clock, as a cron expression
    :param continuous: `logbus stream run NAME_left` and `logbus stream run NAME_right` bring the rows, processes of their own
    :param dag_arguments: arguments for the DAG itself
    """
    join = define_join(
        name,
        left=left,
        right=right,
        on=on,
        within=within,
        kind=kind,
        left_columns=left_columns,
        right_columns=right_columns,
        event_time=event_time,
        table=table,
        trigger=trigger,
        max_offsets_per_trigger=max_offsets_per_trigger,
    )
    with _dag(name, join.sides, f"{join.words()}, in {join.table}, as they arrive", schedule, dag_arguments) as dag:
        define = JoinStreamsOperator(task_id="join", join=join, warehouse_conn_id=connections.warehouse)
        for side, stream in zip(("left", "right"), join.sides, strict=True):
            define >> _compute_and_prove(stream, connections, continuous, f"_{side}")
    return dag


def _dag(name: str, streams: Sequence[Stream], description: str, schedule: str, dag_arguments: Mapping[str, Any] | None) -> DAG:
    """Due by the clock, and after each audit of what the streams are of."""
    arguments = {
        "description": description,
        "schedule": AssetOrTimeSchedule(
            timetable=CronTriggerTimetable(schedule, timezone="UTC"),
            assets=AssetAny(*(assets.table_asset(stream.pipeline) for stream in streams)),
        ),
        "max_active_runs": 1,
    }
    return DAG(name, **dag_defaults(arguments, dag_arguments))


def _compute_and_prove(stream: Stream, connections: Connections, continuous: bool, suffix: str = "") -> list[BaseOperator]:
    """The tasks of a stream; those that begin."""
    places: dict[str, Any] = {"warehouse_conn_id": connections.warehouse, "kafka_conn_id": connections.kafka}
    prove = ProveStreamOperator(
        task_id=f"prove{suffix}",
        stream=stream,
        warehouse_conn_id=connections.warehouse,
        outlets=assets.stream_outlets(stream.name),
    )
    if continuous:
        # Beside each other: a driver that is away must fail the run, and keeps no hour from its proof.
        healthy = stream_healthy.StreamHealthySensor(
            task_id=f"healthy{suffix}", stream=stream, timeout=HEALTH_TIMEOUT.total_seconds(), retries=0, **places
        )
        return [prove, healthy]
    once = StreamOnceOperator(task_id=f"once{suffix}", stream=stream, conn_id=connections.spark, pool=connections.pool, **places)
    once >> prove
    return [once]
