"""What the operators of this package share: the pipeline, the two connections, and how a failure is reported.

Operators only assign in the constructor and act in `execute`. The windows of a run are its own data interval, or those that
`windows` lists (starts as ISO instants, or another task's output). A task that was given `windows` and finds none in it is
skipped, and never takes the run's own instead. Errors that a retry cannot fix fail the task at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, NoReturn

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from logbus import errors, links, model, pipeline_definition, spark_submit, task_context
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.loads.ledger import Ledger
from logbus.loads.sinks import sink_for
from logbus.operators import waiting_runs
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
        requested_at = waiting_runs.asked_at(context["ti"]) if self._is_shared else None
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
        beside = waiting_runs.Beside(
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

    operator_extra_links = (links.WindowLink(),)
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
