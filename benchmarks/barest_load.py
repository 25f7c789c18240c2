"""The peer of our load: the shortest Spark job that puts the same records into a table of the same columns.

    spark-submit barest_load.py '{"bootstrap": ..., "topic": ..., "ends": {"0": 123}, "table": ..., "uri": ..., "columns": [...]}'

One task a partition, the same client and the same bulk append; no windows, no ledger, no staging, no proof. A task that Spark
repeats leaves its rows twice, a bad line ends the job: what is measured is what those guarantees cost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

BATCH_RECORDS = 10_000


def load_partition(ask: dict[str, Any], partition: int) -> None:
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(ask["uri"]) as connection:
        for rows in _batches(ask, partition):
            with connection.cursor() as cursor:
                cursor.adbc_ingest(ask["table"], pa.RecordBatch.from_pylist(rows, schema=_schema(ask)), mode="append")
        connection.commit()


def _batches(ask: dict[str, Any], partition: int) -> Iterator[list[dict[str, Any]]]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": ask["bootstrap"], "group.id": "barest", "enable.auto.commit": False})
    consumer.assign([TopicPartition(ask["topic"], partition, 0)])
    wanted, rows, position = ask["ends"][str(partition)], [], 0
    while position < wanted:
        for message in consumer.consume(min(BATCH_RECORDS, wanted - position), 0.2):
            if message.error() is not None:
                raise RuntimeError(message.error().str())
            position = message.offset() + 1
            rows.append({"_partition": partition, "_offset": message.offset(), **json.loads(message.value())})
        if len(rows) >= BATCH_RECORDS or position >= wanted:
            yield rows
            rows = []
    consumer.close()


def _schema(ask: dict[str, Any]) -> pa.Schema:
    kinds = {"text": pa.string(), "bigint": pa.int64(), "integer": pa.int32()}
    columns = [(name, kinds[kind]) for name, kind in ask["columns"].items()]
    return pa.schema([("_partition", pa.int32()), ("_offset", pa.int64()), *columns])


def main() -> None:
    from pyspark.sql import SparkSession

    ask = json.loads(sys.argv[1])
    session = SparkSession.builder.appName("barest load").getOrCreate()
    partitions = [int(partition) for partition in ask["ends"]]
    session.sparkContext.parallelize(partitions, len(partitions)).foreach(lambda partition: load_partition(ask, partition))
    session.stop()


if __name__ == "__main__":
    main()
