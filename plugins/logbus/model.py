"""The value types for windows and all that belongs to them. Frozen, plain, comparable; no I/O.

An `Interval` is a half-open span of time. An `OffsetRange` is a half-open span of one partition: `end_offset` is
exclusive. A `FrozenWindow` is an interval whose ranges are decided forever. An `Attempt` is one try at loading it;
its number is the fence: only the newest attempt at a window may commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from logbus import errors, pipeline_settings

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
UTC_NAME = "UTC"  # the time zone of a grid that has no other
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

# How long an hour stays open after its end for records that are still on their way.
LATENESS_DEFAULT = timedelta(minutes=5)


def utc(instant: datetime) -> datetime:
    """The same instant in UTC, for values of users and of Airflow: all others are in UTC already. A naive datetime is an error:
    which instant it means is unknown."""
    if instant.tzinfo is None:
        raise ValueError(f"{instant.isoformat()} has no time zone: give an aware datetime, such as {instant.isoformat()}+00:00")
    return instant.astimezone(UTC)


def utc_now() -> datetime:
    return datetime.now(UTC)


def milliseconds(instant: datetime) -> int:
    """Since the epoch, rounded up: a timestamp in whole milliseconds is at or after the instant if and only if it is >= this."""
    return -((EPOCH - instant) // MILLISECOND)


def instant_text(instant: datetime) -> str:
    """`2015-05-17T10:00:00Z`: how an instant is written in arguments, logs and reports."""
    return instant.isoformat().replace("+00:00", "Z")


def parse_instant(text: str) -> datetime:
    """The inverse of `instant_text`; takes any ISO 8601 instant, and a date or a missing time zone as UTC. `ValueError` says what
    to write."""
    try:
        instant = datetime.fromisoformat(text)
        return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # the latter in the zone of a first or last day
        raise ValueError(f"{text!r} is not an instant; write it like 2015-05-17T10:00:00Z") from None


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """The span of time [start, end), in UTC."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start.tzinfo is not UTC or self.end.tzinfo is not UTC:
            object.__setattr__(self, "start", utc(self.start))
            object.__setattr__(self, "end", utc(self.end))
        if self.end <= self.start:
            raise ValueError(f"an interval ends after it starts; got {self}")

    @classmethod
    def hour(cls, instant: datetime) -> Interval:
        """The hour that holds `instant`."""
        start = Grid().floor(utc(instant))
        return cls(start, start + HOUR)

    def ends_between(self, since: datetime | None, until: datetime | None) -> bool:
        """Whether a command with these limits is about it: it ends after `since`, and by `until`; None: no limit."""
        return (since is None or self.end > since) and (until is None or self.end <= until)

    def __str__(self) -> str:
        return f"[{instant_text(self.start)}, {instant_text(self.end)})"


@dataclass(frozen=True, slots=True)
class Grid:
    """Where windows begin: every `length` in UTC, or at the midnights of another time zone, whose days have 23 or 25 hours when
    clocks change. As in Airflow, a midnight that clocks skip is where they jump to, and of one that they show twice the second
    counts."""

    length: timedelta = HOUR
    timezone: str = UTC_NAME

    def floor(self, instant: datetime) -> datetime:
        """The start of the window that holds the instant."""
        if self.timezone == UTC_NAME:
            return instant - (instant - EPOCH) % self.length
        zone = ZoneInfo(self.timezone)
        day = instant.astimezone(zone).date()
        start = midnight(day, zone)
        return start if start <= instant else midnight(day - DAY, zone)  # between two midnights of one day

    def ceiling(self, instant: datetime) -> datetime:
        """The start of the first window that begins at the instant or later."""
        start = self.floor(instant)
        return start if start == instant else self.after(start)

    def after(self, start: datetime, count: int = 1) -> datetime:
        """The start of the window `count` windows after (if negative, before) the one that begins at `start`."""
        later = start + count * self.length
        # From about noon: that is on the day meant, however many hours the days in between have.
        return later if self.timezone == UTC_NAME else self.floor(later + self.length / 2)

    def window(self, start: datetime) -> Interval:
        """The window that begins there."""
        return Interval(start, self.after(start))

    def has(self, interval: Interval) -> bool:
        """Whether the interval is one of its windows: one may be frozen off the grid, by hand or by another schedule."""
        return self.floor(interval.start) == interval.start and self.after(interval.start) == interval.end

    def windows(self, start: datetime, end: datetime) -> Iterator[Interval]:
        """The whole windows within [start, end); one begins at `start`."""
        while (following := self.after(start)) <= end:
            yield Interval(start, following)
            start = following

    def whole(self, start: datetime, end: datetime) -> Interval | None:
        """What all the whole windows within [start, end) cover, if there are any."""
        start, end = self.ceiling(start), self.floor(end)
        return Interval(start, end) if start < end else None

    def count(self, span: Interval) -> int:
        """How many windows the span has, which begins and ends with one: days of 23 and 25 hours count as one each."""
        return (span.end - span.start + self.length / 2) // self.length

    def __str__(self) -> str:
        return length_text(self.length) + ("" if self.timezone == UTC_NAME else f" in {self.timezone}")


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """Where a day begins; see `Grid`."""
    shown = datetime.combine(day, time(), zone)
    return max(shown.astimezone(UTC), shown.replace(fold=1).astimezone(UTC))


