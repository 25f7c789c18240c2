"""The cells of the heat map: what became of each hour of a pipeline. Pure.

A cell is a frozen window, or an hour that is over and not frozen although it is the pipeline's to load, or the hour that is open.
Hours without records have no cell until they are frozen: nothing waits for them. So the cells that are neither open nor loaded
are the hours behind, as `logbus lag` counts them, as far as they are in the span, and windows that are frozen and empty.

A page shows thousands of them, most of which are ordinary: one hour after the other, all that was read is loaded, by the first
attempt. So they are sent as columns (`columns_of`), in which an ordinary cell costs a letter and a number, and exceptions are
listed by position. As one object for each cell the same took 25 times the bytes, and several caches to hide that cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

from logbus.formatting import first_line, many
from logbus.kafka.topics import age_kept, deletes, end_of
from logbus.model import EPOCH, FrozenWindow, Interval, Pipeline, instant_text, uncovered
from logbus.status import fleet, ledger_facts, retention_plan
from logbus.windows.missing import Gap

# An hour whose records expire within this time gets a colour of its own. With short retention, within a quarter of that.
EXPIRING_WITHIN = timedelta(hours=24)
EXPIRING_SHARE = 4

END_OF_TIME = datetime.max.replace(tzinfo=UTC)


class CellState(StrEnum):
    """If several apply, the first of these is shown."""

    LOST = "lost"
    EXPIRING = "expiring"
    FAILED = "failed"
    LOADING = "loading"
    DEAD_LETTERS = "dead_letters"
    AUDITED = "audited"
    LOADED = "loaded"
    CLOSED = "closed"
    OPEN = "open"


# static/columns.js has the same letters; a browser test reads cells that were written with these.
# How a state is written in a column of many.
LETTERS: Mapping[CellState, str] = {
    CellState.LOST: "X",
    CellState.EXPIRING: "E",
    CellState.FAILED: "F",
    CellState.LOADING: "R",
    CellState.DEAD_LETTERS: "D",
    CellState.AUDITED: "A",
    CellState.LOADED: "L",
    CellState.CLOSED: "C",
    CellState.OPEN: "O",
}
IS_LOADED = frozenset({CellState.DEAD_LETTERS, CellState.AUDITED, CellState.LOADED})
WAS_TRIED = IS_LOADED | {CellState.FAILED, CellState.LOADING}


class Cell(NamedTuple):
    """An hour, from `start` to `end` in microseconds since the epoch, and what became of it. `note` says more if the state
    alone does not suffice."""

    start: int
    end: int
    state: CellState
    records: int | None
    loaded: int = 0
    dead_lettered: int = 0
    lost: int = 0
    attempts: int = 0
    note: str | None = None
    of_run: bool = False

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        times = {"start": text_of(self.start), "end": text_of(self.end), "state": self.state.value}
        return {**self._asdict(), **times}


def text_of(instant: int) -> str:
    return instant_text(EPOCH + instant * ledger_facts.MICROSECOND)


def columns_of(cells: Sequence[Cell], interval: timedelta) -> dict[str, Any]:
    """Cells in order of time as JSON-ready columns; static/columns.js reads them, docs/airflow.md describes them.

    `runs` are adjacent cells: where the first begins, and how many there are; `seconds` if they are not as long as the
    pipeline's interval. `states` has a letter for each cell, `records` a number or null. The others are keyed by a cell's
    position, and present if they are not what its state implies: a loaded cell has loaded all of its records but the dead
    letters, one that was tried had one attempt.
    """
    usual, runs = interval // ledger_facts.MICROSECOND, list[dict[str, Any]]()
    rare: dict[str, dict[str, Any]] = {"loaded": {}, "dead_lettered": {}, "lost": {}, "attempts": {}, "note": {}, "of_run": {}}
    follows = None
    for position, cell in enumerate(cells):
        start, end, state, records, loaded, dead_lettered, lost, attempts, note, of_run = cell
        length = end - start
        if follows == (start, length):
            runs[-1]["count"] += 1
        else:
            runs.append({"start": text_of(start), "count": 1})
            if length != usual:
                runs[-1]["seconds"] = length * ledger_facts.MICROSECOND.total_seconds()
        follows = (end, length)
        if loaded != ((records or 0) - dead_lettered if state in IS_LOADED else 0):
            rare["loaded"][str(position)] = loaded
        if attempts != (state in WAS_TRIED):
            rare["attempts"][str(position)] = attempts
        if dead_lettered or lost or note or of_run:
            exceptions = {"dead_lettered": dead_lettered, "lost": lost, "note": note, "of_run": of_run}
            for name, value in exceptions.items():
                if value:
                    rare[name][str(position)] = value
    return {
        "runs": runs,
        "states": "".join([LETTERS[cell.state] for cell in cells]),
        "records": [cell.records for cell in cells],
        **{name: values for name, values in rare.items() if values},
    }


def cells_of(
    reading: fleet.PipelineReading, windows: Sequence[ledger_facts.WindowFacts], span: Interval, now: datetime
) -> list[Cell]:
    """By time; `windows` are those of the pipeline in the span."""
    gone = _gone_by_start(reading)
    frozen = [_window_cell(reading, window, gone.get(window.start, 0), now) for window in windows]
    covered = [(window.start, window.end) for window in windows]
    unfrozen = [_unfrozen_cell(reading, interval, now) for interval in _unfrozen_hours(reading, covered, span, now)]
    return sorted(_with_losses(unfrozen, reading) + frozen, key=attrgetter("start"))


def _window_cell(reading: fleet.PipelineReading, window: ledger_facts.WindowFacts, gone: int, now: datetime) -> Cell:
    state = window_state(reading, window, gone, now)
    note = _window_note(window, gone)
    counts = (window.records, window.loaded, window.dead_lettered, window.lost + gone, window.attempts)
    return Cell(window.start, window.end, state, *counts, note, window.of_run)


def window_state(reading: fleet.PipelineReading, window: ledger_facts.WindowFacts, gone: int, now: datetime) -> CellState:
    """In the order of `CellState`."""
    # A loss comes first even if the hour is loaded and audited: what was loaded of it was all that was left, and a
    # green cell would hide that it was not all there was.
    if window.lost or gone or window.head_unknown:
        return CellState.LOST
    if not window.is_loaded:
        # Before "failed" and "loading": both may still end well, and retention waits for neither.
        if window.records and _is_expiring(reading, _interval_of(window.start, window.end), now):
            return CellState.EXPIRING
        return {"failed": CellState.FAILED, "running": CellState.LOADING}.get(str(window.last_state), CellState.CLOSED)
    if window.dead_lettered:
        return CellState.DEAD_LETTERS
    return CellState.AUDITED if window.is_audited else CellState.LOADED


def _interval_of(start: int, end: int) -> Interval:
    return Interval(EPOCH + start * ledger_facts.MICROSECOND, EPOCH + end * ledger_facts.MICROSECOND)


def _window_note(window: ledger_facts.WindowFacts, gone: int) -> str | None:
    """One sentence that says why, if the state needs one."""
    if gone:
        return f"retention has deleted {many(gone, 'record')} that had not been loaded"
    if window.lost:
        return f"{many(window.lost, 'record')} declared lost"
    if window.head_unknown:
        return "records were gone, or may have been, before the hour was frozen: its record count is unknown"
    if window.last_state == "failed" and window.last_error:
        return first_line(window.last_error)
    if window.audit_problem:
        return first_line(f"the audit found: {window.audit_problem}")
    return "a rerun is under way" if window.is_loaded and window.last_state == "running" else None


def _gone_by_start(reading: fleet.PipelineReading) -> dict[int, int]:
    """Of windows that are not loaded: how many records the broker has deleted, by the window's start."""
    if reading.chain.is_other_topic or not reading.starts:
        return {}
    gone_counts = (
        (ledger_facts.micros(window.interval.start), _gone_of(window, reading.starts)) for window in reading.chain.windows
    )
    return {start: gone for start, gone in gone_counts if gone}


