"""Replay: loading windows again, and planning it beforehand.

A window's offsets are frozen, so loading it again means loading the same records; the question is whether the broker still holds
them, and whether they are still the same. `plan` answers it and changes nothing: windows, records, bytes, rows to be replaced,
which runs are working on which window, and which records are gone or have been replaced by others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Protocol

from logbus import errors, model
from logbus.formatting import many, several
from logbus.kafka.topics import OffsetLog, TopicFacts
from logbus.loads.history import WindowReading
from logbus.loads.ledger import Ledger, refuse_busy
from logbus.status.retention_run import RetentionStore
from logbus.windows import log_changes, rows

NAMED_MAX = 5  # windows that an error names; the plan shows all

# At most this many records are read without --read: some ten seconds.
RECORDS_READ_DEFAULT_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Which windows: those of `starts`, or those that overlap [since, until)."""

    since: datetime | None = None
    until: datetime | None = None
    starts: tuple[datetime, ...] = ()

    def __post_init__(self) -> None:
        if not self.starts and self.since is None and self.until is None:
            raise errors.UserError("say which windows to load again: their starts, or a span of time")
        if self.starts and (self.since or self.until):
            raise errors.UserError("give the starts of windows or a span of time, not both")

    def covers(self, window: model.FrozenWindow) -> bool:
        if self.starts:
            return window.interval.start in self.starts
        begins_before = self.until is None or window.interval.start < self.until
        return begins_before and (self.since is None or window.interval.end > self.since)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayWindow:
    """A window, what of it the broker no longer holds, in what its records differ from those that are loaded, and which run is
    working on it. `is_read`: the broker's records were read."""

    window: model.FrozenWindow
    lost: tuple[str, ...] = ()
    busy: str | None = None
    is_read: bool = False
    differs: str | None = None

    @property
    def start(self) -> datetime:
        return self.window.interval.start

    @property
    def rows_replaced(self) -> int:
        return self.window.counts.loaded if self.window.counts else 0

    @property
    def bytes(self) -> int | None:
        """As counted by the last load; unknown before."""
        return self.window.counts.bytes if self.window.counts else None

    def summary(self) -> dict[str, Any]:
        """The window as JSON-ready values."""
        return {
            "start": model.instant_text(self.start),
            "state": str(self.window.state),
            "records": self.window.record_count,
            "bytes": self.bytes,
            "rows_replaced": self.rows_replaced,
            "retained": not self.lost,
            "lost": list(self.lost),
            "read": self.is_read,
            "differs": self.differs,
            "busy": self.busy,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """All windows of the span, oldest first. `notes` are facts that stop nothing."""

    pipeline: str
    windows: tuple[ReplayWindow, ...]
    notes: tuple[str, ...] = ()

    @property
    def differing(self) -> tuple[ReplayWindow, ...]:
        """Those whose records are not the ones that are loaded."""
        return tuple(replayed for replayed in self.windows if replayed.differs)

    def starts(self, *, skip_lost: bool = False, supersede: bool = False, accept_other_records: bool = False) -> list[datetime]:
        """The windows to load. Raises `RecordsLost`, `OtherRecords` or `WindowBusy` for those that cannot be, unless that is
        accepted."""
        lost = [replayed for replayed in self.windows if replayed.lost]
        # A window whose records are gone cannot be loaded by any run: that one is trying adds no further problem.
        busy = [replayed for replayed in self.windows if replayed.busy and not replayed.lost]
        if lost and not skip_lost:
            names = [name for replayed in lost for name in replayed.lost]
            raise errors.RecordsLost(
                f"{len(lost)} of {len(self.windows)} windows cannot be loaded again, retention has deleted records of them: "
                f"{several(names, NAMED_MAX)}. To load the others, leave these out (skip lost)",
                lost=names,
            )
        if self.differing and not accept_other_records:
            names = [f"{model.instant_text(replayed.start)}: {replayed.differs}" for replayed in self.differing]
            raise errors.OtherRecords(
                f"the log now holds other records for {len(self.differing)} of {len(self.windows)} windows than they were loaded "
                f"from: {several(names, NAMED_MAX)}. They keep what they hold; to replace it for good, accept other records "
                "(--accept-other-records, accept_other_records=True)"
            )
        if not supersede:
            refuse_busy([str(replayed.busy) for replayed in busy])
        return [replayed.start for replayed in self.windows if not replayed.lost]

    def summary(self) -> dict[str, Any]:
        """The plan as JSON-ready values."""
        return {
            "pipeline": self.pipeline,
            "windows": [replayed.summary() for replayed in self.windows],
            "records": sum(replayed.window.record_count for replayed in self.windows if not replayed.lost),
            "rows_replaced": sum(replayed.rows_replaced for replayed in self.windows if not replayed.lost),
            "lost_windows": sum(bool(replayed.lost) for replayed in self.windows),
            "read_windows": sum(replayed.is_read for replayed in self.windows),
            "differing_windows": len(self.differing),
            "notes": list(self.notes),
        }


class ReadsWindows(Protocol):
    """Reads what the broker holds now."""

    def begin(self, windows: int, records: int) -> None:
        """Announces how much will be read."""

    def window(self, window: model.FrozenWindow) -> WindowReading:
        """All of the window's ranges. Raises `ShortRead` where the log ends before they do."""


def plan(
    ledger: Ledger,
    log: OffsetLog,
    pipeline_name: str,
    span: Span,
    now: datetime,
    run_id: str | None = None,
    reader: ReadsWindows | None = None,
    records_max: int | None = None,
) -> ReplayPlan:
    """What loading the span again would do. Attempts of `run_id` itself are not a conflict: a retry continues its own.

    With a `reader` the loaded windows are compared with what the broker holds now, unless that is more than `records_max`.
    """
    windows = [window for window in ledger.windows(pipeline_name) if span.covers(window)]
    _require_windows(pipeline_name, span, windows)
    workers = ledger.at_work_elsewhere(pipeline_name, [window.interval.start for window in windows], run_id, now)
    with ledger.engine.connect() as connection:
        row = rows.pipeline_row(connection, pipeline_name)
    lost = _lost_of(log, log_changes.topic_on_its_cluster(row, log), windows)
    replay_windows = [
        ReplayWindow(window=window, lost=tuple(lost[window.id]), busy=workers.get(window.interval.start)) for window in windows
    ]
    holds = RetentionStore(ledger.engine).holds(now, row["topic"])
    notes = [f"nothing is deleted from the topic: {hold}" for hold in holds]
    comparable = [replayed for replayed in replay_windows if _is_comparable(replayed)]
    records = sum(replayed.window.record_count for replayed in comparable)
    if comparable and reader is not None and (records_max is None or records <= records_max):
        reader.begin(len(comparable), records)
        replay_windows = [compared(each, reader) if _is_comparable(each) else each for each in replay_windows]
    elif comparable:
        notes.append(
            f"whether the log still holds the same records was not checked: `logbus replay plan --read` reads {records:,}"
        )
    return ReplayPlan(pipeline=pipeline_name, windows=tuple(replay_windows), notes=(*notes, *gaps(windows)))


def _is_comparable(replayed: ReplayWindow) -> bool:
    return replayed.window.fingerprint is not None and not replayed.lost


def compared(replayed: ReplayWindow, reader: ReadsWindows) -> ReplayWindow:
    """The window, with how its records differ, if they do."""
    try:
        return replace(replayed, is_read=True, differs=difference(replayed.window, reader.window(replayed.window)))
    except errors.ShortRead as error:
        return replace(replayed, is_read=True, differs=str(error))


def difference(window: model.FrozenWindow, now: WindowReading) -> str | None:
    read = window.counts.read if window.counts else 0
    if now.fingerprint == window.fingerprint:
        return None
    if now.read < read:
        return f"{read - now.read:,} of {many(read, 'record')} gone (compaction?)"
    return f"{many(now.read, 'record')} with fingerprint {now.fingerprint}; loaded: {read:,} with {window.fingerprint}"


def _require_windows(pipeline_name: str, span: Span, windows: Sequence[model.FrozenWindow]) -> None:
    missing = set(span.starts) - {window.interval.start for window in windows}
    if missing or not windows:
        which = ", ".join(model.instant_text(start) for start in sorted(missing)) or "in that span"
        raise errors.UserError(
            f"no window of {pipeline_name} is frozen {which}: `logbus window ls --pipeline {pipeline_name}` lists them, "
            "`logbus load` loads hours that are not frozen yet"
        )


def _lost_of(log: OffsetLog, facts: TopicFacts, windows: Iterable[model.FrozenWindow]) -> dict[int, list[str]]:
    """By window what the broker no longer holds. One request for all of them."""
    starts = log.start_offsets(facts.name, facts.partitions)
    return {window.id: _lost_in(window, facts.topic_id, starts) for window in windows}


def _lost_in(window: model.FrozenWindow, topic_id: str, starts: Mapping[int, int]) -> list[str]:
    if window.topic_id != topic_id:
        return [f"{window.topic} was deleted and recreated since {model.instant_text(window.interval.start)}"]
    everything = {part.partition: starts.get(part.partition, part.end_offset) for part in window.ranges}
    return log_changes.lost_ranges(window, everything)


def gaps(windows: Sequence[model.FrozenWindow]) -> list[str]:
    """Hours between the windows that are not frozen; they are not part of a replay."""
    return [
        f"the hours from {model.instant_text(before.interval.end)} to {model.instant_text(after.interval.start)} are not frozen: "
        "not included"
        for before, after in pairwise(windows)
        if before.interval.end < after.interval.start
    ]
