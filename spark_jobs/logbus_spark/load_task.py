"""What one Spark task does with the records it is given: parse them, stage them, and report what it did.

Records arrive in chunks of one partition of one window each, column by column, and stay columns: only the hash and the parser
work record by record. The results are tagged with the task attempt; the driver sees only those of the attempts that won.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pkgutil import resolve_name
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
from logbus import fingerprint, model
from logbus.loads import read_tally
from logbus.loads.read_tally import ReadTally
from logbus.parsing import Parser, batches, parser_for
from logbus.parsing.batches import Parsed
from logbus.windows.log_changes import log_changed, record_changed
from pyspark import TaskContext

from logbus_spark.job import StagedWindow, TaskJob, TaskPlan, TaskResult
from logbus_spark.records import Records, headers_json, read_plan

Tallies = dict[tuple[int, int], ReadTally]

MINUTE = timedelta(minutes=1)
ZONES_MS_MAX = batches.CALENDAR_MS_MAX - 2 * (model.DAY // model.MILLISECOND)  # later is no date in some time zones


class TaskSink(Protocol):
    """Where one task attempt puts the records of many windows, in any order."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def write_rows(self, window: StagedWindow, rows: pa.RecordBatch) -> None:
        """Rows of `batches.row_schema(columns)`."""

    def write_dead_letters(self, window: StagedWindow, rows: pa.RecordBatch) -> None:
        """Rows of `batches.DEAD_LETTER_SCHEMA`."""

    def files(self, window: StagedWindow) -> tuple[str, ...]:
        """The files that the driver must commit for the window, after a normal exit. None if the rows are in known tables."""


# The cyclic garbage collector scans young objects whenever there are this many more. Ten thousand parsed records are as many
# objects, without cycles, that wait to become columns: scanning them again and again took a quarter of a task's time.
COLLECTED_AFTER = 100_000


