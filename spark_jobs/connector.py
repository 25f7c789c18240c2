"""The reader "connector": Spark's official Kafka connector instead of our own reader, if it is on the class path.

    settings {"reader": "connector"}

It reads the group's ranges with exact starting and ending offsets for each partition, `failOnDataLoss` always on. Adjacent
windows are one range; if a reload leaves gaps between them, there are more reads, which are joined. A record's offset determines
its window, so a batch in which Spark has combined several partitions is split again.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from logbus.errors import UserError
from logbus.fingerprint import UNREADABLE, UNREADABLE_HEADERS
from logbus.kafka.exact_reader import STALL_SECONDS_MAX
from logbus.model import Pipeline
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import AnalysisException

from spark_jobs.job import TaskJob, TaskResult
from spark_jobs.load_task import load
from spark_jobs.packing import PlanSlice, Run, TaskPlan, join
from spark_jobs.records import Headers, Records

RESULT_COLUMN = "result"
RESULT_SCHEMA = f"{RESULT_COLUMN} binary"

# What the load needs of a record, under our names; a record without a timestamp (-1) is one millisecond before the epoch.
COLUMNS = ("partition", "offset", "unix_millis(timestamp) stamp_ms", "key", "value", "headers")

# librdkafka's names to the Java client's; names that both share are passed on as they are.
RENAMED: Mapping[str, str] = {"sasl.mechanisms": "sasl.mechanism", "ssl.ca.location": "ssl.truststore.location"}
SHARED = ("bootstrap.servers", "security.protocol", "sasl.mechanism", "client.id", "ssl.endpoint.identification.algorithm")
CREDENTIALS = ("sasl.username", "sasl.password")

# Larger fetches than the client's defaults: measured three times as fast over a local network.
FETCH: Mapping[str, str] = {"kafka.max.poll.records": "20000", "kafka.max.partition.fetch.bytes": "8388608"}

# How long no record of a range may arrive before it is an error, as with our own reader; and how long any other answer may take
# the broker, for which the Java client allows a minute.
SILENCE_MS_MAX = int(STALL_SECONDS_MAX * 1000)

JAAS_MODULES: Mapping[str, str] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def run_connector_job(
    spark: SparkSession, pipeline: Pipeline, plans: Sequence[TaskPlan], job: TaskJob, client_config: Mapping[str, Any]
) -> list[TaskResult]:
    """The same as `spark_job.run_job`, with the connector."""
    runs = runs_of(plans)
    options = {**java_options(client_config), **FETCH, "kafka.isolation.level": pipeline.isolation_level}
    options |= {"failOnDataLoss": "true", "includeHeaders": "true", "minPartitions": str(len(plans))}
    options |= {"kafkaConsumer.pollTimeoutMs": str(SILENCE_MS_MAX), "kafka.default.api.timeout.ms": str(SILENCE_MS_MAX)}
    reads = [read_layer(spark, options, pipeline.topic, layer) for layer in layers(runs)]
    records = reduce(DataFrame.union, reads).selectExpr(*COLUMNS)
    by_partition = {partition: whole(partition, some) for partition, some in runs.items()}
    return [pickle.loads(row[0]) for row in records.mapInArrow(load_batches(job, by_partition), RESULT_SCHEMA).collect()]


def runs_of(plans: Sequence[TaskPlan]) -> dict[int, list[Run]]:
    """The plans' slices by partition, joined where adjacent: the connector itself splits ranges into tasks."""
    slices = sorted(
        (part for plan in plans for run in plan.runs for part in run.slices), key=lambda part: (part.partition, part.start_offset)
    )
    found: dict[int, list[Run]] = {}
    for run in join(slices):
        found.setdefault(run.partition, []).append(run)
    return found


def whole(partition: int, runs: Sequence[Run]) -> Run:
    """All slices of a partition, for looking up offsets."""
    slices: list[PlanSlice] = [part for run in runs for part in run.slices]
    return Run(partition=partition, slices=tuple(slices))


def layers(runs: Mapping[int, Sequence[Run]]) -> Iterator[dict[int, Run]]:
    """One run of each partition at a time: all that one read of the connector can express."""
    for number in range(max(map(len, runs.values()))):
        yield {partition: some[number] for partition, some in runs.items() if number < len(some)}