def length_text(length: timedelta) -> str:
    """`15m`, `1h`, `1d`: as `every=` takes it."""
    for unit, letter in ((DAY, "d"), (HOUR, "h"), (timedelta(minutes=1), "m")):
        if not length % unit:
            return f"{length // unit}{letter}"
    return str(length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A topic, the table it is loaded into, and how. `starts_at` None means from the earliest record.

    `settings` may be any mapping; `options` are the same by name, with their types and defaults: `pipeline.options.sink`.
    The table is kept without the schema `public`: it has one name wherever definitions are compared.
    """

    name: str
    topic: str
    table: str
    parse: str
    interval: timedelta = HOUR
    timezone: str = UTC_NAME
    lateness: timedelta = LATENESS_DEFAULT
    starts_at: datetime | None = None
    isolation_level: str = "read_committed"
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: pipeline_settings.PipelineSettings = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.settings, Mapping):
            raise errors.UserError(f"pipeline {self.name!r}: settings are a mapping of names to values; got {self.settings!r}")
        object.__setattr__(self, "options", pipeline_settings.PipelineSettings(self.settings))
        object.__setattr__(self, "settings", self.options)
        if isinstance(self.table, str) and (table := self.table.removeprefix("public.")) and "." not in table:
            object.__setattr__(self, "table", table)
        if isinstance(self.starts_at, datetime) and self.starts_at.tzinfo:  # others are rejected by pipeline_definition
            object.__setattr__(self, "starts_at", utc(self.starts_at))

    @property
    def grid(self) -> Grid:
        return Grid(self.interval, self.timezone)

    def closed_until(self, now: datetime) -> datetime:
        """The end of the last interval that is closed at `now`: the clock closes it once `lateness` has passed."""
        return self.grid.floor(now - self.lateness)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The offsets [start_offset, end_offset) of one partition; `lost` of them, at the head, are declared lost."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    lost: int = 0

    @property
    def count(self) -> int:
        """How many of the range's offsets can be read."""
        return self.end_offset - self.start_offset - self.lost

    @property
    def readable_from(self) -> int:
        return self.start_offset + self.lost

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start_offset}, {self.end_offset})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """A record that identifies a log: at this offset the log holds this record, or no longer any. `hash` is signed."""

    offset: int
    timestamp_ms: int
    hash: int
    leader_epoch: int | None = None


class WindowState(StrEnum):
    """How far a window has progressed. `LOADING`: an attempt is running and none has committed yet."""

    FROZEN = "frozen"
    LOADING = "loading"
    LOADED = "loaded"
    AUDITED = "audited"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCounts:
    """read = loaded + dead_lettered + filtered. `late` and `early` records carry a timestamp outside the window's interval."""

    read: int = 0
    loaded: int = 0
    dead_lettered: int = 0
    filtered: int = 0
    late: int = 0
    early: int = 0
    lost: int = 0
    bytes: int = 0


