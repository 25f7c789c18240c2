"""What one Spark task does with the records it is given: parse them, stage them, and report what it did.

Records arrive in chunks of one partition of one window each, column by column, and stay columns: only the hash and the parser
work record by record. The results say by which transaction their rows came; the driver sees only those of the attempts that won.
"""

from __future__ import annotations

import gc
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pkgutil import resolve_name
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
from logbus import fingerprint, model
from logbus.loads import read_tally
from logbus.loads.read_tally import ReadTally
from logbus.parsing import Parser, batches, decoders, parser_for
from logbus.parsing.batches import Parsed
from logbus.parsing.decoders import UNKNOWN_MAX, SchemasUnmet
from pyspark import TaskContext

from logbus_spark.records import Records, StagedWindow, TaskJob, TaskPlan, TaskResult, headers_json, read_plan

Tallies = dict[tuple[int, int], ReadTally]

MINUTE = timedelta(minutes=1)
ZONES_MS_MAX = batches.CALENDAR_MS_MAX - 2 * (model.DAY // model.MILLISECOND)  # later is no date in some time zones


class TaskSink(Protocol):
    """Where one task attempt puts the records of many windows, in any order. `files`: by window those that the driver must
    commit; none if the rows are in known tables. `transaction`: that in which it wrote to such tables, if it did. Both are known
    after a normal exit."""

    files: Mapping[int, tuple[str, ...]]

    @property
    def transaction(self) -> str | None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def write_rows(self, window: StagedWindow, rows: pa.RecordBatch) -> None:
        """Rows of `batches.ROW_FIELDS` and the parser's columns."""

    def write_dead_letters(self, window: StagedWindow, rows: pa.RecordBatch) -> None:
        """Rows of `batches.DEAD_LETTER_SCHEMA`."""


# The cyclic garbage collector scans young objects whenever there are this many more. Ten thousand parsed records are as many
# objects, without cycles, that wait to become columns: scanning them again and again took a quarter of a task's time.
COLLECTED_AFTER = 100_000


@contextmanager
def collecting_rarely() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(COLLECTED_AFTER, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


class _NoPandas:
    """A finder, for a moment."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def keep_pandas_out() -> None:
    """Arrow looks for pandas when it makes its first array, and imports what it finds: half a second of CPU in every worker, for
    conversions that no task needs."""
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas)
        try:
            pa.array([])
        finally:
            sys.meta_path.remove(_NoPandas)


def load_plans(
    pipeline: model.Pipeline, job: TaskJob, client_config: Mapping[str, Any]
) -> Callable[[Iterator[TaskPlan]], Iterator[TaskResult]]:
    """The tasks' function. It is sent pickled, with the secrets it holds."""

    def run(plans: Iterator[TaskPlan]) -> Iterator[TaskResult]:
        keep_pandas_out()
        task = TaskContext.get()
        assert task is not None, "runs inside a Spark task only"
        chunks = (
            records for plan in plans for records in read_plan(plan, client_config, pipeline.topic, pipeline.isolation_level)
        )
        yield from load(chunks, job, task.taskAttemptId())

    return run


def load(chunks: Iterable[Records], job: TaskJob, task: int) -> list[TaskResult]:
    """Stages every record and commits; then returns what it did."""
    parser, tallies = parser_for(job.parse, job.settings, job.book), Tallies()
    schema = batches.parser_schema(parser.columns)
    # By its name, and only now: no worker pays for the libraries of another sink.
    make_sink: Callable[[TaskJob, pa.Schema, int], TaskSink] = resolve_name(
        f"logbus_spark.sinks.{job.sink}:{job.sink.capitalize()}TaskSink"
    )
    try:
        with collecting_rarely(), make_sink(job, schema, task) as sink:
            for records in chunks:
                stage(records, job, parser, schema, sink, tallies)
    except SchemasUnmet as unmet:
        # Nothing is staged.
        return [TaskResult(window_id=0, partition=0, unmet=all_unmet(unmet, parser, chunks))]
    # The driver concatenates the files of all results of a window: each is listed once, with the first of its partitions.
    files = dict(sink.files)
    return [
        TaskResult(
            window_id=window_id,
            partition=partition,
            transaction=sink.transaction,
            tally=tally,
            files=files.pop(window_id, ()),
        )
        for (window_id, partition), tally in tallies.items()
    ]


def described_values(parser: Parser, records: Records) -> Sequence[bytes | None]:
    """The values as the parser takes them: one that has the name of its schema in a header begins with it."""
    return records.values if parser.decoders is None else decoders.with_prefixes(records.values, records.headers)


def unmet_in(parser: Parser, values: Sequence[bytes | None]) -> set[bytes]:
    assert parser.decoders is not None, "values that name no schema have none that is unmet"
    return parser.decoders.book.unmet(set(filter(None, parser.decoders.prefixes(values))))


def all_unmet(unmet: SchemasUnmet, parser: Parser, rest: Iterable[Records]) -> frozenset[bytes]:
    """These schemas, and those of the chunks that were not read yet: so that the job is repeated once, and not once for each."""
    prefixes = set(unmet.prefixes)
    for records in rest:
        prefixes |= unmet_in(parser, described_values(parser, records))
        if len(prefixes) > UNKNOWN_MAX:
            break
    return frozenset(prefixes)


def parse_records(records: Records, parser: Parser, schema: pa.Schema) -> tuple[Parsed, Counter[bytes]]:
    """A chunk through the parser, and how many of its values name which schema. `SchemasUnmet` if the job does not know one."""
    values, prefixes = described_values(parser, records), Counter[bytes]()
    if parser.decoders is not None:
        prefixes.update(filter(None, parser.decoders.prefixes(values)))
        if unmet := parser.decoders.book.unmet(prefixes):
            raise SchemasUnmet(unmet)
    return batches.parse_chunk(parser, schema, values), prefixes


def stage(records: Records, job: TaskJob, parser: Parser, schema: pa.Schema, sink: TaskSink, tallies: Tallies) -> None:
    """Writes one chunk to the rows and the dead letters of its window. `schema` is that of the parser's columns."""
    window, stamps = job.windows[records.window_id], pa.array(records.stamps_ms, pa.int64())
    hashes = fingerprint.record_hashes(
        records.partition, records.offsets, records.stamps_ms, records.keys, records.values, records.headers
    )
    # Before the chunk is parsed or staged: if a record is not the one that was there when the window was frozen, the whole
    # attempt fails, and what it has staged so far never becomes public.
    check_witnesses(records, job, window, hashes)
    parsed, prefixes = parse_records(records, parser, schema)
    tally = tallies.setdefault((records.window_id, records.partition), ReadTally())
    count(tally, records, hashes, parsed.filtered, window, stamps, job.grid)
    tally.schemas.update(prefixes)
    # Counted before they are written, and deliberately not from what was written: the commit compares these tallies with what the
    # sink holds, and two counts from one source would always agree.
    if parsed.indexes:
        sink.write_rows(window, to_rows(records, job.topic, window.start_ms, stamps, hashes, parsed))
    if parsed.rejected:
        sink.write_dead_letters(window, _to_dead_letters(records, job.topic, window, hashes, parsed))


def check_witnesses(records: Records, job: TaskJob, window: StagedWindow, hashes: Sequence[int]) -> None:
    """A record that was recorded as a witness when the window was frozen is still the same, or this is another log."""
    for (partition, offset), witness in window.witnesses.items():
        if partition == records.partition and records.offsets[0] <= offset <= records.offsets[-1]:
            index = bisect_left(records.offsets, offset)
            if records.offsets[index] == offset and hashes[index] != witness.hash % fingerprint.MODULUS:  # it is kept signed
                current = model.Witness(
                    offset=offset, timestamp_ms=records.stamps_ms[index], hash=fingerprint.as_signed(hashes[index])
                )
                from logbus.windows.log_changes import log_changed, record_changed  # not before: SQLAlchemy takes a worker 0.3 s

                raise log_changed(job.pipeline, [record_changed(job.topic, partition, witness, current)])


def hour_of(stamp_ms: int, grid: model.Grid) -> int:
    """The start of the grid's interval that holds a usable stamp."""
    if grid.timezone == model.UTC_NAME:
        return stamp_ms - stamp_ms % (grid.length // model.MILLISECOND)
    # Histograms have no negative instants: the first day of a zone east of UTC is counted from the epoch on.
    return max(0, model.milliseconds(grid.floor(model.instant(min(stamp_ms, ZONES_MS_MAX)))))


def by_hour(stamps_ms: pa.Array, grid: model.Grid) -> dict[int, int]:
    """The records of each interval, by its start."""
    is_in_utc = grid.timezone == model.UTC_NAME
    step_ms = (grid.length if is_in_utc else MINUTE) // model.MILLISECOND
    is_usable = pc.and_(pc.greater_equal(stamps_ms, 0), pc.less_equal(stamps_ms, batches.CALENDAR_MS_MAX))
    starts = pc.multiply(pc.divide(stamps_ms, step_ms), step_ms)
    counted = pc.value_counts(pc.if_else(is_usable, starts, read_tally.NO_HOUR))
    by_step: dict[int, int] = {entry["values"]: entry["counts"] for entry in counted.to_pylist()}
    if is_in_utc:
        return by_step
    # Midnights are at full minutes of UTC, in every zone since 1972.
    hours = Counter[int]()
    for start, size in by_step.items():
        hours[start if start < 0 else hour_of(start, grid)] += size
    return hours


def count(
    tally: ReadTally,
    records: Records,
    hashes: Sequence[int],
    filtered: Sequence[int],
    window: StagedWindow,
    stamps_ms: pa.Array,
    grid: model.Grid,
) -> None:
    """Adds a chunk to what was read: its records, their bytes and fingerprint, the hours they are stamped with."""
    tally.read += len(records.offsets)
    tally.filtered += len(filtered)
    tally.bytes += sum(map(len, filter(None, records.values))) + sum(map(len, filter(None, records.keys)))
    read = sum(hashes)
    tally.fingerprint = (tally.fingerprint + read) % fingerprint.MODULUS
    tally.staged_fingerprint = (tally.staged_fingerprint + read - sum(hashes[index] for index in filtered)) % fingerprint.MODULUS
    if records.headers is not None:
        read_tally.count_sent(tally.sent, records.headers)
    # Usually a chunk is of a single hour: then its minimum and maximum suffice.
    first, last = pc.min_max(stamps_ms).as_py().values()
    if first < window.start_ms or last >= window.end_ms:
        tally.late += pc.sum(pc.less(stamps_ms, window.start_ms)).as_py()
        tally.early += pc.sum(pc.greater_equal(stamps_ms, window.end_ms)).as_py()
    is_usable = first >= 0 and last <= batches.CALENDAR_MS_MAX
    hours = {hour_of(stamp, grid) for stamp in (first, last)} if is_usable else set()
    tally.hours.update(dict.fromkeys(hours, len(stamps_ms)) if len(hours) == 1 else by_hour(stamps_ms, grid))
    tally.hours = read_tally.nearest_hours(tally.hours, window.start_ms)


def to_rows(
    records: Records, topic: str, window_start_ms: int, stamps: pa.Array, hashes: Sequence[int], parsed: Parsed
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
        pa.repeat(pa.scalar(window_start_ms * 1000, batches.TIMESTAMP), size),
        pa.array(hashes, pa.uint64()).view(pa.int64()),  # the same 64 bits, as a signed bigint
    ]
    # `take` copies every column. Nearly every chunk parses completely, and then its columns are used as they are.
    if len(parsed.indexes) < size:
        places = pa.array(parsed.indexes)
        origin = [pc.take(column, places) for column in origin]
    schema = pa.schema([*batches.ROW_FIELDS, *parsed.rows.schema])
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
        pa.array([hashes[index] for index in indexes], pa.uint64()).view(pa.int64()),  # the same 64 bits
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, batches.DEAD_LETTER_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=batches.DEAD_LETTER_SCHEMA)
