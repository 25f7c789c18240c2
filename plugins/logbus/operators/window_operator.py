"""What the operators of this package share: the pipeline, the two connections, and how a failure is reported.

Operators only assign in the constructor and act in `execute`. The windows of a run are its own data interval, or those that
`windows` lists (starts as ISO instants, or another task's output). A task that was given `windows` and finds none in it is
skipped, and never takes the run's own instead. Errors that a retry cannot fix fail the task at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, NoReturn
from uuid import UUID

import pendulum
from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowRuntimeError, AirflowSkipException
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetDagRun
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable

from logbus import errors, model, pipeline_definition, spark_submit, task_context
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.kafka.topics import OffsetLog
from logbus.loads.ledger import Ledger
from logbus.loads.sinks import sink_for
from logbus.windows import missing
from logbus.windows.rows import definition_of, differences, in_words

CONNECTION_FIELDS = ("kafka_conn_id", "warehouse_conn_id")


class OverWindows:
    """Mixed into every operator over windows: its fields, and what follows from them."""

    registers: ClassVar[bool] = False  # whether it defines the pipeline, or only names the one it works on
    accepts_name: ClassVar[bool] = False  # whether `pipeline` may be the name of a registered one
    pipeline: Any  # a Pipeline; or the name of one, where an operator accepts that
    windows: Sequence[str] | None
    is_given_windows: bool  # None is then what another task returned, and does not mean the run's own window
    kafka_conn_id: str
    warehouse_conn_id: str
    log: Any
    _now: Callable[[], datetime]

    @cached_property
    def broker(self) -> BrokerHook:
        return BrokerHook(self.kafka_conn_id)

    @cached_property
    def warehouse(self) -> WarehouseHook:
        return WarehouseHook(self.warehouse_conn_id)

    def _register(self, ledger: Ledger, context: Mapping[str, Any], *, remembers: bool = True) -> None:
        """Registers the pipeline as this DAG defines it; an edit of the DAG changes the registration, and is logged."""
        # Tasks of one DAG would overwrite each other's definition of the pipeline, and each time it would look like an edit.
        dag, dag_id = context.get("dag"), context["ti"].dag_id
        for pipeline in (task.pipeline for task in (dag.tasks if dag else ()) if getattr(task, "registers", False)):
            if pipeline is self.pipeline or not isinstance(pipeline, model.Pipeline) or pipeline.name != self.pipeline.name:
                continue
            if wrong := differences(definition_of(self.pipeline), definition_of(pipeline)):
                raise errors.PipelineConflict(
                    f"tasks of this DAG define pipeline {pipeline.name} differently: {in_words(wrong)}. Give all of them the "
                    "same Pipeline"
                )
        done = ledger.define(self.pipeline, self.broker.log_offsets(), self._now(), dag_id=dag_id, remembers=remembers)
        for change in done.changes:
            self.log.info("This DAG changes the definition of pipeline %s: %s", self.pipeline.name, change)

    def _starts(self, context: Mapping[str, Any], also: Sequence[datetime] = ()) -> list[datetime]:
        """The starts of the windows to work on, in order: at least one, or the task is skipped."""
        with task_context.fail_without_retry():
            if self.windows is None and not self.is_given_windows:
                return sorted({task_context.run_interval(context).start, *also})
            task_context.validate_windows_text(self.windows)
            starts = sorted({*task_context.window_starts(self.windows), *also})
        return starts or self._skip_without_windows()

    def _skip_without_windows(self) -> NoReturn:
        raise AirflowSkipException("no window to work on: the task that provides `windows` returned none, or was skipped")


class BeginsLoad(OverWindows):
    """Mixed into the operators that begin attempts: which windows one application loads."""

    registers = True
    max_windows_per_application: int
    accept_other_records: bool | str
    fill_gaps: bool

    @property
    def _is_shared(self) -> bool:
        """Whether the application loads the windows of other runs as well."""
        return self.windows is None and self.max_windows_per_application > 1

    def _windows_to_load(self, ledger: Ledger, starts: Sequence[datetime], context: Context) -> list[model.Interval] | None:
        """Those that hold a record; None if another run's application has loaded all of them since this run was requested."""
        # Attempts begun after this try was requested, with this DAG's definition, are what it asked for.
        requested_at = asked_at(context["ti"]) if self._is_shared else None
        if requested_at and ledger.begun_since(self.pipeline.name, starts, requested_at, self.pipeline) == set(starts):
            self.log.info("Another run's application has loaded this hour since this run was requested")
            return None
        windows = ledger.windows_at(self.pipeline.name, starts)
        empty = [window.interval.start for window in windows if not window.needs_load]
        if empty:
            self.log.info("%d window(s) hold no record, which their boundaries prove", len(empty))
            ledger.end_attempts_at(self.pipeline.name, empty, f"run {context['run_id']} found the window empty", self._now())
        return [window.interval for window in windows if window.needs_load]

    def _windows_beside(self, ledger: Ledger, own: model.Interval, context: Context) -> tuple[list[datetime], list[datetime]]:
        """Windows that other runs of the DAG wait for, and those that no run is to load."""
        if not self._is_shared:
            return [], []
        room = self.max_windows_per_application - 1
        beside = Beside(
            ledger=ledger,
            log=self.broker.log_offsets(),
            pipeline_name=self.pipeline.name,
            own=own,
            now=self._now(),
            grid=self.pipeline.grid,
        )
        waiting = beside.hours(context, room)
        if waiting:
            self.log.info("%d other runs wait for their hours, which are loaded in the same application", len(waiting))
        if not self.fill_gaps:
            return waiting, []
        gaps = beside.missing_before(context, room - len(waiting), {own.start, *waiting})
        if gaps:
            self.log.info("%d hours before this one are missing and loaded with it: %s", len(gaps), ", ".join(map(str, gaps)))
        return waiting, gaps

    def _load_run(self, ledger: Ledger, context: Context) -> spark_submit.LoadRun:
        ti = context["ti"]
        return spark_submit.LoadRun(
            ledger=ledger,
            pipeline_name=self.pipeline.name,
            definition=self.pipeline,
            run_id=str(context["run_id"]),
            try_number=int(ti.try_number),
            # The pages link to its log, and show a pipeline to users who may see its DAG.
            task=model.TaskKey(dag_id=ti.dag_id, task_id=ti.task_id, map_index=ti.map_index if ti.map_index >= 0 else None),
            now=self._now,
            say=self.log.info,
        )