# `loaded_attempt` of a window that begins and ends at the same offset in every partition: its boundaries prove that it holds no
# record, so it is loaded, with nothing, from the moment it is frozen, and no attempt was needed.
PROVEN_EMPTY = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenWindow:
    """A window whose offsets are decided forever. `counts` and `fingerprint` are those of the attempt that is loaded."""

    id: int
    pipeline: str
    topic: str
    interval: Interval
    topic_id: str
    ranges: tuple[OffsetRange, ...]
    state: WindowState
    last_attempt: int = 0
    loaded_attempt: int | None = None
    counts: WindowCounts | None = None
    fingerprint: str | None = None
    head_unknown: bool = False
    frozen_at: datetime | None = None
    loaded_at: datetime | None = None
    audited_at: datetime | None = None
    other_records: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)  # reloads that were allowed to read others
    values_hash: Mapping[str, Any] | None = field(default=None, hash=False)  # logbus.loads.tally
    loss_accepted: Mapping[str, Any] | None = None  # who accepted that records of it are gone, when and why

    @property
    def record_count(self) -> int:
        return sum(part.count for part in self.ranges)

    @property
    def is_proven_empty(self) -> bool:
        """No attempt has loaded it, and none needs to: it cannot hold a record."""
        return self.loaded_attempt == PROVEN_EMPTY

    @property
    def needs_load(self) -> bool:
        """False for a window that is proven empty, unless an audit has found something in the table that should not be there."""
        return self.loaded_attempt != PROVEN_EMPTY or self.audited_at is None

    def summary(self) -> dict[str, Any]:
        """The window as JSON-ready values, for XComs, reports and `--json`."""
        return {
            "pipeline": self.pipeline,
            "start": instant_text(self.interval.start),
            "end": instant_text(self.interval.end),
            "state": str(self.state),
            "records": self.record_count,
            "ranges": {str(part.partition): [part.start_offset, part.end_offset] for part in self.ranges},
            "counts": self.counts and asdict(self.counts),
            "fingerprint": self.fingerprint,
            "loaded_attempt": self.loaded_attempt,
            "audited_at": self.audited_at and instant_text(self.audited_at),
            "other_records": list(self.other_records),
            **({"loss_accepted": dict(self.loss_accepted)} if self.loss_accepted else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKey:
    """A task of an Airflow DAG. `map_index` is None if the task is not mapped."""

    dag_id: str
    task_id: str
    map_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at loading a window. `token` is how it is passed to the Spark job: `<window start>=<number>`."""

    window_id: int
    pipeline: str
    interval: Interval
    number: int
    staging_table: str
    dead_letter_table: str
    key: str  # random
    # The pipeline's, as it was when the attempt began (logbus.windows.rows).
    definition: Mapping[str, Any] = field(compare=False, repr=False)

    @property
    def token(self) -> str:
        return f"{instant_text(self.interval.start)}={self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTally:
    """What one witness counted for one partition of a window. `fingerprint` is the sum modulo 2^64."""

    partition: int
    loaded: int = 0
    dead_lettered: int = 0
    distinct_offsets: int = 0
    min_offset: int | None = None
    max_offset: int | None = None
    fingerprint: int = 0


EXACT, LOSS_ACCEPTED = "exact", "loss accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What the second witness found. `ok` only if nothing at all differs; `notes` are facts that are not faults."""

    window: FrozenWindow
    expected: Mapping[int, int]
    counted: Mapping[int, PartitionTally]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def verdict(self) -> str:
        """`exact`, or everything that differs; never `exact` if records are gone and their loss was accepted."""
        if self.problems:
            return "; ".join(self.problems)
        return EXACT if self.window.loss_accepted is None else LOSS_ACCEPTED

    def summary(self) -> dict[str, Any]:
        """The report as JSON-ready values."""
        return {
            "window": self.window.summary(),
            "ok": self.ok,
            "expected": {str(partition): count for partition, count in self.expected.items()},
            "counted": {str(tally.partition): tally.loaded + tally.dead_lettered for tally in self.counted.values()},
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


Point = TypeVar("Point", int, datetime)


def uncovered(start: Point, end: Point, spans: Iterable[tuple[Point, Point]]) -> Iterator[tuple[Point, Point]]:
    """The parts of [start, end) that none of the spans (ends exclusive, in any order) covers, in order."""
    reached = start
    for first, last in sorted(spans):
        if first >= end:
            break
        if first > reached:
            yield reached, first
        reached = max(reached, last)
    if reached < end:
        yield reached, end


def instant(timestamp_ms: int) -> datetime:
    """The instant of a record's timestamp."""
    return EPOCH + timedelta(milliseconds=timestamp_ms)


def timestamp_text(timestamp_ms: int) -> str | None:
    """A record's timestamp as an instant; None if it has none (-1), or one after the year 9999: producers write any number."""
    try:
        return instant_text(instant(timestamp_ms)) if timestamp_ms >= 0 else None
    except OverflowError:
        return None
