"""The other runs of a DAG that wait at the same task: a backfill, many cleared hours, or a schedule that has to catch up.

Tasks cannot reach Airflow's database; the Execution API returns the states of task instances by logical date. A logical date does
not say which window a run is for: a manual run is for the interval that ended there, and an interval need not be as long as ours
(a day on which the clocks change, the night between working hours). A window frozen with another end than its own run asks for
fails that run for ever. So each waiting run is looked up for its interval, and for hours without a run the timetable is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pendulum
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetDagRun
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable

from logbus.model import HOUR, Interval
from logbus.run_interval import plain

# A task instance in one of these states will still run. None: its upstream tasks have not finished.
WAITING_STATES = frozenset({None, "scheduled", "queued", "up_for_retry", "up_for_reschedule", "deferred"})

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


def waiting_intervals(context: Mapping[str, Any], own: Interval, reach: int) -> list[Interval]:
    """Intervals of the runs that wait at this task, with logical dates at most `reach` intervals away from our own: later ones
    first, those nearest to ours before others."""
    length = own.end - own.start
    found: set[Interval] = set()  # a manual run may be for the same interval as a scheduled one
    for direction in (1, -1):
        dates = [own.start + direction * steps * length for steps in range(1, reach + 1)]
        for begin in range(0, len(dates), DATES_PER_QUESTION_MAX):
            runs = waiting_runs(context["ti"], dates[begin : begin + DATES_PER_QUESTION_MAX])
            found.update(interval for run_id in runs if (interval := interval_of_run(context["ti"].dag_id, run_id)) is not None)
    others = (interval for interval in found if interval.start != own.start)
    return sorted(others, key=lambda interval: (interval.start < own.start, abs(interval.start - own.start), interval.end))


def waiting_runs(task_instance: Any, dates: list[datetime]) -> list[str]:
    """Ids of the runs with these logical dates that wait at this task."""
    task_id = task_instance.task_id
    states = task_instance.get_task_states(dag_id=task_instance.dag_id, task_ids=[task_id], logical_dates=dates)
    return [run_id for run_id, task_states in states.items() if task_states.get(task_id, "none there") in WAITING_STATES]


def interval_of_run(dag_id: str, run_id: str) -> Interval | None:
    """The data interval of a run of any type, as Airflow stores it. None if it has none, or if Airflow does not say: then its own
    task loads it."""
    try:
        run = task_runner.SUPERVISOR_COMMS.send(GetDagRun(dag_id=dag_id, run_id=run_id))
    except AirflowRuntimeError:  # deleted in the meantime, for example
        return None
    start, end = run.data_interval_start, run.data_interval_end
    return Interval(plain(start), plain(end)) if start and end and start < end else None


def intervals_of_schedule(context: Mapping[str, Any], span: Interval) -> Iterator[Interval]:
    """The whole intervals within the span for which the DAG's schedule has runs. None for other timetables than those of a cron,
    whose instants alone do not depend on the runs before."""
    timetable = coerce_to_core_timetable(context["dag"].timetable)
    if not isinstance(timetable, CronDataIntervalTimetable):
        return
    last = DataInterval(pendulum.instance(span.start - HOUR), pendulum.instance(span.start))
    while (following := interval_after(timetable, last)) is not None and plain(following.end) <= span.end:
        last = following
        if plain(last.start) >= span.start:
            yield Interval(plain(last.start), plain(last.end))


def interval_after(timetable: CronDataIntervalTimetable, last: DataInterval) -> DataInterval | None:
    """The next interval of the schedule; None where it has none."""
    try:
        info = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=WHENEVER)
    except ValueError:  # on Lord Howe clocks change by half an hour, which an hourly cron of Airflow does not get past
        return None
    return None if info is None else info.data_interval
