"""The peers of our load: the shortest Spark job that puts the same records into a table with the same columns, as fast as we can;
and what is usually written instead: Spark's own source, `from_json` and `write.jdbc`.

The shortest has one task per partition, and the same client, parser library, columns and bulk append as ours. No windows, no
ledger, no staging, no dead letters, no proof: neither a hash of a record nor a count of what arrived. A task that Spark repeats
leaves its rows twice, a bad record ends the job. The difference is what those guarantees cost. The usual one gives none of them
either, and a bad record becomes a row of nulls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

BATCH_RECORDS = 10_000
COPY_RECORDS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What to load. `ends` are the end offsets by partition, `uri` is a libpq URI."""

    bootstrap: str
    topic: str
    ends: dict[int, int]
    window_start_us: int
    table: str
    columns: dict[str, str]
    uri: str = field(repr=False)


def ask_of(argument: str, uri: str) -> Ask:
    asked = json.loads(argument)
    ends = {int(partition): end for partition, end in asked.pop("ends").items()}
    return Ask(**asked, ends=ends, uri=uri)


def load(context: Any, ask: Ask) -> None:
    """The whole job."""
    partitions = list(ask.ends)
    context.parallelize(partitions, len(partitions)).foreach(lambda partition: load_partition(ask, partition))


SPARK_TYPES = {"text": "string", "bigint": "bigint", "integer": "int"}


def load_usually(session: Any, ask: Ask) -> None:
    """The same table by a DataFrame; the driver's batches are as large as helps, and rewritten to inserts of many rows."""
    from pyspark.sql import functions
    from sqlalchemy import make_url

    options = {"kafka.bootstrap.servers": ask.bootstrap, "subscribe": ask.topic}
    members = ", ".join(f"{name} {SPARK_TYPES[kind]}" for name, kind in ask.columns.items())
    frame = session.read.format("kafka").options(**options, startingOffsets="earliest", endingOffsets="latest").load()
    rows = frame.select(
        functions.col("topic").alias("_topic"),
        functions.col("partition").alias("_partition"),
        functions.col("offset").alias("_offset"),
        functions.col("timestamp").alias("_timestamp"),
        functions.col("key").alias("_key"),
        functions.timestamp_micros(functions.lit(ask.window_start_us)).alias("_window_start"),
        functions.from_json(functions.col("value").cast("string"), members).alias("member"),
    )
    url = make_url(ask.uri)
    connection = {
        "driver": "org.postgresql.Driver",
        "user": url.username,
        "socketFactory": "org.newsclub.net.unix.AFUNIXSocketFactory$FactoryArg",
        "socketFactoryArg": f"{url.query['host']}/.s.PGSQL.5432",
        "reWriteBatchedInserts": "true",
        "batchsize": str(BATCH_RECORDS),
    }
    columns = [name for name in rows.columns if name != "member"]
    rows.select(*columns, "member.*").write.jdbc(
        f"jdbc:postgresql://localhost/{url.database}", ask.table, mode="append", properties=connection
    )


def load_partition(ask: Ask, partition: int) -> None:
    import gc

    import adbc_driver_postgresql
    import pyarrow as pa
    from adbc_driver_manager import AdbcConnection, AdbcStatement, StatementOptions

    gc.set_threshold(100_000)
    append = {
        StatementOptions.INGEST_MODE.value: "adbc.ingest.mode.append",
        StatementOptions.INGEST_TARGET_TABLE.value: ask.table,
    }
    with adbc_driver_postgresql.connect(ask.uri) as database, AdbcConnection(database) as connection:
        connection.set_autocommit(False)
        for batches in _gathered(_batches(ask, partition)):
            with AdbcStatement(connection) as statement:
                statement.set_options(**append)
                statement.bind_stream(pa.RecordBatchReader.from_batches(batches[0].schema, batches))
                statement.execute_update()
        connection.commit()


def _gathered(batches: Iterator[Any]) -> Iterator[list[Any]]:
    some: list[Any] = []
    for batch in batches:
        some.append(batch)
        if sum(one.num_rows for one in some) >= COPY_RECORDS:
            yield some
            some = []
    if some:
        yield some


def _batches(ask: Ask, partition: int) -> Iterator[Any]:
    from confluent_kafka import Consumer, Message, TopicPartition

    settings = {"group.id": "barest", "enable.auto.commit": False, "fetch.queue.backoff.ms": 10}  # the same back-off as ours
    consumer = Consumer({"bootstrap.servers": ask.bootstrap, **settings})
    consumer.assign([TopicPartition(ask.topic, partition, 0)])
    position, end = 0, ask.ends[partition]
    while position < end:
        messages = consumer.consume(min(BATCH_RECORDS, end - position), 0.1)
        if any(map(Message.error, messages)):
            raise RuntimeError("the broker reports an error")
        if messages:
            position = messages[-1].offset() + 1
            yield _batch(ask, partition, messages)
    consumer.close()


def _batch(ask: Ask, partition: int, messages: Sequence[Any]) -> Any:
    import orjson
    import pyarrow as pa
    from confluent_kafka import Message

    kinds = {"text": pa.string(), "bigint": pa.int64(), "integer": pa.int32()}
    instant, size = pa.timestamp("us", tz="UTC"), len(messages)
    members = zip(*map(itemgetter(*ask.columns), map(orjson.loads, map(Message.value, messages))), strict=True)
    stamps = pa.array([stamp for _, stamp in map(Message.timestamp, messages)], pa.int64())
    columns = {
        "_topic": pa.repeat(pa.scalar(ask.topic), size),
        "_partition": pa.repeat(pa.scalar(partition, pa.int32()), size),
        "_offset": pa.array(list(map(Message.offset, messages)), pa.int64()),
        "_timestamp": stamps.cast(pa.timestamp("ms", tz="UTC")).cast(instant),
        "_key": pa.array(list(map(Message.key, messages)), pa.binary()),
        "_window_start": pa.repeat(pa.scalar(ask.window_start_us, instant), size),
    }
    parsed = {name: pa.array(values, kinds[ask.columns[name]]) for name, values in zip(ask.columns, members, strict=True)}
    return pa.RecordBatch.from_pydict({**columns, **parsed})
