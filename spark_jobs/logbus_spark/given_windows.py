"""For users' own Spark programs: the windows that SparkSubmitWindowOperator passes to them, as a DataFrame.

    windows = given_windows(os.environ)
    records = read_records(spark, windows, os.environ)

A row for each record of exactly these offsets: window_id, partition, offset, timestamp_ms, key, value, headers. A missing offset
is an error, and so is a topic that was recreated, or another log under its name: the driver compares them before anything is
read, and each task after it has read. Programs that have the Kafka connector's jar do not need this: they can pass it
`windows.starting_offsets` and `windows.ending_offsets` as options.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from logbus import errors, spark_submit
from logbus.kafka import client, topics
from logbus.kafka.client_config import of_brokers
from logbus.windows.handover import HandedWindows, parse_text
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from logbus_spark import records, session
from logbus_spark.records import TASKS_PER_CORE, TaskPlan, pack


def given_windows(environ: Mapping[str, str]) -> HandedWindows:
    """The windows this program was started for."""
    return parse_text(variable(environ, spark_submit.WINDOWS_VARIABLE))


def read_records(spark: SparkSession, windows: HandedWindows, environ: Mapping[str, str]) -> DataFrame:
    """All records of the windows. The broker's configuration does not appear in Spark's plans or UI."""
    client_config = of_brokers(json.loads(variable(environ, spark_submit.KAFKA_CONFIG_VARIABLE)))
    windows.refuse_another_log(topics.Topics(client.Client(client_config)))
    if not any(window.record_count for window in windows.windows):
        return spark.createDataFrame([], SCHEMA)
    record_bytes = records.mean_bytes(client_config, windows.isolation_level, records.ranges_of(windows.windows))
    plans = pack(windows.windows, TASKS_PER_CORE * session.parallelism(spark), record_bytes, spark_submit.MAX_TASK_BYTES)
    spark.dataSource.register(windows_source(plans, client_config, windows))
    return spark.read.format(SOURCE_NAME).load()


def variable(environ: Mapping[str, str], name: str) -> str:
    if name not in environ:
        raise errors.UserError(
            f"the environment has no {name}: submit this program with SparkSubmitWindowOperator, which sets it"
        )
    return environ[name]


SOURCE_NAME = "logbus_windows"

# RECORD_SCHEMA as a Spark schema.
SCHEMA = (
    "window_id bigint, partition int, offset bigint, timestamp_ms bigint, key binary, value binary, "
    "headers array<struct<name: string, content: binary>>"
)


class PlannedPartition(InputPartition):  # type: ignore[misc]
    """One task's plan, as Spark sends it to a worker."""

    def __init__(self, plan: TaskPlan) -> None:
        self.plan = plan


def windows_source(plans: Sequence[TaskPlan], client_config: Mapping[str, Any], windows: HandedWindows) -> type[DataSource]:
    """The data source class that reads these plans; register it, then `spark.read.format(SOURCE_NAME)`."""

    class WindowsReader(DataSourceReader):  # type: ignore[misc]
        def partitions(self) -> list[InputPartition]:
            return [PlannedPartition(plan) for plan in plans]

        def read(self, partition: PlannedPartition) -> Iterator[pa.RecordBatch]:
            plan_records = records.read_plan(partition.plan, client_config, windows.topic, windows.isolation_level)
            yield from map(records.to_batch, plan_records)
            # A frame may be read long after it was made, and more than once.
            windows.refuse_another_log(topics.Topics(client.Client(client_config)))

    class WindowsSource(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return SOURCE_NAME

        def schema(self) -> str:
            return SCHEMA

        def reader(self, schema: StructType) -> DataSourceReader:
            return WindowsReader()

    return WindowsSource
