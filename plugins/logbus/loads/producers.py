"""Did everything that producers sent arrive? For producers that number their records (docs/producer-counts.md).

A load stores, for each window and stream, which numbers arrived. The audit of a window then checks, for each of its streams:
is every number present, from where the windows before left off up to the last one here? And did any arrive twice? What is in
windows that are not loaded, or that lost records to retention, is unknown: that is a note, not a problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, select, text

from logbus.formatting import many, several
from logbus.loads.read_tally import Run, holes, joined_runs, size
from logbus.model import PROVEN_EMPTY, FrozenWindow, Interval, Pipeline
from logbus.windows import coverage, schema
from logbus.windows.table_names import SCHEMA

MISSING_NAMED_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCount:
    """What arrived from a stream in one window. `runs` None: too many to keep."""

    stream: str
    count: int
    first: int
    last: int
    runs: tuple[Run, ...] | None

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {"stream": self.stream, "records": self.count, "first": self.first, "last": self.last}


def to_count(row: Any) -> StreamCount:
    runs = None if row["runs"] is None else tuple((first, last) for first, last in row["runs"])
    return StreamCount(
        stream=row["stream"], count=row["record_count"], first=row["first_number"], last=row["last_number"], runs=runs
    )


def streams_of(connection: Connection, window: FrozenWindow) -> list[StreamCount]:
    """The streams in the window's loaded attempt."""
    table = schema.producer_count
    of_load = (table.c.window_id == window.id, table.c.attempt == window.loaded_attempt)
    return [to_count(row) for row in connection.execute(select(table).where(*of_load).order_by(table.c.stream)).mappings()]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamNeighbours:
    """A stream in other loaded windows: where it left off before, and what overlaps its numbers here."""

    before: int | None = None
    before_ends_at: datetime | None = None
    overlapping: tuple[StreamCount, ...] = ()


OTHERS = f"""
    from {SCHEMA}.producer_count other join {SCHEMA}."window" on id = other.window_id and loaded_attempt = other.attempt
    where other.stream = :stream and other.window_id <> :window_id and pipeline = :pipeline and topic_id = :topic_id
"""
BEFORE = text(f"select last_number, ends_at {OTHERS} and last_number < :first order by last_number desc limit 1")
OVERLAPPING = text(f"select other.* {OTHERS} and first_number <= :last and last_number >= :first")


def neighbours(connection: Connection, window: FrozenWindow, here: StreamCount) -> StreamNeighbours:
    parameters = {"window_id": window.id, "pipeline": window.pipeline, "topic_id": window.topic_id, "stream": here.stream}
    parameters |= {"first": here.first, "last": here.last}
    overlapping = tuple(to_count(row) for row in connection.execute(OVERLAPPING, parameters).mappings())
    before, before_ends_at = connection.execute(BEFORE, parameters).one_or_none() or (None, None)
    return StreamNeighbours(before=before, before_ends_at=before_ends_at, overlapping=overlapping)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFinding:
    """A sentence about a stream; `is_certain` if no window that is not loaded could explain it."""

    text: str
    is_certain: bool = True


def check_producers(engine: Engine, pipeline: Pipeline, window: FrozenWindow) -> tuple[list[str], list[str]]:
    """Problems and notes. Both are empty if no producer numbers its records, or nothing is wrong."""
    with engine.connect() as connection:
        findings = [finding for here in streams_of(connection, window) for finding in check_stream(connection, window, here)]
    forgiving = pipeline.options.accept_producer_gaps or window.head_unknown or any(part.lost for part in window.ranges)
    problems = [finding.text for finding in findings if finding.is_certain and not forgiving]
    return problems, [finding.text for finding in findings if finding.text not in problems]


