"""A Spark data source without jars: rows of exactly the offsets of the plans, for whoever wants frozen windows as a DataFrame.

One Spark partition for each `TaskPlan`; a row for each record, tagged with the window it belongs to. The load itself does not use
it: rows that go from Python through the JVM and back to Python cost more than reading them (docs/decisions).

The class is made inside a function so that it travels to the workers by value: the client's configuration holds
passwords, and a data source's options would show in plans and in Spark's UI.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_jobs.kafka_source import read_plan
from spark_jobs.packing import TaskPlan
from spark_jobs.records import to_batch

SOURCE_NAME = "logbus_windows"

# RECORD_SCHEMA in Spark's words.
SCHEMA = (
    "window_id bigint, partition int, offset bigint, timestamp_ms bigint, key binary, value binary, "
    "headers array<struct<name: string, content: binary>>"
)


class PlannedPartition(InputPartition):  # type: ignore[misc]
    """One task's plan, as Spark carries it to a worker."""

    def __init__(self, plan: TaskPlan) -> None:
        self.plan = plan


def windows_source(
    plans: Sequence[TaskPlan], client_config: Mapping[str, Any], topic: str, isolation_level: str
) -> type[DataSource]:
    """The data source class that reads these plans; register it, then `spark.read.format(SOURCE_NAME)`."""

    class WindowsReader(DataSourceReader):  # type: ignore[misc]
        def partitions(self) -> list[InputPartition]:
            return [PlannedPartition(plan) for plan in plans]

        def read(self, partition: PlannedPartition) -> Iterator[pa.RecordBatch]:
            return map(to_batch, read_plan(partition.plan, client_config, topic, isolation_level))

    class WindowsSource(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return SOURCE_NAME

        def schema(self) -> str:
            return SCHEMA

        def reader(self, schema: StructType) -> DataSourceReader:
            return WindowsReader()

    return WindowsSource
