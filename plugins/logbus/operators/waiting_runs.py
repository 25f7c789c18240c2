"""The other runs of a DAG that wait at the same task: a backfill, many cleared hours, or a schedule that has to catch up.

Tasks cannot reach Airflow's database; the Execution API returns the states of task instances by logical date. A logical date
does not say which window a run is for: a manual run is for the interval that ended there, and an interval need not be as long
as ours (a day on which the clocks change, the night between working hours). A window frozen with another end than its own run
asks for fails that run for ever. So each waiting run is looked up for its interval, and for hours without a run the timetable
is asked.

The first of them loads the windows of the others in its own Spark application, and the others find theirs loaded since they
were requested. This is decided by the ledger and by the states Airflow returns. Tasks promise each other nothing, so a run
that was counted on and never starts, or starts twice, changes nothing. An hour of another run that cannot be frozen, or that
keeps failing, is left to its own run, which reports why.

A scheduled run also loads hours that no other run would: earlier hours that are missing because their run failed, or was never
created while the scheduler was down.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from uuid import UUID

import pendulum
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetDagRun
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable

from logbus import errors, model, task_context
from logbus.kafka.topics import OffsetLog
from logbus.loads.ledger import Ledger
from logbus.windows import missing

# A task instance in one of these states will still run. None: its upstream tasks have not finished.
WAITING_STATES = frozenset({None, "scheduled", "queued", "up_for_retry", "up_for_reschedule", "deferred"})

HOURS = model.Grid()
DATES_PER_QUESTION_MAX = 84  # they are part of a URL
UUID7 = 7
UUID7_TIME_SHIFT = 80  # the first 48 of 128 bits are milliseconds since the epoch

WHENEVER = TimeRestriction(earliest=None, latest=None, catchup=True)


def asked_at(task_instance: Any) -> datetime | None:
    """When this try was requested: Airflow gives a task instance a new id, which contains the time, when its run is created and
    whenever it is cleared or retried. None if the id contains no time."""
    identity = UUID(str(task_instance.id))
    if identity.version != UUID7:
        return None
    return datetime.fromtimestamp((identity.int >> UUID7_TIME_SHIFT) / 1000, UTC)


def waiting_intervals(
    context: Mapping[str, Any], own: model.Interval, reach: int, grid: model.Grid = HOURS
) -> list[model.Interval]:
    """Intervals of the runs that wait at this task, with logical dates at most `reach` intervals away from our own: later ones
    first, those nearest to ours before others."""
    # A run off the pipeline's grid (of a schedule that a user chose) is among others of its own length.
    steps = grid if grid.has(own) else model.Grid(own.end - own.start)
    ti = context["ti"]
    intervals: set[model.Interval] = set()  # a manual run may be for the same interval as a scheduled one
    for direction in (1, -1):
        dates = [steps.after(own.start, direction * number) for number in range(1, reach + 1)]
        for begin in range(0, len(dates), DATES_PER_QUESTION_MAX):
            some_dates = dates[begin : begin + DATES_PER_QUESTION_MAX]
            states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[ti.task_id], logical_dates=some_dates)
            runs = [run_id for run_id, by_task in states.items() if by_task.get(ti.task_id, "none there") in WAITING_STATES]
            of_runs = (interval_of_run(ti.dag_id, run_id) for run_id in runs)
            intervals.update(interval for interval in of_runs if interval is not None)
    others = (interval for interval in intervals if interval.start != own.start)
    return sorted(others, key=lambda interval: (interval.start < own.start, abs(interval.start - own.start), interval.end))


def interval_of_run(dag_id: str, run_id: str) -> model.Interval | None:
    """The data interval of a run of any type, as Airflow stores it. None if it has none, or if Airflow does not say: then its own
    task loads it."""
    try:
        run = task_runner.SUPERVISOR_COMMS.send(GetDagRun(dag_id=dag_id, run_id=run_id))
    except AirflowRuntimeError:  # deleted in the meantime, for example
        return None
    start, end = run.data_interval_start, run.data_interval_end
    return model.Interval(task_context.plain(start), task_context.plain(end)) if start and end and start < end else None


def intervals_of_schedule(context: Mapping[str, Any], span: model.Interval) -> Iterator[model.Interval]:
    """The whole intervals within the span for which the DAG's schedule has runs. None for other timetables than those of a cron,
    whose instants alone do not depend on the runs before."""
    timetable = coerce_to_core_timetable(context["dag"].timetable)
    if not isinstance(timetable, CronDataIntervalTimetable):
        return
    last = DataInterval(pendulum.instance(span.start - model.HOUR), pendulum.instance(span.start))
    while (following := _interval_after(timetable, last)) is not None and task_context.plain(following.end) <= span.end:
        last = following
        if task_context.plain(last.start) >= span.start:
            yield model.Interval(task_context.plain(last.start), task_context.plain(last.end))


def _interval_after(timetable: CronDataIntervalTimetable, last: DataInterval) -> DataInterval | None:
    """The next interval of the schedule; None where it has none."""
    try:
        info = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=WHENEVER)
    except ValueError:  # on Lord Howe clocks change by half an hour, which an hourly cron of Airflow does not get past
        return None
    return None if info is None else info.data_interval


SCHEDULED = "scheduled"  # the type of runs that the timetable creates


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Finds the hours that other runs of the DAG are waiting to load."""

    ledger: Ledger
    log: OffsetLog
    pipeline_name: str
    own: model.Interval
    now: datetime
    grid: model.Grid = HOURS

    def hours(self, context: Mapping[str, Any], limit: int) -> list[datetime]:
        """Starts of at most `limit` windows, all frozen, that wait to be loaded; the hours after our own first."""
        if self.ledger.failing(self.pipeline_name, [self.own.start]):
            return []
        waiting = waiting_intervals(context, self.own, limit, self.grid)
        if not waiting:
            return []
        starts = [interval.start for interval in waiting]
        done = self.ledger.begun_since(self.pipeline_name, starts, beginning(context))
        taken = self.ledger.at_work_elsewhere(self.pipeline_name, starts, str(context["run_id"]), self.now)
        not_ours = done | taken.keys() | self.ledger.failing(self.pipeline_name, starts)
        frozen = (interval.start for interval in waiting if interval.start not in not_ours and self.is_frozen(interval))
        return list(islice(frozen, limit))

    def missing_before(self, context: Mapping[str, Any], limit: int, taken: Collection[datetime]) -> list[datetime]:
        """Starts of at most `limit` windows before our own, all frozen, that are not loaded and that no run is to load: those
        with records first, then the oldest first. Long spans without any record are left to a catch-up that a user starts, and
        what is not frozen is taken in the intervals of the DAG's schedule only: a run that comes for one later needs its own.

        A run that a user requested does what was requested, and no more.
        """
        is_scheduled = context["dag_run"].run_type == SCHEDULED  # neither a manual run nor a backfill
        if limit <= 0 or not is_scheduled or self.ledger.failing(self.pipeline_name, [self.own.start]):
            return []
        gaps = self.ledger.gaps(self.pipeline_name, self.log, self.now, until=self.own.start)
        to_fill = sorted((gap for gap in gaps if not gap.is_empty or gap.count <= limit), key=lambda gap: gap.is_empty)
        parts = (part for gap in to_fill for part in parts_of(gap, context) if part.start not in taken)
        intervals = list(islice(parts, limit))
        starts = [interval.start for interval in intervals]
        at_work = self.ledger.at_work_elsewhere(self.pipeline_name, starts, str(context["run_id"]), self.now)
        not_ours = self.ledger.failing(self.pipeline_name, starts) | at_work.keys()
        return [part.start for part in intervals if part.start not in not_ours and self.is_frozen(part)]

    def is_frozen(self, interval: model.Interval) -> bool:
        """Freezes the window, unless that needs a user's decision. False as well if then nothing is left to load."""
        try:
            return self.ledger.freeze_or_get(self.pipeline_name, interval, self.log, self.now).needs_load
        except errors.WindowError:
            return False


def parts_of(gap: missing.Gap, context: Mapping[str, Any]) -> Iterable[model.Interval]:
    """The intervals of a gap as runs of this DAG have them; a frozen window keeps its own."""
    return (gap.interval,) if gap.is_frozen else intervals_of_schedule(context, gap.interval)


def beginning(context: Mapping[str, Any]) -> datetime:
    """The instant from which loads count as done for the runs around us, which will adopt them.

    A retry is requested after its failed try, which may have loaded hours of other runs, so the run's start counts if earlier.
    """
    requested_at, started = asked_at(context["ti"]), context["dag_run"].start_date
    return min(instant for instant in (requested_at, started and task_context.plain(started)) if instant)
