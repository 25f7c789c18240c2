"""What the next epoch reads: ranges of offsets, each within one interval of arrival.

A window that is frozen later has to be a whole number of parts, so a part ends where its interval does. The ledger's boundaries
are the authority. Between them and beyond them the planner foresees what freezing will decide, by freezing's own rule
(logbus.windows.boundaries): an interval begins with the first record that is stamped in it or later, but not in the future. As
long as there is none it has not begun. Where freezing decides otherwise in the end, the driver repairs it.

`walk` decides and asks no broker: it is a generator that yields what it has to know and is sent the answer. So the partitions
walk in step, and what all of them ask is one request.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from logbus import errors, model
from logbus.kafka.topics import OffsetAndTimestamp, OffsetLog
from logbus.streams.epochs import FrozenHour
from logbus.windows import boundaries

# Of one partition in one epoch: each costs a question to the broker and a row of the ledger. A backlog of quiet intervals takes
# more epochs instead.
PARTS_MAX = 100

Boundary = tuple[datetime, int]  # an instant, and the first offset from then on


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PlannedPart:
    """The offsets [start_offset, end_offset) of a partition, which arrived in the interval that begins at `hour`."""

    partition: int
    start_offset: int
    end_offset: int
    hour: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryQuestion:
    """Which record is the first that is stamped `at` or later, and not in the future? If the index cannot tell, the records of
    these offsets are read."""

    partition: int
    at: datetime
    start_offset: int
    end_offset: int


Walk = Generator[BoundaryQuestion, OffsetAndTimestamp | None, list[PlannedPart]]
NOTHING_KNOWN: Mapping[int, datetime] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far a partition is. `boundaries` are the frozen ones in order of time, from the last one at or before the position on;
    none if nothing is frozen there. `hour` is that of what was committed last, where it is known."""

    position: int
    boundaries: Sequence[Boundary] = ()
    hour: datetime | None = None


def reached_in(
    frozen: Sequence[FrozenHour], positions: Mapping[int, int], hours: Mapping[int, datetime] = NOTHING_KNOWN
) -> dict[int, Reached]:
    """By partition, with the boundaries of these windows. Windows that are frozen without a partition have none of its records:
    it begins after them."""
    newest_end = [(frozen[-1].interval.end, 0)] if frozen else []
    reached = {}
    for partition, position in positions.items():
        ranges = [(window.interval, window.ranges[partition]) for window in frozen if partition in window.ranges]
        boundaries_of = sorted(
            {
                boundary
                for interval, part in ranges
                for boundary in ((interval.start, part.start_offset), (interval.end, part.end_offset))
            }
            or newest_end
        )
        first = max((number for number, (_, offset) in enumerate(boundaries_of) if offset <= position), default=0)
        reached[partition] = Reached(position=position, boundaries=boundaries_of[first:], hour=hours.get(partition))
    return reached


def walk(partition: int, reached: Reached, end: int, log_end: int, pipeline: model.Pipeline, parts_max: int = PARTS_MAX) -> Walk:
    """The parts of [position, end), at most so many. None if it is not known where they belong: nothing is frozen, and no record
    has a usable stamp."""
    position, parts, grid, starts_at = reached.position, list[PlannedPart](), pipeline.grid, pipeline.starts_at
    if position >= end:
        return parts
    later, at = list(reached.boundaries), None
    searched_to = position  # up to here no interval after `at` begins
    if later and later[0][1] <= position:
        at, offset = later.pop(0)
        searched_to = position if reached.hour is not None else offset
    elif reached.hour is None:
        # Records without a usable stamp at the head of the log go with the first one that has one.
        first = yield BoundaryQuestion(partition=partition, at=model.EPOCH, start_offset=0, end_offset=log_end)
        if first is not None:
            at, searched_to = grid.floor(model.instant(first.timestamp_ms)), first.offset
    at = max((instant for instant in (at, reached.hour, at and starts_at) if instant is not None), default=None)
    while at is not None and position < end and len(parts) < parts_max:
        while later and later[0][0] <= at:
            later.pop(0)
        following, frozen = later[0] if later else (None, end)
        next_at = grid.after(grid.floor(at))
        boundary = frozen
        if following is not None and following <= next_at:
            next_at = following
        else:
            first = yield BoundaryQuestion(partition=partition, at=next_at, start_offset=searched_to, end_offset=min(frozen, end))
            if first is not None and first.offset < frozen:
                searched_to = max(searched_to, first.offset)
                boundary, hour = first.offset, grid.floor(model.instant(first.timestamp_ms))
                next_at = max(next_at, hour) if following is None or hour < following else next_at
            elif following is not None:
                next_at = following
        stop = min(boundary, end)
        if stop > position:
            parts.append(PlannedPart(partition=partition, start_offset=position, end_offset=stop, hour=at))
            position = stop
        at = next_at
    return parts


