"""With which hours are a window's records stamped, and which windows hold an hour's records?

A window is a range of offsets. It is named after an hour, because its boundaries are where the log's timestamps pass that
hour's start and end; but one producer whose clock is an hour fast moves the boundary for all others. Every offset is still
loaded once, but the window is not the hour that its name suggests. So each load counts its records by the hour of their
timestamp (the pipeline's interval, if that is not an hour), and those elsewhere are reported wherever the window is shown.

How they are counted is in read_tally.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from logbus import errors, formatting, model
from logbus.loads import read_tally
from logbus.windows import boundaries, coverage, schema
from logbus.windows.rows import pipeline_row, to_pipeline

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
    return coverage.missing_span(engine, pipeline_name, holding_span(pipeline, span, lateness), audited=audited)
