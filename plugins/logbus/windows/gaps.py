"""What of a pipeline's chain is not loaded: closed intervals nobody has frozen, and frozen windows without a load.

The clock closes an interval, not data, but behind the last record there is nothing to load yet: so the log says how far the chain
reaches, and the ledger what of it is done. Holes between frozen windows count whatever the log still holds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from logbus.windows import catch_up
from logbus.windows.ledger import Ledger
from logbus.windows.log_offsets import OffsetLog
from logbus.windows.model import FrozenWindow, Interval, Pipeline, instant_text


class Missing(StrEnum):
    """How far a gap has come."""

    NOT_FROZEN = "not frozen"
    NOT_LOADED = "not loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A closed interval that is not loaded."""

    interval: Interval
    missing: Missing

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        start, end = instant_text(self.interval.start), instant_text(self.interval.end)
        return {"start": start, "end": end, "missing": str(self.missing)}


def pipeline_gaps(
    ledger: Ledger,
    pipeline: Pipeline,
    log: OffsetLog | None,
    now: datetime,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[Gap]:
    """The gaps that start within [since, until], oldest first. Without a log only what the ledger itself shows."""
    windows = ledger.windows(pipeline.name)
    closed = [] if log is None else catch_up.closed_intervals(pipeline, log, now, chain_start(pipeline, windows))
    found = find_gaps(pipeline, windows, closed)
    return [
        gap for gap in found if (since is None or gap.interval.start >= since) and (until is None or gap.interval.start <= until)
    ]


def chain_start(pipeline: Pipeline, windows: Sequence[FrozenWindow]) -> datetime | None:
    """Where the chain begins, as far as the ledger knows: retention may have taken its first records since."""
    return pipeline.starts_at or (windows[0].interval.start if windows else None)


def find_gaps(pipeline: Pipeline, windows: Sequence[FrozenWindow], closed: Iterable[Interval]) -> list[Gap]:
    """`windows` are all frozen ones in order, `closed` the closed intervals that the log has records for."""
    missing = [Gap(interval=window.interval, missing=Missing.NOT_LOADED) for window in windows if window.loaded_attempt is None]
    wanted = {*closed, *holes(pipeline, windows)}
    starts = [window.interval.start for window in windows]
    missing += [Gap(interval=found, missing=Missing.NOT_FROZEN) for found in wanted if not is_frozen(found, windows, starts)]
    return sorted(missing, key=lambda gap: gap.interval)


def holes(pipeline: Pipeline, windows: Sequence[FrozenWindow]) -> Iterable[Interval]:
    """The intervals between the first frozen window and the last."""
    if not windows:
        return []
    return catch_up.intervals(
        catch_up.floor(windows[0].interval.start, pipeline.interval), windows[-1].interval.end, pipeline.interval
    )


def is_frozen(interval: Interval, windows: Sequence[FrozenWindow], starts: Sequence[datetime]) -> bool:
    """Whether a window touches the interval; windows are in order and do not overlap."""
    before = bisect_left(starts, interval.end) - 1
    return before >= 0 and windows[before].interval.end > interval.start
