"""Is everything there? With which hours are a window's records stamped, and which windows hold an hour's; is a span of time
loaded, which is what a downstream task waits for; did everything arrive that producers sent, of those that number their records
(docs/producer-counts.md).

A daily task that reads an hourly pipeline waits for 24 windows, a quarter-hourly one for the window that contains it. Windows
of a pipeline form a chain, so a span is covered when the loaded ones that overlap it leave no gap; time before the pipeline's
start is never loaded and is not waited for.

A window is a range of offsets. It is named after an hour, because its boundaries are where the log's timestamps pass that
hour's start and end; but one producer whose clock is an hour fast moves the boundary for all others. Every offset is still
loaded once, but the window is not the hour that its name suggests. So each load counts its records by the hour of their
timestamp (the pipeline's interval, if that is not an hour), and those elsewhere are reported wherever the window is shown.

How they are counted is in read_tally.py.

A load stores, for each window and stream, which numbers arrived. The audit of a window then checks, for each of its streams:
is every number present, from where the windows before left off up to the last one here? And did any arrive twice? What is in
windows that are not loaded, or that lost records to retention, is unknown: that is a note, not a problem.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, select, text

from logbus import errors, formatting, model
from logbus.formatting import many, several
from logbus.loads import read_tally
from logbus.loads.read_tally import Run, holes, joined_runs, size
from logbus.model import PROVEN_EMPTY, FrozenWindow, Interval, Pipeline
from logbus.windows import boundaries, rows, schema
from logbus.windows.rows import pipeline_row, to_pipeline
from logbus.windows.table_names import SCHEMA


def complete_until(connection: Connection, pipeline_name: str) -> datetime | None:
    """Before which instant all of the pipeline's table is audited, without a gap; None: nothing is. As the ledger's view says."""
    query = text("select complete_until from logbus.complete_until where pipeline = :name")
    return connection.execute(query, {"name": pipeline_name}).scalar_one_or_none()


def missing_span(engine: Engine, pipeline_name: str, span: model.Interval, *, audited: bool = False) -> model.Interval | None:
    """The first part of the span that is not loaded (or, if `audited`, not audited) yet; None when all of it is.

    All of it is missing if the pipeline is not registered yet: its first run registers it.
    """
    with engine.connect() as connection:
        try:
            pipeline = rows.to_pipeline(rows.pipeline_row(connection, pipeline_name))
        except errors.PipelineUnknown:
            return span
        expected = expected_span(pipeline, span)
        return first_gap(expected, ready_intervals(connection, pipeline_name, expected, audited=audited))


def expected_span(pipeline: model.Pipeline, span: model.Interval) -> model.Interval:
    """The part of the span that the pipeline will ever load."""
    if pipeline.starts_at is None or pipeline.starts_at <= span.start:
        return span
    if pipeline.starts_at >= span.end:
        raise errors.WrongRequest(
            f"pipeline {pipeline.name} starts at {model.instant_text(pipeline.starts_at)}: it will never load {span}, "
            "so there is nothing to wait for"
        )
    return model.Interval(pipeline.starts_at, span.end)


def ready_intervals(connection: Connection, pipeline_name: str, span: model.Interval, *, audited: bool) -> list[model.Interval]:
    """Intervals of the loaded (or audited) windows that overlap the span."""
    window = schema.window
    ready = window.c.audited_at.is_not(None) if audited else window.c.loaded_attempt.is_not(None)
    query = select(window.c.starts_at, window.c.ends_at).where(
        window.c.pipeline == pipeline_name, window.c.starts_at < span.end, window.c.ends_at > span.start, ready
    )
    return [model.Interval(start, end) for start, end in connection.execute(query)]


def first_gap(span: model.Interval, covered: Iterable[model.Interval]) -> model.Interval | None:
    """The earliest part of the span that none of the intervals covers."""
    gaps = model.uncovered(span.start, span.end, ((interval.start, interval.end) for interval in covered))
    return next((model.Interval(start, end) for start, end in gaps), None)


# With which hours are a window's records stamped, and which windows hold an hour's records?


# From here on it is reported unasked. Below that it is normal: every web server's log has requests that began before the end
# of the hour and were logged after it.
REMARKABLE_SHARE = 0.01
REMARKABLE_RECORDS = 10

# A day of an hourly pipeline: an alert on these ends a day after its cause, and an old mistake is not reported forever.
NEWEST_WINDOWS = 24

NAMED_MAX = 5  # other windows or hours in one sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class HourCount:
    """`count` records of the window that begins at `window` are stamped with the hour that begins at `hour`."""

    window: datetime
    hour: datetime
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedHours:
    """What a loaded window holds, and what other loaded windows hold of the interval it is named after.

    `own` records are stamped with its own interval, `others` with other hours, `far` with hours farther away than those.
    `in_others` are stamped with the window's interval but are in other windows.
    """

    interval: model.Interval
    own: int
    unstamped: int = 0
    far: int = 0
    others: tuple[HourCount, ...] = ()
    in_others: tuple[HourCount, ...] = ()

    @property
    def elsewhere(self) -> int:
        """How many records of this interval are in other windows."""
        return sum(hour_count.count for hour_count in self.in_others)

    @property
    def strangers(self) -> int:
        """How many records here are stamped with other hours."""
        return sum(hour_count.count for hour_count in self.others) + self.far

    @property
    def is_remarkable(self) -> bool:
        total = self.own + self.strangers + self.unstamped
        return is_remarkable(self.elsewhere, self.own + self.elsewhere) or is_remarkable(self.strangers, total)

    def sentences(self) -> list[str]:
        """Empty if every record is in the window of the hour with which it is stamped."""
        sentences = []
        if self.in_others:
            where = formatting.several(
                [f"{hour_count.count} in window {model.instant_text(hour_count.window)}" for hour_count in self.in_others],
                NAMED_MAX,
            )
            sentences.append(f"stamped {model.instant_text(self.interval.start)}: {self.own} here, {where}")
        if self.strangers:
            hours = formatting.several(
                [
                    *(f"{hour_count.count} with {model.instant_text(hour_count.hour)}" for hour_count in self.others),
                    *self.far_text(),
                ],
                NAMED_MAX,
            )
            sentences.append(f"here, but stamped otherwise: {hours}")
        if self.unstamped:
            sentences.append(f"here, without a usable timestamp: {self.unstamped}")
        return sentences

    def far_text(self) -> list[str]:
        return [f"{self.far} with hours farther away than {read_tally.HOURS_MAX} others"] if self.far else []

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            "own": self.own,
            "unstamped": self.unstamped,
            "elsewhere": self.elsewhere,
            "strangers": self.strangers,
            "in_other_windows": [
                {"window": model.instant_text(hour_count.window), "records": hour_count.count} for hour_count in self.in_others
            ],
            "other_hours": [
                {"hour": model.instant_text(hour_count.hour), "records": hour_count.count} for hour_count in self.others
            ],
            "far": self.far,
            "sentences": self.sentences(),
        }


def is_remarkable(part: int, whole: int) -> bool:
    return part >= REMARKABLE_RECORDS and part >= REMARKABLE_SHARE * whole


def stamped_hours(connection: sa.Connection, window: model.FrozenWindow) -> StampedHours | None:
    """For one window; None if it is not loaded."""
    row_of = schema.window
    query = sa.select(row_of.c.unstamped_count, row_of.c.far_count).where(row_of.c.id == window.id)
    unstamped, far = connection.execute(query).one()
    if unstamped is None:
        return None
    own, others = 0, []
    for hour_count in hours_held(connection, window):
        if window.interval.start <= hour_count.hour < window.interval.end:
            own += hour_count.count
        else:
            others.append(hour_count)
    return StampedHours(
        interval=window.interval,
        own=own,
        unstamped=unstamped,
        far=far,
        others=tuple(others),
        in_others=tuple(
            HourCount(window=start, hour=window.interval.start, count=count)
            for start, count in windows_holding(connection, window.pipeline, window.interval).items()
            if start != window.interval.start
        ),
    )


def hours_held(connection: sa.Connection, window: model.FrozenWindow) -> Iterator[HourCount]:
    """The window's own histogram, in order of time."""
    hours = schema.window_hour
    query = sa.select(hours.c.hour, hours.c.record_count).where(hours.c.window_id == window.id).order_by(hours.c.hour)
    for hour, count in connection.execute(query):
        yield HourCount(window=window.interval.start, hour=hour, count=count)


