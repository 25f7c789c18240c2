"""What the tasks of a job are given, and what they return: values passed between the driver and the workers. Pure.

A Spark task costs tens of milliseconds and a Python worker more, whatever it reads; 84 hours of a quiet topic are 168
small ranges. So many windows are packed into few tasks: the ranges of each partition are laid end to end and cut into about
`task_count` shares with equal record counts, or into more where a share would be too many bytes. Adjacent ranges of one
partition in a share are one RUN: read with one assignment, where the cuts determine which window an offset belongs to.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logbus.loads.read_tally import ReadTally
from logbus.model import FrozenWindow, Grid, Witness
from logbus.schemas.schema_book import SchemaBook

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
    slices: tuple[PlanSlice, ...]

    @property
    def start_offset(self) -> int:
        return self.slices[0].start_offset

    @property
    def end_offset(self) -> int:
        return self.slices[-1].end_offset

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
    run: list[PlanSlice] = []
    for part in slices:
        if run and (run[-1].partition, run[-1].end_offset) != (part.partition, part.start_offset):
            yield Run(partition=run[0].partition, slices=tuple(run))
            run = []
        run.append(part)
    if run:
        yield Run(partition=run[0].partition, slices=tuple(run))


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