class ReportsLoad(OverWindows):
    """Mixed into the operators at whose end windows are loaded: what they return and announce."""

    outlets: Sequence[Any]
    _done: Sequence[datetime] = ()

    def _report(
        self, ledger: Ledger, starts: Sequence[datetime], context: Context, is_adopted: bool, waiting: Sequence[datetime] | None
    ) -> dict[str, Any]:
        """`filled` are windows that this run's attempts loaded, earlier tries included, and that neither it nor one of the runs
        `waiting` was for; none if `waiting` is None."""
        filled = set[datetime]()
        if waiting is not None:
            filled = ledger.unaudited_of_run(self.pipeline.name, context["ti"].dag_id, str(context["run_id"]))
            filled -= {*starts, *waiting}
        self._done = sorted({*starts, *filled})
        windows = ledger.windows_at(self.pipeline.name, starts)
        task_context.add_to_outlet_events(context, self.outlets, windows)
        return {
            **task_context.event_extra(windows),
            "adopted": is_adopted,
            "filled": [model.instant_text(start) for start in sorted(filled)],
        }

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Topic and table, how many rows. Called only by Airflow's OpenLineage provider, if installed."""
        from logbus import lineage

        ledger, topic = WarehouseHook(self.warehouse_conn_id).ledger(), self.pipeline.topic
        windows, table = ledger.windows_at(self.pipeline.name, self._done), sink_for(self.pipeline, ledger.engine).public_table()
        return lineage.of_load(lineage.topic_name(self.broker.client_config(), topic), table, windows)


class WindowOperator(OverWindows, BaseOperator):
    """Base of the operators that work on windows in the task itself (not through spark-submit).

    :param pipeline: the pipeline whose windows they are; the same for every operator of a DAG
    :param windows: their starts as ISO instants, as a list or as text (templated); by default the run's own data interval. If
        another task is to name them and names none, or was skipped, this one is skipped; an empty text is an error.
    :param kafka_conn_id: the connection of the broker, of the Kafka provider's type (templated)
    :param kafka_config_id: the same, by the name that the Kafka provider's operators have for it
    :param warehouse_conn_id: the connection of the warehouse, which also holds the ledger (templated)
    :param now: the clock; tests pass another one
    """

    operator_extra_links = (task_context.WindowLink(),)
    template_fields: Sequence[str] = ("windows", *CONNECTION_FIELDS)

    def __init__(
        self,
        *,
        pipeline: model.Pipeline | str,
        windows: Sequence[str] | None = None,
        kafka_conn_id: str = BrokerHook.default_conn_name,
        kafka_config_id: str | None = None,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        now: Callable[[], datetime] = model.utc_now,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(pipeline, model.Pipeline):
            pipeline_definition.check_pipeline(pipeline)
        elif not self.accepts_name or not isinstance(pipeline, str):
            raise task_context.not_a_pipeline(pipeline, type(self).__name__)
        self.pipeline = pipeline
        self.pipeline_name = pipeline if isinstance(pipeline, str) else pipeline.name
        self.windows = windows
        self.is_given_windows = windows is not None
        self.kafka_conn_id = kafka_config_id or kafka_conn_id
        self.warehouse_conn_id = warehouse_conn_id
        self._now = now


# -- the other runs of a DAG that wait at the same task: a backfill, many cleared hours, or a schedule that has to catch up ----
#
# Tasks cannot reach Airflow's database; the Execution API returns the states of task instances by logical date. A logical date
# does not say which window a run is for: a manual run is for the interval that ended there, and an interval need not be as long
# as ours (a day on which the clocks change, the night between working hours). A window frozen with another end than its own run
# asks for fails that run for ever. So each waiting run is looked up for its interval, and for hours without a run the timetable
# is asked.
#
# The first of them loads the windows of the others in its own Spark application, and the others find theirs loaded since they
# were requested. This is decided by the ledger and by the states Airflow returns. Tasks promise each other nothing, so a run
# that was counted on and never starts, or starts twice, changes nothing. An hour of another run that cannot be frozen, or that
# keeps failing, is left to its own run, which reports why.
#
# A scheduled run also loads hours that no other run would: earlier hours that are missing because their run failed, or was never
# created while the scheduler was down.

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
