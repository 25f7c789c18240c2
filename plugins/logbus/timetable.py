"""When the run of a window is due: once the window is closed, which is its end plus the lateness its pipeline allows. And when it
is late: a deadline of Airflow's, counted from the window's end.

With Airflow's own timetable a run is due at the end of its interval. A task then has to wait out the lateness, and a DAG that
allows one run at a time is blocked until then: an hour triggered by hand at HH:01 would start at HH:05. Here the run is not
created before it can work. Its data interval is the one it would have anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeAlias

import pendulum
from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback
from airflow.sdk.definitions.deadline import BaseDeadlineReference, DeadlineAlert
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable

from logbus import errors
from logbus.model import DAY, HOUR, LATENESS_DEFAULT, Grid, Pipeline, utc_now

HOURLY = "0 * * * *"
MINUTE = timedelta(minutes=1)

logger = logging.getLogger(__name__)

Callback: TypeAlias = AsyncCallback | SyncCallback


class WindowTimetable(CronDataIntervalTimetable):
    """Intervals between the instants of a cron expression, each due `lateness` after its end.

    A manual run is for the interval that ended at the requested instant, or else for the last one that was closed then.

    :param lateness: how long after its end an hour stays open for records still on their way; as in the `Pipeline`
    """

    def __init__(self, cron: str = HOURLY, timezone: Any = "UTC", *, lateness: timedelta = LATENESS_DEFAULT) -> None:
        super().__init__(cron, timezone)
        self.lateness = lateness

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> WindowTimetable:
        same = CronDataIntervalTimetable.deserialize(data)
        return cls(same._expression, same._timezone, lateness=timedelta(seconds=data["lateness_seconds"]))

    def serialize(self) -> dict[str, Any]:
        return {**super().serialize(), "lateness_seconds": self.lateness.total_seconds()}

    def __eq__(self, other: object) -> bool:
        same = super().__eq__(other)
        return same if same is not True else self.lateness == getattr(other, "lateness", None)

    def __hash__(self) -> int:
        return hash((self._expression, self._timezone, self.lateness))

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        info = super().next_dagrun_info(last_automated_data_interval=last_automated_data_interval, restriction=restriction)
        return None if info is None else info._replace(run_after=info.run_after + self.lateness)

    def infer_manual_data_interval(self, *, run_after: pendulum.DateTime) -> DataInterval:
        is_end = self._align_to_prev(run_after) == run_after
        return super().infer_manual_data_interval(run_after=run_after if is_end else run_after - self.lateness)

    def _get_prev(self, current: pendulum.DateTime) -> pendulum.DateTime:
        """Of a midnight that clocks skip, Airflow answers the midnight itself; between two midnights of one day, the second."""
        before, start = current, super()._get_prev(current)
        while start >= current:
            before -= HOUR
            start = super()._get_prev(before)
        return start

    def _skip_to_latest(self, earliest: pendulum.DateTime | None) -> pendulum.DateTime:
        """Without catchup, the first run is for the interval that closed last. Airflow calls this again while no run is due yet:
        if the interval that ended last were used, an hour whose lateness is longer than an hour would be skipped."""
        closed = self._get_prev(self._align_to_prev(pendulum.instance(utc_now() - self.lateness)))
        return closed if earliest is None else max(closed, self._align_to_next(earliest))


def of_pipeline(pipeline: Pipeline) -> WindowTimetable:
    """Its intervals are the pipeline's windows."""
    return WindowTimetable(cron_of(pipeline.grid), pipeline.timezone, lateness=pipeline.lateness)


def cron_of(grid: Grid) -> str:
    if grid.length < HOUR:
        return f"*/{grid.length // MINUTE} * * * *"
    if grid.length == HOUR:
        return HOURLY
    return f"0 */{grid.length // HOUR} * * *" if grid.length < DAY else "0 0 * * *"


class WindowEnd(BaseDeadlineReference):
    """Deadlines count from here: the end of the run's window; for a run that was asked for (a backfill, a manual run), maybe for
    an hour of last year, from when it was created, if that is later.

    Evaluated by the scheduler when it creates the run, and known to it by the plugin.
    """

    required_kwargs: ClassVar[set[str]] = {"dag_id", "run_id"}

    def _evaluate_with(self, *, session: Any, dag_id: str, run_id: str) -> datetime | None:
        from airflow.models import DagRun
        from sqlalchemy import select

        query = select(DagRun.data_interval_end, DagRun.run_type).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        run = session.execute(query).one_or_none()
        if run is None or run.data_interval_end is None:
            return None
        end: datetime = run.data_interval_end
        return end if run.run_type == "scheduled" else max(end, utc_now())


async def log_late(pipeline: str, within: str, context: Mapping[str, Any] | None = None) -> None:
    """What happens unless the DAG says what: an error in the triggerer's log. Airflow counts and shows what was late, too."""
    run = (context or {}).get("dag_run", {})
    start, run_id = run.get("data_interval_start"), run.get("run_id")
    logger.error(
        "The window of %s from %s on was not proven within %s of its end: see the run %s", pipeline, start, within, run_id
    )


def deadline(pipeline: Pipeline, proven_within: timedelta, on_late_callback: Callback | None) -> DeadlineAlert:
    """Airflow's alert for a run that has not proven its window that long after the window's end."""
    if not isinstance(proven_within, timedelta) or proven_within <= pipeline.lateness:
        raise errors.UserError(
            f"proven_within says how long after its end a window is late: a timedelta of more than the lateness "
            f"({pipeline.lateness}), which {pipeline.name} waits before it loads; got {proven_within!r}"
        )
    callback = on_late_callback
    if callback is None:
        callback = AsyncCallback(log_late, kwargs={"pipeline": pipeline.name, "within": str(proven_within)})
    if not isinstance(callback, Callback):
        raise errors.UserError(
            f"on_late_callback is Airflow's AsyncCallback(...) or SyncCallback(...) of a function or a notifier; got {callback!r}"
        )
    return DeadlineAlert(reference=WindowEnd(), interval=proven_within, callback=callback)