@contextmanager
def _relaxed_gc() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(COLLECTED_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def load_plans(
    pipeline: model.Pipeline, job: TaskJob, client_config: Mapping[str, Any]
) -> Callable[[Iterator[TaskPlan]], Iterator[TaskResult]]:
    """The tasks' function. It is sent pickled, with the secrets it holds."""

    def run(plans: Iterator[TaskPlan]) -> Iterator[TaskResult]:
        task = TaskContext.get()
        assert task is not None, "runs inside a Spark task only"
        chunks = (
            records for plan in plans for records in read_plan(plan, client_config, pipeline.topic, pipeline.isolation_level)
        )
        yield from load(chunks, job, task.taskAttemptId())

    return run


def load(chunks: Iterable[Records], job: TaskJob, task: int) -> list[TaskResult]:
    """Stages every record and commits; then returns what it did."""
    parser = parser_for(job.parse, job.settings)
    tallies: Tallies = {}
    # By its name, and only now: no worker pays for the libraries of another sink.
    make_sink: Callable[[TaskJob, Mapping[str, str], int], TaskSink] = resolve_name(f"logbus_spark.sinks.{job.sink}:task_sink")
    with _relaxed_gc(), make_sink(job, parser.columns, task) as sink:
        for records in chunks:
            stage(records, job, parser, sink, tallies)
    return _to_results(task, tallies, job, sink)


def stage(records: Records, job: TaskJob, parser: Parser, sink: TaskSink, tallies: Tallies) -> None:
    """Writes one chunk to the rows and the dead letters of its window."""
    window, schema, stamps = (
        job.windows[records.window_id],
        batches.row_schema(parser.columns),
        pa.array(records.stamps_ms, pa.int64()),
    )
    hashes = fingerprint.record_hashes(
        records.partition, records.offsets, records.stamps_ms, records.keys, records.values, records.headers
    )
    # Before the chunk is parsed or staged: if a record is not the one that was there when the window was frozen, the whole
    # attempt fails, and what it has staged so far never becomes public.
    check_witnesses(records, job, window, hashes)
    parsed = batches.parse_chunk(parser, batches.parser_schema(parser.columns), records.values)
    tally = tallies.setdefault((records.window_id, records.partition), ReadTally())
    count(tally, records, hashes, parsed.filtered)
    count_stamps(tally, window, stamps, job.grid)
    # Counted before they are written, and deliberately not from what was written: the commit compares these tallies with what the
    # sink holds, and two counts from one source would always agree.
    if parsed.indexes:
        sink.write_rows(window, _to_rows(records, job.topic, window, stamps, hashes, parsed, schema))
    if parsed.rejected:
        sink.write_dead_letters(window, _to_dead_letters(records, job.topic, window, hashes, parsed))


def check_witnesses(records: Records, job: TaskJob, window: StagedWindow, hashes: Sequence[int]) -> None:
    """A record that was recorded as a witness when the window was frozen is still the same, or this is another log."""
    for (partition, offset), witness in window.witnesses.items():
        if partition == records.partition and records.offsets[0] <= offset <= records.offsets[-1]:
            index = bisect_left(records.offsets, offset)
            if records.offsets[index] == offset and fingerprint.as_signed(hashes[index]) != witness.hash:
                current = model.Witness(
                    offset=offset, timestamp_ms=records.stamps_ms[index], hash=fingerprint.as_signed(hashes[index])
                )
                raise log_changed(job.pipeline, [record_changed(job.topic, partition, witness, current)])


def count_stamps(tally: ReadTally, window: StagedWindow, stamps_ms: pa.Array, grid: model.Grid) -> None:
    """Counts the records by the hour they are stamped with, and those stamped before or after their window. Usually a chunk
    is of a single hour: then its minimum and maximum suffice."""
    first, last = pc.min_max(stamps_ms).as_py().values()
    if first < window.start_ms or last >= window.end_ms:
        tally.late += pc.sum(pc.less(stamps_ms, window.start_ms)).as_py()
        tally.early += pc.sum(pc.greater_equal(stamps_ms, window.end_ms)).as_py()
    is_usable = first >= 0 and last <= batches.CALENDAR_MS_MAX
    hours = {hour_of(stamp, grid) for stamp in (first, last)} if is_usable else set()
    records_by_hour = dict.fromkeys(hours, len(stamps_ms)) if len(hours) == 1 else by_hour(stamps_ms, grid)
    tally.hours = read_tally.nearest_hours(read_tally.sum_of_hours([tally.hours, records_by_hour]), window.start_ms)


def hour_of(stamp_ms: int, grid: model.Grid) -> int:
    """The start of the grid's interval that holds a usable stamp."""
    if grid.timezone == model.UTC_NAME:
        return stamp_ms - stamp_ms % (grid.length // model.MILLISECOND)
    # Histograms have no negative instants: the first day of a zone east of UTC is counted from the epoch on.
    return max(0, model.milliseconds(grid.floor(model.instant(min(stamp_ms, ZONES_MS_MAX)))))


def by_hour(stamps_ms: pa.Array, grid: model.Grid) -> read_tally.Histogram:
    """The records of each interval, by its start."""
    is_in_utc = grid.timezone == model.UTC_NAME
    step_ms = (grid.length if is_in_utc else MINUTE) // model.MILLISECOND
    is_usable = pc.and_(pc.greater_equal(stamps_ms, 0), pc.less_equal(stamps_ms, batches.CALENDAR_MS_MAX))
    starts = pc.multiply(pc.divide(stamps_ms, step_ms), step_ms)
    counted = pc.value_counts(pc.if_else(is_usable, starts, read_tally.NO_HOUR))
    by_step = {entry["values"]: entry["counts"] for entry in counted.to_pylist()}
    if is_in_utc:
        return by_step
    # Midnights are at full minutes of UTC, in every zone since 1972.
    hours = ({start if start < 0 else hour_of(start, grid): count} for start, count in by_step.items())
    return read_tally.sum_of_hours(hours)


def count(tally: ReadTally, records: Records, hashes: Sequence[int], filtered: Sequence[int]) -> None:
    tally.read += len(records.offsets)
    tally.filtered += len(filtered)
    tally.bytes += sum(map(len, filter(None, records.values))) + sum(map(len, filter(None, records.keys)))
    read = sum(hashes)
    tally.fingerprint = (tally.fingerprint + read) % fingerprint.MODULUS
    tally.staged_fingerprint = (tally.staged_fingerprint + read - sum(hashes[index] for index in filtered)) % fingerprint.MODULUS
    if records.headers is not None:
        read_tally.count_sent(tally.sent, records.headers)


def _to_rows(
    records: Records,
    topic: str,
    window: StagedWindow,
    stamps: pa.Array,
    hashes: Sequence[int],
    parsed: Parsed,
    schema: pa.Schema,
) -> pa.RecordBatch:
    """Each row's origin, then the parser's columns."""
    size = len(records.offsets)
    origin = [
        pa.repeat(pa.scalar(topic), size),
        pa.repeat(pa.scalar(records.partition, pa.int32()), size),
        pa.array(records.offsets, pa.int64()),
        batches.timestamps(stamps),
        pa.array(records.keys, pa.binary()),
        pa.nulls(size, pa.string()) if records.headers is None else pa.array(map(headers_json, records.headers), pa.string()),
        pa.repeat(pa.scalar(window.start_ms * 1000, batches.TIMESTAMP), size),
        pa.array(hashes, pa.uint64()).view(pa.int64()),  # the same 64 bits, as a signed bigint
    ]
    # `take` copies every column. Nearly every chunk parses completely, and then its columns are used as they are.
    if len(parsed.indexes) < size:
        places = pa.array(parsed.indexes)
        origin = [pc.take(column, places) for column in origin]
    return pa.RecordBatch.from_arrays([*origin, *parsed.rows.columns], schema=schema)


def _to_dead_letters(records: Records, topic: str, window: StagedWindow, hashes: Sequence[int], parsed: Parsed) -> pa.RecordBatch:
    indexes = [index for index, _ in parsed.rejected]
    errors = [error for _, error in parsed.rejected]
    columns = [
        [topic] * len(indexes),
        [records.partition] * len(indexes),
        [records.offsets[index] for index in indexes],
        [window.window_id] * len(indexes),
        batches.timestamps(pa.array([records.stamps_ms[index] for index in indexes], pa.int64())),
        [records.keys[index] for index in indexes],
        [records.values[index] for index in indexes],
        [headers_json(records.headers[index]) if records.headers else None for index in indexes],
        [error.kind for error in errors],
        [str(error) for error in errors],
        [window.attempt] * len(indexes),
        [fingerprint.as_signed(hashes[index]) for index in indexes],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, batches.DEAD_LETTER_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=batches.DEAD_LETTER_SCHEMA)


def _to_results(task: int, tallies: Tallies, job: TaskJob, sink: TaskSink) -> list[TaskResult]:
    """One for each partition of each window; a window's files are listed with the first of its partitions."""
    results = []
    listed: set[int] = set()
    for (window_id, partition), tally in tallies.items():
        # The driver concatenates the files of all results of a window: each must be listed once, by whichever partition.
        files = () if window_id in listed else sink.files(job.windows[window_id])
        listed.add(window_id)
        results.append(TaskResult(task=task, window_id=window_id, partition=partition, tally=tally, files=files))
    return results