def windows_holding(connection: sa.Connection, pipeline_name: str, span: model.Interval) -> dict[datetime, int]:
    """Starts of the loaded windows with records stamped with hours that overlap the span, in order, and how many each has."""
    hours, window = schema.window_hour, schema.window
    first = to_pipeline(pipeline_row(connection, pipeline_name)).grid.floor(span.start)
    query = (
        sa.select(window.c.starts_at, sa.func.sum(hours.c.record_count))
        .join(window, window.c.id == hours.c.window_id)
        .where(window.c.pipeline == pipeline_name, hours.c.hour >= first, hours.c.hour < span.end)
        .group_by(window.c.starts_at)
        .order_by(window.c.starts_at)
    )
    return {start: int(count) for start, count in connection.execute(query)}


def newest_stamped() -> sa.Select[Any]:
    """By pipeline, the records of its newest loaded windows, and those stamped with another hour than their window's."""
    hours, window, pipeline = schema.window_hour, schema.window, schema.pipeline
    is_elsewhere = sa.or_(hours.c.hour < window.c.starts_at, hours.c.hour >= window.c.ends_at)
    newest = (
        sa.select(counted_hours().label("held"), counted_hours(is_elsewhere).label("elsewhere"), window.c.far_count)
        .where(window.c.pipeline == pipeline.c.name, window.c.unstamped_count.is_not(None))
        .order_by(window.c.starts_at.desc())
        .limit(NEWEST_WINDOWS)
        .lateral()
    )
    total, elsewhere = (sa.func.sum(count + newest.c.far_count) for count in (newest.c.held, newest.c.elsewhere))
    query = sa.select(pipeline.c.name.label("pipeline"), total.label("held"), elsewhere.label("elsewhere"))
    return query.select_from(pipeline.join(newest, sa.true())).group_by(pipeline.c.name)