def _gone_of(window: FrozenWindow, starts: Mapping[int, int]) -> int:
    return sum(gone_by_partition(window, starts).values())


def gone_by_partition(window: FrozenWindow, starts: Mapping[int, int]) -> dict[int, int]:
    """Records that are not loaded and that the broker, whose log begins at `starts`, has deleted."""
    if window.loaded_attempt is not None:
        return {}
    return {
        part.partition: max(0, min(part.end_offset, starts.get(part.partition, 0)) - part.readable_from)
        for part in window.ranges
        if part.count
    }


def _unfrozen_hours(
    reading: fleet.PipelineReading, covered: Iterable[tuple[int, int]], span: Interval, now: datetime
) -> Iterator[Interval]:
    """Hours that are the pipeline's and that no window of the span covers, up to the open one."""
    pipeline, ours = reading.pipeline, expected(reading, now)
    if ours is None:
        return
    start, end = max(ours.start, pipeline.grid.floor(span.start)), min(ours.end, span.end)
    # The last gap is endless, because an hour may extend beyond `end`.
    for gap in uncovered(ledger_facts.micros(start), ledger_facts.micros(END_OF_TIME), covered):
        gap_start, gap_end = (EPOCH + instant * ledger_facts.MICROSECOND for instant in gap)
        # A window may be frozen by hand for an interval off the grid of hours: the next cell begins at the grid again.
        for hour in pipeline.grid.windows(pipeline.grid.ceiling(gap_start), gap_end):
            if hour.start >= end:
                break
            # An hour that is over, not frozen and not missing holds no record: nothing waits for it, so there is no cell.
            if is_open(pipeline, hour, now) or is_missing(reading, hour):
                yield hour