def read_layer(spark: SparkSession, options: Mapping[str, str], topic: str, layer: Mapping[int, Run]) -> DataFrame:
    offsets = {
        "assign": {topic: sorted(layer)},
        "startingOffsets": {topic: {str(partition): run.start_offset for partition, run in layer.items()}},
        "endingOffsets": {topic: {str(partition): run.end_offset for partition, run in layer.items()}},
    }
    try:
        reader = spark.read.format("kafka").options(**options)
        return reader.options(**{name: json.dumps(value) for name, value in offsets.items()}).load()
    except AnalysisException as error:
        raise UserError(
            'the pipeline reads with {"reader": "connector"}, but Spark has no Kafka connector on its class path: fetch it with '
            "`logbus connector-jars DIRECTORY` and set LOGBUS_CONNECTOR_JARS, or give spark-submit --packages"
        ) from error


def java_options(client_config: Mapping[str, Any]) -> dict[str, str]:
    """The client configuration for the Java client. What has no equivalent is refused: half a security setting is none."""
    config = {RENAMED.get(name, name): str(value) for name, value in client_config.items()}
    options = {f"kafka.{name}": value for name, value in config.items() if name in SHARED}
    if "ssl.truststore.location" in config:
        options |= {"kafka.ssl.truststore.location": config["ssl.truststore.location"], "kafka.ssl.truststore.type": "PEM"}
    if "sasl.password" in config:
        options["kafka.sasl.jaas.config"] = jaas(config)
    strange = [name for name in config if name.startswith(("sasl.", "ssl.")) and not known(name)]
    if strange:
        raise UserError(
            f'the reader "connector" cannot take over {", ".join(strange)} of the kafka connection: use our own reader'
        )
    return options


def known(name: str) -> bool:
    return name in (*SHARED, *CREDENTIALS, "ssl.truststore.location")


def jaas(config: Mapping[str, str]) -> str:
    mechanism = config.get("sasl.mechanism", "")
    if mechanism not in JAAS_MODULES:
        raise UserError(f'the reader "connector" knows the SASL mechanisms {", ".join(JAAS_MODULES)}; got {mechanism!r}')
    name, password = (json.dumps(config.get(word, "")) for word in CREDENTIALS)
    return f"{JAAS_MODULES[mechanism]} required username={name} password={password};"


def load_batches(job: TaskJob, runs: Mapping[int, Run]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`. A result is returned as one pickled value, because only the driver needs its schema."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None, "runs inside a Spark task only"
        chunks = (records for batch in batches for records in of_connector(batch, runs))
        results = [pickle.dumps(result) for result in load(chunks, job, task.taskAttemptId())]
        if results:
            yield pa.RecordBatch.from_pydict({RESULT_COLUMN: pa.array(results, pa.binary())})

    return run


def of_connector(batch: pa.RecordBatch, runs: Mapping[int, Run]) -> Iterator[Records]:
    """A batch of `COLUMNS`, split wherever the partition changes, the offsets go back, or another window begins."""
    partitions, offsets, stamps, keys, values, headers = (column.to_pylist() for column in batch.columns)
    for start, end in pieces(partitions, offsets):
        run = runs[partitions[start]]
        for window_id, first, behind in run.split(offsets[start:end]):
            chosen = slice(start + first, start + behind)
            yield Records(
                window_id=window_id,
                partition=run.partition,
                offsets=offsets[chosen],
                stamps_ms=stamps[chosen],
                keys=keys[chosen],
                values=values[chosen],
                headers=pairs_of(headers[chosen]),
            )


def pieces(partitions: Sequence[int], offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for place in range(1, len(offsets) + 1):
        is_end = place == len(offsets)
        if is_end or partitions[place] != partitions[start] or offsets[place] <= offsets[place - 1]:
            yield start, place
            start = place


def pairs_of(headers: Sequence[list[dict[str, Any]] | None]) -> list[Headers] | None:
    if not any(headers):
        return None
    return [as_we_read([(header["key"], header["value"]) for header in found or ()]) for found in headers]


def as_we_read(headers: Headers) -> Headers:
    """Java puts the replacement character into a name that is not UTF-8. A record has one fingerprint, whoever reads it: so what
    our own readers return for such headers."""
    return UNREADABLE_HEADERS if any(UNREADABLE in name for name, _ in headers) else headers
