"""The cells of the heat map: what became of each hour of a pipeline. Pure.

A cell is a frozen window, or an hour that is over and that nobody froze although it is the pipeline's to load, or the hour that
is open. Hours that hold no record have none until they are frozen: nobody waits for them. So the cells that are neither open nor
loaded are the hours behind, as `logbus lag` counts them, as far as they lie in the span, and windows that are frozen and empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any

from logbus.kafka.own_limits import age_kept, deletes, end_of
from logbus.ledger.intervals import floor
from logbus.ledger.missing import Gap
from logbus.model import FrozenWindow, Interval, Pipeline, instant_text
from logbus.retention.model import DELETE
from logbus.status.fleet import PipelineReading

# An hour whose records go within this time is worth a colour of its own. Where little is kept, a quarter of what is kept.
EXPIRING_WITHIN = timedelta(hours=24)
EXPIRING_SHARE = 4

NOTE_CHARACTERS_MAX = 200
HOURS_REMEMBERED = 10_000  # as texts: a year
END_OF_TIME = datetime.max.replace(tzinfo=UTC)


class CellState(StrEnum):
    """What is shown where several hold: the first of these."""

    LOST = "lost"
    EXPIRING = "expiring"
    FAILED = "failed"
    LOADING = "loading"
    DEAD_LETTERS = "dead_letters"
    AUDITED = "audited"
    LOADED = "loaded"
    CLOSED = "closed"
    OPEN = "open"


@dataclass(slots=True)
class WindowFacts:
    """A frozen window as the ledger has it, with its last attempt. `records` can be read, `lost` are gone by somebody's word.

    Thousands are needed for each look at the page: so it is plain, its fields are in a row's order, equal ones are one object
    (`fleet_ledger.facts_of`), and `settled` keeps its cell where nothing but the window's own row can change that.
    """

    interval: Interval
    records: int
    lost: int
    is_loaded: bool = False
    is_audited: bool = False
    head_unknown: bool = False
    loaded: int = 0
    dead_lettered: int = 0
    attempts: int = 0
    last_state: str | None = None
    last_error: str | None = None
    audit_problem: str | None = None
    of_run: bool = False
    settled: Cell | None = field(default=None, init=False, repr=False, compare=False)


@dataclass(slots=True, kw_only=True)
class Cell:
    """An hour, and what became of it. `note` says more where the state alone does not. Plain for the same reason."""

    interval: Interval
    state: CellState
    records: int | None
    loaded: int = 0
    dead_lettered: int = 0
    lost: int = 0
    attempts: int = 0
    note: str | None = None
    of_run: bool = False
    said: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values; made once, so nobody changes them."""
        if self.said is None:
            self.said = self._values()
        return self.said

    def _values(self) -> dict[str, Any]:
        return {
            "start": text_of(self.interval.start),
            "end": text_of(self.interval.end),
            "state": self.state.value,
            "records": self.records,
            "loaded": self.loaded,
            "dead_lettered": self.dead_lettered,
            "lost": self.lost,
            "attempts": self.attempts,
            "note": self.note,
            **({"of_run": True} if self.of_run else {}),
        }


@lru_cache(maxsize=HOURS_REMEMBERED)
def text_of(instant: datetime) -> str:
    """`instant_text`; all pipelines have the same hours."""
    return instant_text(instant)


def cells_of(reading: PipelineReading, windows: Sequence[WindowFacts], span: Interval, now: datetime) -> list[Cell]:
    """By time; `windows` are those of the pipeline in the span."""
    gone = gone_by_start(reading)
    frozen = [settled_cell(reading, window, gone.get(window.interval.start, 0), now) for window in windows]
    covered = [window.interval for window in windows]
    unfrozen = [unfrozen_cell(reading, interval, now) for interval in unfrozen_hours(reading, covered, span, now)]
    return sorted(with_losses(unfrozen, reading) + frozen, key=lambda cell: cell.interval.start)


