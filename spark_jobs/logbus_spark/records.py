"""What the tasks of a job are given, read and return: values passed between the driver and the workers, and the records of one
partition of one window, column by column.

A Spark task costs tens of milliseconds and a Python worker more, whatever it reads; 84 hours of a quiet topic are 168
small ranges. So many windows are packed into few tasks: the ranges of each partition are laid end to end and cut into about
`task_count` shares with equal record counts, or into more where a share would be too many bytes. Adjacent ranges of one
partition in a share are one RUN: read with one assignment, where the cuts determine which window an offset belongs to.
"""

from __future__ import annotations

import base64
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from statistics import fmean
from typing import Any

import pyarrow as pa
from confluent_kafka import Message
from logbus import errors, fingerprint, model
from logbus.kafka.exact_reader import SAMPLING_CONFIG, exact_consumer, read_lists, read_with
from logbus.loads.read_tally import ReadTally
from logbus.model import FrozenWindow, Grid, Witness
from logbus.parsing import storable
from logbus.parsing.decoders import FORMATS, Decoders, SchemaBook, with_prefixes

# Two, so that a core has work while its other task waits for the broker or the warehouse.
TASKS_PER_CORE = 2

# Below this many records another task costs more than it saves.
RECORDS_PER_TASK_MIN = 2_000

UNKNOWN: Mapping[int, float] = {}  # the sizes of records


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSlice:
    """A part of one window's range in one partition."""

    window_id: int
    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Adjacent slices of one partition, in offset order; read as one."""

    partition: int
    start_offset: int
    end_offset: int
    slices: tuple[PlanSlice, ...]

    def split(self, offsets: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Splits ascending offsets of the run by window: the window, its first index in `offsets`, the index after its last."""
        index = 0
        while index < len(offsets):
            part = self.slices[bisect_right(self.slices, offsets[index], key=lambda part: part.start_offset) - 1]
            end = bisect_left(offsets, part.end_offset, lo=index)
            yield part.window_id, index, end
            index = end


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """What one task reads, in order."""

    runs: tuple[Run, ...]


def pack(
    windows: Sequence[FrozenWindow],
    task_count: int,
    record_bytes: Mapping[int, float] = UNKNOWN,
    max_task_bytes: int = 0,
    records_per_task_min: int = RECORDS_PER_TASK_MIN,
) -> list[TaskPlan]:
    """The tasks that together read every record of the windows once; none if there is nothing to read."""
    ranges = [(window.id, part) for window in windows for part in window.ranges if part.count]
    slices = [
        PlanSlice(window_id=window_id, partition=part.partition, start_offset=part.readable_from, end_offset=part.end_offset)
        for window_id, part in sorted(ranges, key=lambda pair: (pair[1].partition, pair[1].readable_from))
    ]
    return pack_slices(slices, task_count, record_bytes, max_task_bytes, records_per_task_min)


