"""Whole DAGs out of one sentence: the hourly ingest of a topic, and its catch-up.

    hourly_ingest:  closed? -> freeze -> load -> audit          one hour a run
    catch_up:       freeze all closed hours -> load -> audit    one Spark application for all of them, on demand

Building them touches nothing: no broker, no warehouse, no clock. Both DAGs work on the same ledger, so it does not matter which
of them loads an hour first, or again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param
from airflow.timetables.interval import CronDataIntervalTimetable

from logbus.errors import UserError
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.operators.audit_window import AuditWindowOperator
from logbus.operators.catch_up import FreezeClosedWindowsOperator
from logbus.operators.freeze_window import FreezeWindowOperator
from logbus.operators.load_window import POOL_DEFAULT, LoadWindowOperator
from logbus.sensors.window_closed import WindowClosedSensor
from logbus.windows.model import HOUR, Pipeline

# Runs of the past may be asked for (a rerun of an old hour); with catchup off, the start date schedules nothing by itself.
START_DATE = datetime(2000, 1, 1, tzinfo=UTC)
TASK_DEFAULTS: Mapping[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=30)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Airflow connections by their ids, and the pool that keeps Spark drivers from running beside each other."""

    kafka: str = BrokerHook.default_conn_name
    warehouse: str = WarehouseHook.default_conn_name
    spark: str = "spark_default"
    pool: str = POOL_DEFAULT


CONNECTIONS_DEFAULT = Connections()


def hourly_ingest(pipeline: Pipeline, connections: Connections = CONNECTIONS_DEFAULT) -> DAG:
    """The DAG named after the pipeline: every hour, load the hour before into its table, exactly once."""
    if pipeline.interval != HOUR:
        raise UserError(f"the windows of {pipeline.name} are {pipeline.interval} long: an hourly ingest takes those of an hour")
    common = common_arguments(pipeline, connections)
    with DAG(
        pipeline.name,
        description=f"Load each hour of the topic {pipeline.topic} into {pipeline.table}, exactly once",
        schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
        start_date=START_DATE,
        catchup=False,
        max_active_runs=1,  # its loads share one pool slot anyway; an hour asked for goes before the hour that is due
        default_args=dict(TASK_DEFAULTS),
        tags=["logbus"],
    ) as dag:
        closed = WindowClosedSensor(task_id="closed", lateness=pipeline.lateness, deferrable=True)
        freeze = FreezeWindowOperator(task_id="freeze", **common)
        load = LoadWindowOperator(task_id="load", conn_id=connections.spark, pool=connections.pool, **common)
        audit = AuditWindowOperator(task_id="audit", **common)
        closed >> freeze >> load >> audit
    return dag


def catch_up(pipeline: Pipeline, connections: Connections = CONNECTIONS_DEFAULT) -> DAG:
    """The DAG `<pipeline>_catchup`: load all closed hours between its parameters `since` and `until` in one Spark application.

    Both parameters may be left out: from the first record, up to the last closed hour.
    """
    common = common_arguments(pipeline, connections)
    with DAG(
        f"{pipeline.name}_catchup",
        description=f"Load all closed hours of the topic {pipeline.topic} into {pipeline.table} with one Spark application",
        schedule=None,
        start_date=START_DATE,
        catchup=False,
        max_active_runs=1,
        default_args=dict(TASK_DEFAULTS),
        params={"since": instant_parameter("the first hour"), "until": instant_parameter("the end of the last hour")},
        tags=["logbus"],
    ) as dag:
        freeze = FreezeClosedWindowsOperator(task_id="freeze", since="{{ params.since }}", until="{{ params.until }}", **common)
        windows = freeze.output["starts"]
        load = LoadWindowOperator(task_id="load", windows=windows, conn_id=connections.spark, pool=connections.pool, **common)
        audit = AuditWindowOperator(task_id="audit", windows=windows, **common)
        freeze >> load >> audit
    return dag


def common_arguments(pipeline: Pipeline, connections: Connections) -> dict[str, Any]:
    """What every task over windows of this pipeline is built with."""
    return {"pipeline": pipeline, "kafka_conn_id": connections.kafka, "warehouse_conn_id": connections.warehouse}


def instant_parameter(meaning: str) -> Param:
    """An optional instant, as the form of a manual run asks for it."""
    description = f"{meaning}, such as 2015-05-17T10:00:00Z; optional"
    return Param(None, type=["null", "string"], format="date-time", description=description)