def limited(positions: Mapping[int, int], ends: Mapping[int, int], offsets_max: int) -> dict[int, int]:
    """Up to where an epoch may read each partition: at most so many offsets of all of them together, of each in proportion to
    what it has, as Spark's `maxOffsetsPerTrigger`."""
    waiting = {partition: max(0, end - positions.get(partition, 0)) for partition, end in ends.items()}
    total = sum(waiting.values())
    if total <= offsets_max:
        return dict(ends)
    return {
        partition: positions.get(partition, 0) + min(size, max(1, size * offsets_max // total))
        for partition, size in waiting.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlanner:
    """Of one stream. `offsets_max` are those of an epoch, `parts_max` the parts that it has of each partition."""

    pipeline: model.Pipeline
    log: OffsetLog
    now: Callable[[], datetime]
    offsets_max: int
    parts_max: int = PARTS_MAX

    def plan(self, reached: Mapping[int, Reached], ends: Mapping[int, int]) -> list[PlannedPart]:
        """The parts of the next epoch, in the order of partitions and offsets; none if there is nothing to read.

        `ends` were asked for before: a record that was appended since is not read, whatever the broker says of its time.
        """
        self.refuse_if_shorter(reached, ends)
        stops = limited({partition: state.position for partition, state in reached.items()}, ends, self.offsets_max)
        walks = {
            partition: walk(partition, state, stops[partition], ends[partition], self.pipeline, self.parts_max)
            for partition, state in reached.items()
        }
        answers: dict[int, OffsetAndTimestamp | None] = dict.fromkeys(walks)
        parts: list[PlannedPart] = []
        while answers:
            questions: list[BoundaryQuestion] = []
            for partition, answer in answers.items():
                try:
                    questions.append(walks[partition].send(answer))
                except StopIteration as over:
                    parts += over.value
            answers = self.answers(questions)
        return sorted(parts)

    def refuse_if_shorter(self, reached: Mapping[int, Reached], ends: Mapping[int, int]) -> None:
        for partition, state in reached.items():
            if ends[partition] < state.position:
                raise errors.LogChanged(
                    f"{self.pipeline.topic}-{partition} ends at {ends[partition]}, and the stream has read up to "
                    f"{state.position}: its broker has lost records, or this is another log. Once `logbus pipeline rebase` has "
                    "settled that for the pipeline, `logbus stream reset` begins at one of its frozen hours again"
                )

    def answers(self, questions: Iterable[BoundaryQuestion]) -> dict[int, OffsetAndTimestamp | None]:
        by_partition = {question.partition: question for question in questions}
        stamps = {model.milliseconds(question.at) for question in by_partition.values()}
        if not by_partition:
            return {}
        by_stamp = self.log.first_at_or_after_each(self.pipeline.topic, sorted(by_partition), sorted(stamps))
        horizon = boundaries.horizon_ms(self.now(), boundaries.max_ahead(self.pipeline))
        answers: dict[int, OffsetAndTimestamp | None] = {}
        for partition, question in by_partition.items():
            at_ms = model.milliseconds(question.at)
            first = by_stamp[at_ms].get(partition)
            if boundaries.needs_scan(first, horizon):
                start = max(question.start_offset, self.log.start_offsets(self.pipeline.topic, [partition])[partition])
                records = self.log.records(self.pipeline.topic, partition, start, question.end_offset)
                first = next((record for record in records if boundaries.is_evidence(record, at_ms, horizon)), None)
            answers[partition] = first
        return answers