def expected(reading: fleet.PipelineReading, now: datetime) -> Interval | None:
    """From the pipeline's first hour to the end of the one that is open now."""
    pipeline, gaps, windows = reading.pipeline, reading.lag.gaps, reading.chain.windows
    first = [
        pipeline.grid.floor(instant)
        for instant in (
            pipeline.starts_at,
            gaps[0].interval.start if gaps else None,
            windows[0].interval.start if windows else None,
        )
        if instant is not None
    ]
    end = pipeline.grid.after(pipeline.grid.floor(now))
    start = min(first, default=pipeline.closed_until(now))
    return Interval(start, end) if start < end else None


def is_open(pipeline: Pipeline, hour: Interval, now: datetime) -> bool:
    return hour.start <= now < hour.end + pipeline.lateness


def is_missing(reading: fleet.PipelineReading, hour: Interval) -> bool:
    """Whether the hour is over and to be loaded. If the broker does not answer, every hour since the last window may be."""
    if reading.lag.problem is None:
        return any(gap.interval.start <= hour.start < gap.interval.end for gap in reading.lag.gaps if is_waiting(gap))
    windows = reading.chain.windows
    # Without the broker it is unknown which hours hold records. Those after the last window may; those before it were either
    # frozen, or empty when it was frozen.
    return bool(windows) and hour.start >= windows[-1].interval.end


def is_waiting(gap: Gap) -> bool:
    return not gap.is_frozen and not gap.is_empty


def _unfrozen_cell(reading: fleet.PipelineReading, hour: Interval, now: datetime) -> Cell:
    if is_open(reading.pipeline, hour, now):
        return not_frozen(hour, CellState.OPEN)
    if reading.lag.problem is not None:
        return not_frozen(hour, CellState.CLOSED, note="not frozen; record count unknown")
    state = CellState.EXPIRING if _is_expiring(reading, hour, now) and reading.lag.records else CellState.CLOSED
    return not_frozen(hour, state, note="not frozen yet")


def waiting_cell(reading: fleet.PipelineReading, hour: Interval, now: datetime) -> Cell | None:
    """The cell of an hour that is not frozen; None if no record is known to be in it."""
    if not (is_open(reading.pipeline, hour, now) or is_missing(reading, hour)):
        return None
    cell = _unfrozen_cell(reading, hour, now)
    first = next((gap.interval.start for gap in reading.lag.gaps if is_waiting(gap)), None)
    return _with_losses([cell], reading)[0] if hour.start == first else cell


def not_frozen(hour: Interval, state: CellState, note: str | None = None) -> Cell:
    return Cell(ledger_facts.micros(hour.start), ledger_facts.micros(hour.end), state, None, note=note)


def _with_losses(unfrozen: Sequence[Cell], reading: fleet.PipelineReading) -> list[Cell]:
    """Records that were deleted unloaded and belong to no window are shown in the first hour that is over and not frozen."""
    # Losses of frozen windows are in their own cells already; the rest belongs to hours that had not been frozen, and it is not
    # known to which. The first of them shows it, so that the sum over the map is the lag's.
    lost = reading.lag.records_lost - sum(_gone_by_start(reading).values())
    cells = list(unfrozen)
    first = next((number for number, cell in enumerate(cells) if cell.state is not CellState.OPEN), None)
    if lost > 0 and first is not None:
        note = f"retention has deleted {many(lost, 'record')} that had not been frozen"
        cells[first] = cells[first]._replace(state=CellState.LOST, lost=lost, note=note)
    return cells


def _is_expiring(reading: fleet.PipelineReading, hour: Interval, now: datetime) -> bool:
    """Whether a limit by time soon deletes the hour's first records. A limit by size says nothing about when."""
    return any(taken_at - now <= soon for taken_at, soon in limits_of(reading, hour))


def expires_at(reading: fleet.PipelineReading, hour: Interval) -> datetime | None:
    """When the first limit by time deletes the hour's first records; None if none does."""
    return min((taken_at for taken_at, _ in limits_of(reading, hour)), default=None)


def limits_of(reading: fleet.PipelineReading, hour: Interval) -> Iterator[tuple[datetime, timedelta]]:
    """When each limit deletes the hour, and how long before that counts as soon."""
    kept = age_kept(reading.settings)
    if kept is not None:
        yield from bounded(hour.start, kept)
    if reading.policy is not None and reading.policy.when_overdue == retention_plan.DELETE and deletes(reading.settings):
        yield from bounded(hour.end, (reading.policy.retain or timedelta(0)) + reading.policy.max_hold)


def bounded(since: datetime, kept: timedelta) -> Iterator[tuple[datetime, timedelta]]:
    taken_at = end_of(since, kept)
    if taken_at is not None:
        yield taken_at, min(EXPIRING_WITHIN, kept / EXPIRING_SHARE)