def check_stream(connection: Connection, window: FrozenWindow, here: StreamCount) -> Iterator[StreamFinding]:
    around = neighbours(connection, window, here)
    others = [other.runs for other in around.overlapping]
    if here.runs is None or None in others:
        yield StreamFinding(
            text=f"the numbers of producer {here.stream!r} come in no order: they are not checked", is_certain=False
        )
        return
    elsewhere = joined_runs(run for runs in others if runs is not None for run in runs)
    if twice := here.count - size(here.runs) + overlap(here.runs, elsewhere):
        yield StreamFinding(text=f"{many(twice, 'record')} of producer {here.stream!r} arrived twice")
    yield from missing(connection, window, here, around, elsewhere)
    if around.before is None and here.first > 1 and not any(first < here.first for first, _ in elsewhere):
        yield beginning(connection, window, here)


def beginning(connection: Connection, window: FrozenWindow, here: StreamCount) -> StreamFinding:
    """A stream whose first numbers are in no window: they were sent before the first window or to a former topic, or are lost."""
    sentence = f"producer {here.stream!r} begins with number {here.first}"
    if not is_read_from_the_first_record(connection, window):
        return StreamFinding(text=f"{sentence} in these windows", is_certain=False)
    earlier = "1" if here.first == 2 else f"1 to {here.first - 1}"
    return StreamFinding(text=f"{sentence}, and the topic was loaded from its first record on: {earlier} missing")


def missing(
    connection: Connection, window: FrozenWindow, here: StreamCount, around: StreamNeighbours, elsewhere: list[Run]
) -> Iterator[StreamFinding]:
    """The numbers between where the stream left off and its last one here that arrived in no window."""
    start = here.first if around.before is None else around.before + 1
    gone = list(holes([*(here.runs or ()), *elsewhere], start, here.last))
    if not gone:
        return
    sent = here.last - start + 1
    named = several([f"{first}" if first == last else f"{first} to {last}" for first, last in gone], MISSING_NAMED_MAX)
    sentence = (
        f"producer {here.stream!r} sent {many(sent, 'record')} (numbers {start} to {here.last}), {sent - size(gone):,} arrived: "
    )
    if gone[0][1] < here.first and not is_known(connection, window, around.before_ends_at):
        yield StreamFinding(text=f"{sentence}{named} may lie in windows before that are not loaded", is_certain=False)
    else:
        yield StreamFinding(text=f"{sentence}{named} missing")


def overlap(left: tuple[Run, ...], right: list[Run]) -> int:
    """How many numbers are in both."""
    return size(left) + size(right) - size(joined_runs([*left, *right]))


FIRST_WINDOWS = text(
    f"""
    select min(starts_at), count(distinct topic_id) = 1 and bool_and(begins_at = 0) from (
        select topic_id, partition, min(starts_at) as starts_at, min(start_offset) as begins_at
        from {SCHEMA}."window" join {SCHEMA}.window_range on window_id = id where pipeline = :pipeline
        group by topic_id, partition
    ) as first_range
    """
)


def is_read_from_the_first_record(connection: Connection, window: FrozenWindow) -> bool:
    """Whether every window up to this one is completely loaded, from offset 0 of every partition of the only topic that the
    pipeline ever read."""
    since, is_whole = connection.execute(FIRST_WINDOWS, {"pipeline": window.pipeline}).one()
    return bool(is_whole) and is_known(connection, window, since)


def is_known(connection: Connection, window: FrozenWindow, since: datetime | None) -> bool:
    """Whether all windows from `since` up to this one are completely loaded, with their streams counted."""
    if since is None or since >= window.interval.start:
        return True
    query = text(
        f"""
        select starts_at, ends_at from {SCHEMA}."window" left join {SCHEMA}.attempt on window_id = id and number = loaded_attempt
        where pipeline = :pipeline and starts_at < :until and ends_at > :since and not head_unknown
        and (loaded_attempt = {PROVEN_EMPTY} or (streams is not null and attempt.lost_count = 0))
        """
    )
    span = Interval(since, window.interval.start)
    rows = connection.execute(query, {"pipeline": window.pipeline, "since": span.start, "until": span.end})
    return coverage.first_gap(span, [Interval(start, end) for start, end in rows]) is None