def settled_cell(reading: PipelineReading, window: WindowFacts, gone: int, now: datetime) -> Cell:
    """What is loaded stays as it is, whatever the broker says and the time: its cell is made once."""
    if gone or not window.is_loaded:
        return window_cell(reading, window, gone, now)
    if window.settled is None:
        window.settled = window_cell(reading, window, 0, now)
    return window.settled


def window_cell(reading: PipelineReading, window: WindowFacts, gone: int, now: datetime) -> Cell:
    state = window_state(reading, window, gone, now)
    return Cell(
        interval=window.interval,
        state=state,
        records=window.records,
        loaded=window.loaded,
        dead_lettered=window.dead_lettered,
        lost=window.lost + gone,
        attempts=window.attempts,
        note=window_note(window, state, gone),
        of_run=window.of_run,
    )


def window_state(reading: PipelineReading, window: WindowFacts, gone: int, now: datetime) -> CellState:
    """In the order of `CellState`."""
    if window.lost or gone or window.head_unknown:
        return CellState.LOST
    if not window.is_loaded:
        if window.records and is_expiring(reading, window.interval, now):
            return CellState.EXPIRING
        return {"failed": CellState.FAILED, "running": CellState.LOADING}.get(str(window.last_state), CellState.CLOSED)
    if window.dead_lettered:
        return CellState.DEAD_LETTERS
    return CellState.AUDITED if window.is_audited else CellState.LOADED


def window_note(window: WindowFacts, state: CellState, gone: int) -> str | None:
    """One sentence: why, where the state needs one."""
    if gone:
        return f"retention has deleted {gone} records before they were loaded"
    if window.lost:
        return f"{window.lost} records are declared lost"
    if window.head_unknown:
        return "records were gone, or may have been, before the hour was frozen: nobody knows what it held"
    if window.last_state == "failed" and window.last_error:
        return first_line(window.last_error)
    if window.audit_problem:
        return first_line(f"the audit found: {window.audit_problem}")
    return "a rerun is under way" if window.is_loaded and window.last_state == "running" else None


def first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= NOTE_CHARACTERS_MAX else line[: NOTE_CHARACTERS_MAX - 1] + "…"


def gone_by_start(reading: PipelineReading) -> dict[datetime, int]:
    """Of windows that are not loaded: how many records the broker has deleted, by the window's start."""
    if reading.chain.is_other_topic or not reading.starts:
        return {}
    found = ((window.interval.start, gone_of(window, reading.starts)) for window in reading.chain.windows)
    return {start: gone for start, gone in found if gone}


def gone_of(window: FrozenWindow, starts: Mapping[int, int]) -> int:
    return sum(gone_by_partition(window, starts).values())


def gone_by_partition(window: FrozenWindow, starts: Mapping[int, int]) -> dict[int, int]:
    """Records that nobody loaded and that the broker, whose log begins at `starts`, has deleted."""
    if window.loaded_attempt is not None:
        return {}
    return {
        part.partition: max(0, min(part.end_offset, starts.get(part.partition, 0)) - part.readable_from)
        for part in window.ranges
        if part.count
    }


def unfrozen_hours(reading: PipelineReading, covered: Iterable[Interval], span: Interval, now: datetime) -> Iterator[Interval]:
    """Hours that are the pipeline's and that no window of the span covers, up to the open one."""
    pipeline, ours = reading.pipeline, expected(reading, now)
    if ours is None:
        return
    start, end = max(ours.start, floor(span.start, pipeline.interval)), min(ours.end, span.end)
    for gap_start, gap_end in gaps(start, end, covered):
        hour_start = gap_start + (start - gap_start) % pipeline.interval
        while hour_start < end and hour_start + pipeline.interval <= gap_end:
            hour = Interval(hour_start, hour_start + pipeline.interval)
            if is_open(pipeline, hour, now) or is_missing(reading, hour):
                yield hour
            hour_start = hour.end


