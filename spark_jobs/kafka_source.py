"""A Spark data source without jars: reads exactly the offsets of the plans, with the stock Python client.

One Spark partition for each `TaskPlan`; a row for each record, tagged with the window it belongs to. Whatever is
missing raises (see `logbus.windows.exact_reader`), so a task that ends well has read its ranges to the end.

The class is made inside a function so that it travels to the workers by value: the client's configuration holds
passwords, and a data source's options would show in plans and in Spark's UI.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import Message
from logbus.windows.exact_reader import exact_consumer, read_with
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_jobs.packing import Run, TaskPlan

SOURCE_NAME = "logbus_windows"

SCHEMA = (
    "window_id bigint, partition int, offset bigint, timestamp_ms bigint, key binary, value binary, "
    "headers array<struct<name: string, content: binary>>"
)
HEADER_TYPE = pa.list_(pa.struct([("name", pa.string()), ("content", pa.binary())]))
ARROW_SCHEMA = pa.schema(
    [
        ("window_id", pa.int64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADER_TYPE),
    ]
)

# A batch goes on when it holds this many records or bytes: enough to make its own cost small, little enough for the memory of
# a worker whatever the records' size.
BATCH_RECORDS_MAX = 10_000
BATCH_BYTES_MAX = 4 * 1024 * 1024


class PlannedPartition(InputPartition):  # type: ignore[misc]
    """One task's plan, as Spark carries it to a worker."""

    def __init__(self, plan: TaskPlan) -> None:
        self.plan = plan


def kafka_source(
    plans: Sequence[TaskPlan], client_config: Mapping[str, Any], topic: str, isolation_level: str
) -> type[DataSource]:
    """The data source class that reads these plans; register it, then `spark.read.format(SOURCE_NAME)`."""

    class WindowsReader(DataSourceReader):  # type: ignore[misc]
        def partitions(self) -> list[InputPartition]:
            return [PlannedPartition(plan) for plan in plans]

        def read(self, partition: PlannedPartition) -> Iterator[pa.RecordBatch]:
            return read_plan(partition.plan, client_config, topic, isolation_level)

    class WindowsSource(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return SOURCE_NAME

        def schema(self) -> str:
            return SCHEMA

        def reader(self, schema: StructType) -> DataSourceReader:
            return WindowsReader()

    return WindowsSource


def read_plan(plan: TaskPlan, client_config: Mapping[str, Any], topic: str, isolation_level: str) -> Iterator[pa.RecordBatch]:
    """All records of a plan, in batches."""
    with exact_consumer(client_config, isolation_level) as consumer:
        for run in plan.runs:
            yield from batches(read_with(consumer, topic, run.partition, run.start_offset, run.end_offset), run)


def batches(messages: Iterator[Message], run: Run) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[Any, ...]] = []
    size = 0
    for message in messages:
        rows.append(to_row(message, run))
        size += len(message.value() or b"") + len(message.key() or b"")
        if len(rows) >= BATCH_RECORDS_MAX or size >= BATCH_BYTES_MAX:
            yield to_batch(rows)
            rows, size = [], 0
    if rows:
        yield to_batch(rows)


def to_row(message: Message, run: Run) -> tuple[Any, ...]:
    headers = [{"name": name, "content": content} for name, content in message.headers() or ()]
    offset = message.offset()
    return run.window_of(offset), run.partition, offset, message.timestamp()[1], message.key(), message.value(), headers


def to_batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, ARROW_SCHEMA, strict=True)], schema=ARROW_SCHEMA
    )
