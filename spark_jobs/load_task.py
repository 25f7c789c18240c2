"""What one Spark task does with the records it is given: parse, stage, and say what it did.

It runs as the function of `mapInArrow`. Spark merges batches across its input partitions, so nothing is taken from a
batch's place: every record says which window and partition it is of. The result is a row for each of those, tagged
with the task attempt; the driver sees only the results of the attempts that won.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from logbus.windows.fingerprint import MODULUS, as_signed, record_hash
from pyspark import TaskContext

from spark_jobs.parsers import Parser, Unparsable, parser_for
from spark_jobs.warehouse_sink import WarehouseSink, timestamp_us

RESULT_SCHEMA = (
    "task bigint, window_id bigint, partition int, read bigint, filtered bigint, late bigint, early bigint, bytes bigint, "
    "fingerprint string"
)
ARROW_RESULT_SCHEMA = pa.schema(
    [
        ("task", pa.int64()),
        ("window_id", pa.int64()),
        ("partition", pa.int32()),
        ("read", pa.int64()),
        ("filtered", pa.int64()),
        ("late", pa.int64()),
        ("early", pa.int64()),
        ("bytes", pa.int64()),
        ("fingerprint", pa.string()),  # unsigned 64 bits, in decimal
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedWindow:
    """Where the records of a window go, in this attempt."""

    window_id: int
    attempt: int
    start_ms: int
    end_ms: int
    staging_table: str
    dead_letter_table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskJob:
    """Everything a task needs. `warehouse_uri` is a secret: the job travels pickled, never in an option or argument."""

    topic: str
    parse: str
    settings: Mapping[str, Any]
    warehouse_uri: str
    windows: Mapping[int, StagedWindow]


@dataclass(slots=True)
class Tally:
    """Running counts of one partition of one window."""

    read: int = 0
    filtered: int = 0
    late: int = 0
    early: int = 0
    bytes: int = 0
    fingerprint: int = 0


Batches = Iterator[pa.RecordBatch]


def load_task(job: TaskJob) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow`."""

    def run(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None, "runs inside a Spark task only"
        yield from load(batches, job, context.taskAttemptId())

    return run


def load(batches: Batches, job: TaskJob, task: int) -> Batches:
    """Stages every record, commits, then gives the tallies."""
    parser = parser_for(job.parse, job.settings)
    tallies: dict[tuple[int, int], Tally] = {}
    with WarehouseSink(job.warehouse_uri, parser.columns) as sink:
        for batch in batches:
            for record in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                stage(record, job, task, parser, sink, tallies)
    if tallies:
        yield to_result(task, tallies)


Record = tuple[int, int, int, int, bytes | None, bytes | None, list[dict[str, Any]]]


def stage(
    record: Record, job: TaskJob, task: int, parser: Parser, sink: WarehouseSink, tallies: dict[tuple[int, int], Tally]
) -> None:
    """One record to one of the two tables of its window."""
    window_id, partition, offset, timestamp_ms, key, value, headers = record
    window = job.windows[window_id]
    pairs = [(header["name"], header["content"]) for header in headers]
    hashed = record_hash(partition, offset, timestamp_ms, key, value, pairs)
    size = len(key or b"") + len(value or b"")
    count(tallies.setdefault((window_id, partition), Tally()), window, timestamp_ms, size, hashed)
    stamp, signed = timestamp_us(timestamp_ms), as_signed(hashed)
    try:
        values = parse_value(parser, value)
    except Unparsable as error:
        common = (job.topic, partition, offset, window_id, stamp, key, value, headers_json(pairs))
        sink.add_dead_letter(
            window.dead_letter_table, (*common, error.kind, storable(str(error)), window.attempt, signed, task), size
        )
    else:
        common = (job.topic, partition, offset, stamp, key, window.start_ms * 1000, signed, task)
        sink.add_row(window.staging_table, common, values, size)


def parse_value(parser: Parser, value: bytes | None) -> Sequence[Any]:
    if value is None:
        raise Unparsable("NoValue", "the record has no value (a tombstone)")
    return parser.parse(value)


def count(tally: Tally, window: StagedWindow, timestamp_ms: int, size: int, hashed: int) -> None:
    tally.read += 1
    tally.late += timestamp_ms < window.start_ms
    tally.early += timestamp_ms >= window.end_ms
    tally.bytes += size
    tally.fingerprint = (tally.fingerprint + hashed) % MODULUS


def storable(text: str) -> str:
    """Any text as PostgreSQL can hold it."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def headers_json(headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
    """Headers as JSON pairs; content that is no text as base64."""
    if not headers:
        return None
    return b"\x01" + json.dumps([[storable(name), header_content(content)] for name, content in headers]).encode()


def header_content(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    return {"base64": base64.b64encode(content).decode()} if "\0" in text else text


def to_result(task: int, tallies: Mapping[tuple[int, int], Tally]) -> pa.RecordBatch:
    rows = [
        (task, window_id, partition, part.read, part.filtered, part.late, part.early, part.bytes, str(part.fingerprint))
        for (window_id, partition), part in tallies.items()
    ]
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, ARROW_RESULT_SCHEMA, strict=True)],
        schema=ARROW_RESULT_SCHEMA,
    )