def gaps(start: datetime, end: datetime, covered: Iterable[Interval]) -> Iterator[tuple[datetime, datetime]]:
    """What none of the intervals covers from `start` on; the last gap is endless, for an hour may reach beyond `end`."""
    reached = start
    for taken in sorted(covered, key=attrgetter("start")):
        if taken.start > reached:
            yield reached, taken.start
        reached = max(reached, taken.end)
    if reached < end:
        yield reached, END_OF_TIME


def expected(reading: PipelineReading, now: datetime) -> Interval | None:
    """From the pipeline's first hour to the end of the one that is open now."""
    pipeline, gaps, windows = reading.pipeline, reading.lag.gaps, reading.chain.windows
    first = [
        floor(instant, pipeline.interval)
        for instant in (
            pipeline.starts_at,
            gaps[0].interval.start if gaps else None,
            windows[0].interval.start if windows else None,
        )
        if instant is not None
    ]
    end = floor(now, pipeline.interval) + pipeline.interval
    start = min(first, default=floor(now - pipeline.lateness, pipeline.interval))
    return Interval(start, end) if start < end else None


def is_open(pipeline: Pipeline, hour: Interval, now: datetime) -> bool:
    return hour.start <= now < hour.end + pipeline.lateness


def is_missing(reading: PipelineReading, hour: Interval) -> bool:
    """Whether the hour is over and to be loaded. Where the broker does not tell, every hour since the last window may be."""
    if reading.lag.problem is None:
        return any(gap.interval.start <= hour.start < gap.interval.end for gap in reading.lag.gaps if is_waiting(gap))
    windows = reading.chain.windows
    return bool(windows) and hour.start >= windows[-1].interval.end


def is_waiting(gap: Gap) -> bool:
    return not gap.is_frozen and not gap.is_empty


def unfrozen_cell(reading: PipelineReading, hour: Interval, now: datetime) -> Cell:
    if is_open(reading.pipeline, hour, now):
        return Cell(interval=hour, state=CellState.OPEN, records=None)
    if reading.lag.problem is not None:
        return Cell(interval=hour, state=CellState.CLOSED, records=None, note="not frozen; nobody knows what it holds")
    state = CellState.EXPIRING if is_expiring(reading, hour, now) and reading.lag.records else CellState.CLOSED
    return Cell(interval=hour, state=state, records=None, note="not frozen yet")


def with_losses(unfrozen: Sequence[Cell], reading: PipelineReading) -> list[Cell]:
    """Records that were deleted unloaded and belong to no window are shown in the first hour that is over and not frozen."""
    lost = reading.lag.records_lost - sum(gone_by_start(reading).values())
    cells = list(unfrozen)
    first = next((number for number, cell in enumerate(cells) if cell.state is not CellState.OPEN), None)
    if lost > 0 and first is not None:
        note = f"retention has deleted {lost} records before they were frozen"
        cells[first] = Cell(interval=cells[first].interval, state=CellState.LOST, records=None, lost=lost, note=note)
    return cells


def is_expiring(reading: PipelineReading, hour: Interval, now: datetime) -> bool:
    """Whether a limit by time takes the hour's first records soon. A limit by size says nothing about when."""
    return any(taken_at - now <= soon for taken_at, soon in limits_of(reading, hour))


def limits_of(reading: PipelineReading, hour: Interval) -> Iterator[tuple[datetime, timedelta]]:
    """When each limit takes the hour, and how long before that is soon."""
    kept = age_kept(reading.settings)
    if kept is not None:
        yield from bounded(hour.start, kept)
    if reading.policy is not None and reading.policy.when_overdue == DELETE and deletes(reading.settings):
        yield from bounded(hour.end, (reading.policy.retain or timedelta(0)) + reading.policy.max_hold)


def bounded(since: datetime, kept: timedelta) -> Iterator[tuple[datetime, timedelta]]:
    taken_at = end_of(since, kept)
    if taken_at is not None:
        yield taken_at, min(EXPIRING_WITHIN, kept / EXPIRING_SHARE)
