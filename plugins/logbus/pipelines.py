"""Whole DAGs from one call: the ingest of a topic, hour by hour or in other windows, of many, and the catch-up.

    hourly_ingest:  load (freezes, loads and audits)            one hour a run, due when the hour is closed
    ingest:         the same for windows of any length          ingest(every="15m"), ingest(every="1d", timezone="Europe/Berlin")
    catch_up:       freeze all closed hours -> load -> audit    one Spark application for all of them, on demand
    hourly_aggregate:  aggregate -> audit                       after each audit of the pipeline, the event hours that it touched
    windowed_aggregate:  once -> prove                          every few minutes, what has arrived; proven after each audit
    windowed_counts:  the same, which counts
    live_rows:      once -> prove                               the rows themselves, seconds after they arrive
    joined:         join -> once -> prove, of both sides        rows of two pipelines that belong together

    hourly_ingest(pipeline="clicks", topic="web.clicks", table="clicks", parse="json", max_error_rate=0.01)

If several DAGs work on one pipeline, define it once and pass it to each, because their definitions have to agree:

    CLICKS = define_pipeline("clicks", topic="web.clicks", table="clicks", parse="json", max_error_rate=0.01)
    hourly_ingest(CLICKS)
    catch_up(CLICKS)

Building them touches nothing: no broker, no warehouse, no clock. Both DAGs work on the same ledger, so it does not matter which
of them loads an hour first, or again. A DAG made here belongs to the calling file and need not be kept in a variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Unpack

from airflow.sdk import DAG, Param

from logbus import assets, errors, expressions, spark_submit, timetable
from logbus.dag_arguments import CONNECTIONS_DEFAULT, Connections, dag_defaults
from logbus.expressions import avg_of, count, max_of, min_of, sum_of
from logbus.model import Grid, Pipeline
from logbus.operators import freeze_window, load_window
from logbus.operators import hourly_aggregate as aggregates
from logbus.operators.audit import AuditWindowOperator
from logbus.pipeline_definition import PipelineOptions, as_pipeline, define_pipeline
from logbus.stream_pipelines import joined, live_rows, windowed_aggregate, windowed_counts
from logbus.streams.aggregate_definition import EVENT_TIME_DEFAULT, define_aggregate
from logbus.streams.definition import Lookup
from logbus.windows.catch_up import WINDOWS_UNCONFIRMED_MAX

__all__ = [
    "Connections",
    "Lookup",
    "Pipeline",
    "avg_of",
    "catch_up",
    "count",
    "define_pipeline",
    "hourly_aggregate",
    "hourly_ingest",
    "ingest",
    "joined",
    "live_rows",
    "many_topics",
    "max_of",
    "min_of",
    "sum_of",
    "windowed_aggregate",
    "windowed_counts",
]


def ingest(
    pipeline: Pipeline | str,
    connections: Connections = CONNECTIONS_DEFAULT,
    *,
    dag_arguments: Mapping[str, Any] | None = None,
    max_windows_per_application: int = spark_submit.WINDOWS_PER_JOB_MAX,
    fill_gaps: bool = True,
    driver_idle_timeout: timedelta | None = None,
    proven_within: timedelta | None = None,
    on_late_callback: timetable.Callback | None = None,
    **options: Unpack[PipelineOptions],
) -> DAG:
    """The DAG named after the pipeline: after each window, load it into the pipeline's table, exactly once.

    Windows are an hour long unless `every` says otherwise: `every="15m"`, or `every="1d", timezone="Europe/Berlin"`. A run is due
    when its window is closed, so none waits in a slot: a run triggered at HH:01 begins at HH:01. Its one task freezes,
    loads and audits the window; its success is an event of the pipeline's assets (logbus.assets), which carries the window.

    :param pipeline: a `Pipeline`, or the name of one that `options` describe (logbus.pipeline_definition): `topic` and `table`,
        by default the same name, `parse`, and whatever else it needs
    :param connections: which of Airflow's connections and which pool
    :param dag_arguments: arguments for the DAG itself, such as tags, default_args or callbacks
    :param max_windows_per_application: how many windows of a backfill one Spark application loads at most
    :param fill_gaps: a scheduled run also loads the missing closed windows before its own, in the same application: those whose
        run failed, or was never created while the scheduler was down
    :param driver_idle_timeout: keep the Spark driver for the loads that come next until none has come for so long: with windows
        of a minute, or many topics, most of a load is the start of Spark (LoadWindowOperator says more)
    :param proven_within: how long after its end a window is late unless it is loaded and audited by then. Airflow then calls
        `on_late_callback`
    :param on_late_callback: Airflow's `AsyncCallback` or `SyncCallback` of a function or a notifier; by default an error in the
        triggerer's log
    """
    defined = as_pipeline(pipeline, options)
    common = _common_arguments(defined, connections)
    arguments = {
        "description": f"Load each {_window_words(defined.grid)} of the topic {defined.topic} into {defined.table}, exactly once",
        "schedule": timetable.of_pipeline(defined),
        "max_active_runs": 1,  # its loads share one pool slot anyway; a triggered hour runs before the hour that is due
    }
    if proven_within is not None:
        alert, given = timetable.deadline(defined, proven_within, on_late_callback), (dag_arguments or {}).get("deadline") or []
        dag_arguments = {**(dag_arguments or {}), "deadline": [alert, *(given if isinstance(given, list) else [given])]}
    with DAG(defined.name, **dag_defaults(arguments, dag_arguments)) as dag:
        load_window.IngestWindowOperator(
            task_id="load",
            conn_id=connections.spark,
            pool=connections.pool,
            max_windows_per_application=max_windows_per_application,
            fill_gaps=fill_gaps,
            driver_idle_timeout=driver_idle_timeout,
            outlets=assets.outlets(defined),
            **common,
        )
    return dag


def hourly_ingest(
    pipeline: Pipeline | str,
    connections: Connections = CONNECTIONS_DEFAULT,
    *,
    dag_arguments: Mapping[str, Any] | None = None,
    max_windows_per_application: int = spark_submit.WINDOWS_PER_JOB_MAX,
    fill_gaps: bool = True,
    driver_idle_timeout: timedelta | None = None,
    proven_within: timedelta | None = None,
    on_late_callback: timetable.Callback | None = None,
    **options: Unpack[PipelineOptions],
) -> DAG:
    """`ingest` in windows of an hour, the usual ones; its arguments are the same."""
    defined = as_pipeline(pipeline, options)
    if defined.grid != Grid():
        raise errors.UserError(
            f"pipeline {defined.name!r} has windows of {defined.grid}: load it by ingest(...), not hourly_ingest"
        )
    return ingest(
        defined,
        connections,
        dag_arguments=dag_arguments,
        max_windows_per_application=max_windows_per_application,
        fill_gaps=fill_gaps,
        driver_idle_timeout=driver_idle_timeout,
        proven_within=proven_within,
        on_late_callback=on_late_callback,
    )


def many_topics(
    topics: Iterable[str | Pipeline],
    connections: Connections = CONNECTIONS_DEFAULT,
    *,
    dag_arguments: Mapping[str, Any] | None = None,
    max_windows_per_application: int = spark_submit.WINDOWS_PER_JOB_MAX,
    fill_gaps: bool = True,
    driver_idle_timeout: timedelta | None = None,
    proven_within: timedelta | None = None,
    on_late_callback: timetable.Callback | None = None,
    **options: Unpack[PipelineOptions],
) -> list[DAG]:
    """An ingest for each topic, all with the same arguments. A topic that needs options of its own is given as a
    `Pipeline`, which none of `options` changes."""
    if isinstance(topics, str):
        raise errors.UserError(f"many_topics takes a list of topics: many_topics([{topics!r}])")
    return [
        ingest(
            topic,
            connections,
            dag_arguments=dag_arguments,
            max_windows_per_application=max_windows_per_application,
            fill_gaps=fill_gaps,
            driver_idle_timeout=driver_idle_timeout,
            proven_within=proven_within,
            on_late_callback=on_late_callback,
            **({} if isinstance(topic, Pipeline) else options),
        )
        for topic in topics
    ]


def catch_up(
    pipeline: Pipeline | str,
    connections: Connections = CONNECTIONS_DEFAULT,
    *,
    dag_arguments: Mapping[str, Any] | None = None,
    max_windows: int = WINDOWS_UNCONFIRMED_MAX,
    **options: Unpack[PipelineOptions],
) -> DAG:
    """The DAG `<pipeline>_catchup`: load all closed windows between its parameters `since` and `until` in one Spark application.

    Both parameters may be left out: from the first record, up to the last closed one that holds one.

    :param max_windows: how many windows a run may begin at most; with more, it fails before anything is frozen
    """
    defined = as_pipeline(pipeline, options)
    common = _common_arguments(defined, connections)
    arguments = {
        "description": f"Load all closed windows of the topic {defined.topic} into {defined.table} with one Spark application",
        "schedule": None,
        "max_active_runs": 1,
    }
    params = {"since": _instant_parameter("the first hour"), "until": _instant_parameter("the end of the last hour")}
    given = {**(dag_arguments or {})}
    given["params"] = {**params, **given.get("params", {})}
    with DAG(f"{defined.name}_catchup", **dag_defaults(arguments, given)) as dag:
        freeze = freeze_window.FreezeClosedWindowsOperator(
            task_id="freeze", since="{{ params.since }}", until="{{ params.until }}", max_windows=max_windows, **common
        )
        windows = freeze.output["starts"]
        load = load_window.LoadWindowOperator(
            task_id="load", windows=windows, conn_id=connections.spark, pool=connections.pool, **common
        )
        audit = AuditWindowOperator(task_id="audit", windows=windows, outlets=assets.outlets(defined), **common)
        freeze >> load >> audit
    return dag


def hourly_aggregate(
    pipeline: Pipeline | str,
    connections: Connections = CONNECTIONS_DEFAULT,
    *,
    name: str,
    keys: Sequence[str] = (),
    measures: Mapping[str, expressions.Measure],
    event_time: str = EVENT_TIME_DEFAULT,
    window: str | timedelta = "1h",
    where: str | None = None,
    table: str | None = None,
    dag_arguments: Mapping[str, Any] | None = None,
) -> DAG:
    """The DAG `name`: after each audit of the pipeline, compute the hours again that its loads have touched, exactly.

    A row that comes late counts in the hour of its own time, however late; a window that is loaded again changes the hours that
    it touched before or touches now, and no row of another. The audit's success is an event of `assets.aggregate_asset`, and for
    each hour one of `assets.hours_asset`.

    :param pipeline: a `Pipeline` that loads into PostgreSQL, or the name of a registered one
    :param name: of the aggregate, and of its table unless `table` is given
    :param keys: columns of the pipeline's table by which rows are grouped
    :param measures: columns of the aggregate's table, by name: `count()`, `sum_of`, `min_of`, `max_of`, `avg_of` of a column
    :param event_time: the column with the time at which something happened; by default the record's own timestamp
    :param window: the length of what a row stands for, a part of an hour: `1m`, `5m`, `15m`, `1h`
    :param where: a condition that rows have to meet (logbus.expressions): `status >= 500 and method = 'GET'`
    :param dag_arguments: arguments for the DAG itself
    """
    aggregate = define_aggregate(
        name, pipeline, keys=keys, measures=measures, event_time=event_time, window=window, where=where, table=table
    )
    arguments = {
        "description": f"{aggregate.words()}, of {aggregate.pipeline} into {aggregate.table}, exact over event hours",
        "schedule": [assets.table_asset(aggregate.pipeline)],
        "max_active_runs": 1,
    }
    with DAG(aggregate.name, **dag_defaults(arguments, dag_arguments)) as dag:
        compute = aggregates.HourlyAggregateOperator(
            task_id="aggregate", aggregate=aggregate, warehouse_conn_id=connections.warehouse
        )
        audit = aggregates.AuditAggregateOperator(
            task_id="audit",
            aggregate=aggregate,
            warehouse_conn_id=connections.warehouse,
            outlets=assets.aggregate_outlets(aggregate.name),
        )
        compute >> audit
    return dag


def _window_words(grid: Grid) -> str:
    return "hour" if grid == Grid() else f"window of {grid}"


def _common_arguments(pipeline: Pipeline, connections: Connections) -> dict[str, Any]:
    """What every task over windows of this pipeline is built with."""
    if not isinstance(connections, Connections):
        raise errors.UserError(
            f"pipeline {pipeline.name!r}: connections are Connections(...), not {connections!r}; topic= is the topic"
        )
    return {"pipeline": pipeline, "kafka_conn_id": connections.kafka, "warehouse_conn_id": connections.warehouse}


def _instant_parameter(meaning: str) -> Param:
    """An optional instant, as the form of a manual run asks for it."""
    description = f"{meaning}, such as 2015-05-17T10:00:00Z; optional"
    return Param(None, type=["null", "string"], format="date-time", description=description)
