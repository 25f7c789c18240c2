"""The peer of our streams: the same aggregate in plain Structured Streaming with the Kafka connector, as fast as we can.

Requests by minute and host: counted and summed in each micro-batch, and added to a table by one transaction with the batch's
number, so that a batch that Spark repeats is recognised. No state and no watermark: nothing is late. No chain of offsets, no
owner, no fingerprints, no dead letters, nothing that could be proven: where the checkpoint is lost, so is what was read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

MEMBERS = "at bigint, host string, path string, status int, bytes bigint, agent string"
ADD = (
    "insert into {table} select * from added on conflict (window_start, host) do update "
    "set requests = {table}.requests + excluded.requests, bytes = {table}.bytes + excluded.bytes"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredAsk:
    """What to aggregate into which table. `trigger_seconds`: None reads what is there and ends. `uri` is a libpq URI."""

    bootstrap: str
    topic: str
    table: str
    checkpoint: str
    offsets_max: int
    trigger_seconds: float | None
    uri: str = field(repr=False)


def create_tables(connection: psycopg.Connection[Any], table: str) -> None:
    columns = "window_start timestamptz, host text, requests bigint, bytes numeric, primary key (window_start, host)"
    connection.execute(f"create table {table} ({columns})")
    connection.execute(f"create table {table}_batch (number bigint primary key)")


def query(session: Any, ask: StructuredAsk) -> Any:
    """Starts it."""
    from pyspark.sql import functions

    options = {
        "kafka.bootstrap.servers": ask.bootstrap,
        "subscribe": ask.topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": ask.offsets_max,
    }
    text = functions.col("value").cast("string")
    members = (
        session.readStream.format("kafka").options(**options).load().select(functions.from_json(text, MEMBERS).alias("member"))
    )
    trigger = {"availableNow": True} if ask.trigger_seconds is None else {"processingTime": f"{ask.trigger_seconds:g} seconds"}
    writer = members.select("member.*").writeStream.foreachBatch(adding(ask)).option("checkpointLocation", ask.checkpoint)
    return writer.trigger(**trigger).start()


def adding(ask: StructuredAsk) -> Callable[[Any, int], None]:
    """What is done with each micro-batch."""
    from pyspark.sql import functions

    connection = psycopg.connect(ask.uri, autocommit=True)
    minute = functions.window(functions.timestamp_millis("at"), "1 minute").start

    def add(batch: Any, number: int) -> None:
        sums = batch.groupBy(minute, "host").agg(functions.count("*"), functions.sum("bytes")).toArrow()
        with connection.transaction():
            cursor = connection.execute(f"insert into {ask.table}_batch values (%s) on conflict do nothing", [number])
            if not cursor.rowcount:
                return
            connection.execute(f"create temporary table added (like {ask.table}) on commit drop")
            with connection.cursor().copy("copy added from stdin") as copy:
                for row in zip(*(column.to_pylist() for column in sums.columns), strict=True):
                    copy.write_row(row)
            connection.execute(ADD.format(table=ask.table))

    return add