def pack_slices(
    slices: Sequence[PlanSlice],
    task_count: int,
    record_bytes: Mapping[int, float] = UNKNOWN,
    max_task_bytes: int = 0,
    records_per_task_min: int = RECORDS_PER_TASK_MIN,
) -> list[TaskPlan]:
    """At most `task_count` tasks for slices in the order of partitions and offsets. More, if one would read over `max_task_bytes`
    by the mean size of a partition's records (`record_bytes`)."""
    total = sum(part.end_offset - part.start_offset for part in slices)
    share = max(-(-total // max(1, task_count)), records_per_task_min)
    return [TaskPlan(runs=tuple(join(shared))) for shared in shares(slices, share, record_bytes, max_task_bytes)]


def shares(
    slices: Iterable[PlanSlice], share: int, record_bytes: Mapping[int, float] = UNKNOWN, bytes_max: int = 0
) -> Iterator[list[PlanSlice]]:
    """The slices in order, cut so that every list but the last holds exactly `share` records, or what `bytes_max` allows."""
    current: list[PlanSlice] = []
    room, bytes_room = share, float(bytes_max)
    for part in slices:
        size, start = record_bytes.get(part.partition, 0.0), part.start_offset
        while start < part.end_offset:
            fitting = min(room, int(bytes_room / size)) if size else room
            if fitting < 1 and current:
                yield current
                current, room, bytes_room = [], share, float(bytes_max)
                continue
            end = min(part.end_offset, start + max(1, fitting))  # one record is read by one task, however large
            current.append(PlanSlice(window_id=part.window_id, partition=part.partition, start_offset=start, end_offset=end))
            room, bytes_room = room - (end - start), bytes_room - (end - start) * size
            start = end
    if current:
        yield current


def join(slices: Iterable[PlanSlice]) -> Iterator[Run]:
    """Joins adjacent slices into runs."""
    runs: list[list[PlanSlice]] = []
    for part in slices:
        if runs and (runs[-1][-1].partition, runs[-1][-1].end_offset) == (part.partition, part.start_offset):
            runs[-1].append(part)
        else:
            runs.append([part])
    for run in runs:
        first, last = run[0], run[-1]
        yield Run(partition=first.partition, start_offset=first.start_offset, end_offset=last.end_offset, slices=tuple(run))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedWindow:
    """Where this attempt stages the records of a window. The sink uses the names as tables, or as parts of paths."""

    window_id: int
    attempt: int
    start_ms: int
    end_ms: int
    staging_table: str
    dead_letter_table: str
    witnesses: Mapping[tuple[int, int], Witness] = field(default_factory=dict)  # by partition and offset, among its records


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskJob:
    """Everything a task needs. `sink_options` may hold secrets: the job is sent pickled, never as an option or argument."""

    pipeline: str
    topic: str
    parse: str
    settings: Mapping[str, Any]
    windows: Mapping[int, StagedWindow]
    grid: Grid = Grid()  # by whose windows stamps are counted
    sink: str = "postgres"
    sink_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    book: SchemaBook | None = None  # for values that name their schema


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What one task attempt read of one partition of one window, and what it wrote. `transaction`: the number of that in which it
    wrote to tables, if it did; `files`: those of the window, listed once, with the first of its partitions. `unmet`: names of
    schemas that the job's book has not met: the task has staged nothing then, and the job is repeated with them."""

    window_id: int
    partition: int
    transaction: str | None = None
    tally: ReadTally = field(default_factory=ReadTally)
    files: tuple[str, ...] = ()
    unmet: frozenset[bytes] = frozenset()


# Records of one partition of one window, column by column: what readers return and the load takes.


HEADER_TYPE = pa.list_(pa.struct([("name", pa.string()), ("content", pa.binary())]))

# What readers that use Arrow return; a batch may hold rows of several windows and partitions.
RECORD_SCHEMA = pa.schema(
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

# Read before a load, to infer columns of JSON: enough to find every common member, few enough that it takes no time compared to
# the load.
SAMPLED_RECORDS_MAX = 1_000
SAMPLED_RANGES_MAX = 16  # each costs a round trip or two
SIZED_RECORDS_MAX = 160  # read before a load for the size of its records: ten of each range

Headers = Sequence[fingerprint.Header]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """At least one record. `headers` is None if no record has any."""

    window_id: int
    partition: int
    offsets: Sequence[int]
    stamps_ms: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers] | None = None

    def __len__(self) -> int:
        return len(self.offsets)


def of_messages(messages: Sequence[Message], offsets: Sequence[int], run: Run) -> Iterator[Records]:
    """A run's messages, in order, window by window."""
    for window_id, start, end in run.split(offsets):
        chosen = messages if end - start == len(messages) else messages[start:end]
        headers = fingerprint.headers_of_all(chosen)
        yield Records(
            window_id=window_id,
            partition=run.partition,
            offsets=offsets[start:end],
            stamps_ms=list(map(itemgetter(1), map(Message.timestamp, chosen))),
            keys=list(map(Message.key, chosen)),
            values=list(map(Message.value, chosen)),
            headers=[pairs or () for pairs in headers] if any(headers) else None,
        )


def to_batch(records: Records) -> pa.RecordBatch:
    """A batch of `RECORD_SCHEMA`."""
    size = len(records)
    headers = [[{"name": name, "content": content} for name, content in pairs] for pairs in records.headers or [()] * size]
    columns: list[Sequence[Any]] = [[records.window_id] * size, [records.partition] * size]
    columns += [records.offsets, records.stamps_ms, records.keys, records.values, headers]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, RECORD_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def headers_json(headers: Headers) -> str | None:
    """Headers as JSON pairs, None if there are none; content that is not text as base64."""
    if not headers:
        return None
    return json.dumps([[storable(name), _header_content(content)] for name, content in headers])


def _header_content(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    return {"base64": base64.b64encode(content).decode()} if "\0" in text else text


def read_plan(plan: TaskPlan, client_config: Mapping[str, Any], topic: str, isolation_level: str) -> Iterator[Records]:
    """All records of a plan, in chunks of one partition of one window."""
    with exact_consumer(client_config, isolation_level) as consumer:
        for run in plan.runs:
            for messages, offsets in read_lists(consumer, topic, run.partition, run.start_offset, run.end_offset):
                yield from of_messages(messages, offsets, run)


def ranges_of(windows: Iterable[model.FrozenWindow]) -> list[model.OffsetRange]:
    return [part for window in windows for part in window.ranges]


def sampled_values(
    client_config: Mapping[str, Any], pipeline: model.Pipeline, ranges: Iterable[model.OffsetRange]
) -> list[bytes | None]:
    """The first values of some of the ranges, spread over all of them."""
    return [message.value() for message in _sampled(client_config, pipeline.isolation_level, ranges, SAMPLED_RECORDS_MAX)]


def sampled_prefixes(
    client_config: Mapping[str, Any], pipeline: model.Pipeline, ranges: Iterable[model.OffsetRange]
) -> set[bytes]:
    """The names of schemas that these values begin with."""
    messages = list(_sampled(client_config, pipeline.isolation_level, ranges, SAMPLED_RECORDS_MAX))
    headers = [pairs or () for pairs in fingerprint.headers_of_all(messages)]
    values = with_prefixes([message.value() for message in messages], headers)
    decoders = Decoders(format=FORMATS[pipeline.parse], book=SchemaBook())
    return set(filter(None, decoders.prefixes(values)))


def mean_bytes(client_config: Mapping[str, Any], isolation_level: str, ranges: Sequence[model.OffsetRange]) -> dict[int, float]:
    """The mean size of keys and values by partition, from a few records of some ranges; that of all where none was read. Nothing
    if they cannot be read now: the load will report it."""
    sizes: dict[int, list[int]] = {}
    try:
        for message in _sampled(client_config, isolation_level, ranges, SIZED_RECORDS_MAX):
            sizes.setdefault(message.partition(), []).append(len(message) + len(message.key() or b""))
    except errors.LogbusError:
        return {}
    everything = [size for of_partition in sizes.values() for size in of_partition]
    partitions = {part.partition for part in ranges}
    return {partition: fmean(sizes.get(partition, everything)) for partition in partitions} if everything else {}


def _sampled(
    client_config: Mapping[str, Any], isolation_level: str, ranges: Iterable[model.OffsetRange], records_max: int
) -> Iterator[Message]:
    with_records = [part for part in ranges if part.count]
    chosen = with_records[:: max(1, -(-len(with_records) // SAMPLED_RANGES_MAX))]
    with exact_consumer(client_config, isolation_level, SAMPLING_CONFIG) as consumer:
        for part in chosen:
            count = records_max // len(chosen)
            end = min(part.end_offset, part.readable_from + count)
            yield from islice(read_with(consumer, part.topic, part.partition, part.readable_from, end), count)
