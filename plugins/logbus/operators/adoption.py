"""How a load shares its Spark application with other waiting runs, and how those runs find that they need none of their own.

This is decided by the ledger and by the states Airflow returns for the runs of this DAG (siblings.py). Tasks promise each other
nothing, so a run that was counted on and never starts, or starts twice, changes nothing. An hour of another run that cannot be
frozen, or that keeps failing, is left to its own run, which reports why.

A scheduled run also loads hours that no other run would: earlier hours that are missing because their run failed, or was never
created while the scheduler was down.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from logbus.errors import WindowError
from logbus.kafka.topics import OffsetLog
from logbus.ledger.definition import definition_of
from logbus.ledger.ledger import Ledger
from logbus.ledger.missing import Gap
from logbus.model import Interval, Pipeline
from logbus.operators.siblings import asked_at, intervals_of_schedule, waiting_intervals
from logbus.run_interval import plain, run_interval

SCHEDULED = "scheduled"  # the type of runs that the timetable creates


def is_loaded_since_asked(ledger: Ledger, pipeline: Pipeline, starts: Sequence[datetime], context: Mapping[str, Any]) -> bool:
    """Whether attempts begun after this try was requested have loaded all the windows, with this DAG's definition."""
    asked = asked_at(context["ti"])
    if asked is None:
        return False
    return ledger.begun_since(pipeline.name, starts, asked, definition_of(pipeline)) == set(starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Finds the hours that other runs of the DAG are waiting to load."""

    ledger: Ledger
    log: OffsetLog
    pipeline_name: str
    now: datetime

    def hours(self, context: Mapping[str, Any], limit: int) -> list[datetime]:
        """Starts of at most `limit` windows, all frozen, that wait to be loaded; the hours after our own first."""
        own = run_interval(context)
        if self.left_alone([own.start]):
            return []
        waiting = waiting_intervals(context, own, limit)
        starts = [interval.start for interval in waiting]
        done = self.ledger.begun_since(self.pipeline_name, starts, beginning(context))
        taken = self.ledger.at_work_elsewhere(self.pipeline_name, starts, str(context["run_id"]), self.now)
        not_ours = done | taken.keys() | self.left_alone(starts)
        frozen = (interval.start for interval in waiting if interval.start not in not_ours and self.is_frozen(interval))
        return list(islice(frozen, limit))

    def missing_before(self, context: Mapping[str, Any], limit: int, taken: Collection[datetime]) -> list[datetime]:
        """Starts of at most `limit` windows before our own, all frozen, that are not loaded and that no run is to load: those
        with records first, then the oldest first. Long spans without any record are left to a catch-up that a user starts, and
        what is not frozen is taken in the intervals of the DAG's schedule only: a run that comes for one later needs its own.

        A run that a user requested does what was requested, and no more.
        """
        own = run_interval(context)
        if limit <= 0 or not is_scheduled(context) or self.left_alone([own.start]):
            return []
        gaps = self.ledger.gaps(self.pipeline_name, self.log, self.now, until=own.start)
        wanted = sorted((gap for gap in gaps if not gap.is_empty or gap.count <= limit), key=lambda gap: gap.is_empty)
        parts = (part for gap in wanted for part in parts_of(gap, context) if part.start not in taken)
        intervals = list(islice(parts, limit))
        starts = [interval.start for interval in intervals]
        at_work = self.ledger.at_work_elsewhere(self.pipeline_name, starts, str(context["run_id"]), self.now)
        not_ours = self.left_alone(starts) | at_work.keys()
        return [part.start for part in intervals if part.start not in not_ours and self.is_frozen(part)]

    def left_alone(self, starts: Sequence[datetime]) -> set[datetime]:
        return self.ledger.failing(self.pipeline_name, starts)

    def is_frozen(self, interval: Interval) -> bool:
        """Freezes the window, unless that needs a user's decision."""
        try:
            self.ledger.freeze_or_get(self.pipeline_name, interval, self.log, self.now)
        except WindowError:
            return False
        return True


def parts_of(gap: Gap, context: Mapping[str, Any]) -> Iterable[Interval]:
    """The intervals of a gap as runs of this DAG have them; a frozen window keeps its own."""
    return (gap.interval,) if gap.is_frozen else intervals_of_schedule(context, gap.interval)


def is_scheduled(context: Mapping[str, Any]) -> bool:
    """Whether the timetable created the run: it is neither a manual run nor a backfill."""
    return bool(context["dag_run"].run_type == SCHEDULED)


def beginning(context: Mapping[str, Any]) -> datetime:
    """The instant from which loads count as done for the runs around us, which will adopt them.

    A retry is requested after its failed try, which may have loaded hours of other runs, so the run's start counts if earlier.
    """
    asked, started = asked_at(context["ti"]), context["dag_run"].start_date
    return min(instant for instant in (asked, started and plain(started)) if instant)