def counted_hours(*which: sa.ColumnElement[bool]) -> sa.ColumnElement[Any]:
    """The sum over the hours of a window's histogram that satisfy `which`."""
    hours = schema.window_hour
    query = sa.select(sa.func.coalesce(sa.func.sum(hours.c.record_count), 0)).where(
        hours.c.window_id == schema.window.c.id, *which
    )
    return query.correlate(schema.window).scalar_subquery()


def elsewhere_notes(connection: sa.Connection, pipeline_names: Collection[str]) -> list[str]:
    """A line for each of these pipelines whose newest windows hold a remarkable share of records of other hours."""
    return [
        f"{row.pipeline}: {row.elsewhere} of the {row.held} records in its newest windows are stamped with other hours than "
        "their window's (`logbus window show` says with which)"
        for row in connection.execute(newest_stamped().order_by(schema.pipeline.c.name))
        if row.pipeline in pipeline_names and is_remarkable(int(row.elsewhere), int(row.held))
    ]


def holding_span(pipeline: model.Pipeline, span: model.Interval, lateness: timedelta | None = None) -> model.Interval:
    """The windows that hold the records stamped within `span` that reach the broker no later than `lateness` after its end.

    None of them is in a later window, if no producer's clock is more than `max_ahead` fast: to push it there, a timestamp
    after `end + lateness + max_ahead` would have to precede it in the log. Nor is any in an earlier one: a record stamped at
    or after an hour's start, and not further ahead than that, ends the hour before.
    """
    reach = (pipeline.lateness if lateness is None else lateness) + boundaries.max_ahead(pipeline)
    return model.Interval(span.start, pipeline.grid.ceiling(span.end + reach))


def missing_of_stamped(
    engine: sa.Engine, pipeline_name: str, span: model.Interval, lateness: timedelta | None, *, audited: bool = False
) -> model.Interval | None:
    """The first part of `holding_span` that is not loaded (or audited) yet; None when all of it is."""
    with engine.connect() as connection:
        try:
            pipeline = to_pipeline(pipeline_row(connection, pipeline_name))
        except errors.PipelineUnknown:
            return span  # its first run registers it
    return missing_span(engine, pipeline_name, holding_span(pipeline, span, lateness), audited=audited)


# Did everything that producers sent arrive? For producers that number their records (docs/producer-counts.md).


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
    return first_gap(span, [Interval(start, end) for start, end in rows]) is None
