"""Load frozen windows, one or many, for the first time or again, with one Spark application (`logbus.spark_submit`).

The application gets windows and attempt numbers as arguments; the warehouse's URL and the broker's configuration are passed in
its environment only, never on a command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from airflow.sdk import Context

from logbus import errors, model, pipeline_definition, resident_driver, spark_submit, task_context
from logbus.loads.ledger import Ledger
from logbus.operators import audit, freeze_window, spark_submit_window, window_operator
from logbus.status import replay
from logbus.status.replay import Span

RESIDENT_NAME = "logbus loads"  # of the Spark application, whichever pipelines it loads


class LoadWindowOperator(window_operator.BeginsLoad, window_operator.ReportsLoad, spark_submit_window.SparkWindowOperator):
    """Load the run's window, or all of `windows`, exactly as frozen. A rerun replaces the rows with the same rows.

    If other runs of the DAG wait at this task (a backfill, many cleared hours), the first of them loads their closed hours in its
    own application, and the others find theirs loaded since they were requested: 84 hours start Spark once, not 84 times.

    Returns what was read, loaded and dead-lettered, in `starts` the windows of this run, and in `windows` the first hundred of
    them with counts and fingerprint; in `adopted` whether another run's application loaded it; and in `filled`, for the audit,
    the starts of windows that this run loaded although no run was waiting for them.

    :param max_windows_per_application: how many hours one application loads at most (84, half a week); 1 keeps each run to its
        own.
    :param accept_other_records: load a window again although the log now holds other records than it was loaded from (compaction,
        a restored log); otherwise the task fails at once and the window keeps its rows. The ledger shows it forever. Templated,
        so that a single run can set it: `"{{ params.accept_other_records }}"`.
    :param fill_gaps: a scheduled run also loads the closed windows before its own that are missing because their run failed, or
        was never created while the scheduler was down
    :param max_task_bytes: how much of the log one Spark task reads at most (128 MiB), and repeats if it fails
    :param warehouse_connections: how many Spark tasks append to the warehouse at once (32), each over a connection of its own
    :param driver_idle_timeout: a timedelta: the Spark driver stays where this task ran, and does the loads that come next there,
        of any pipeline with the same setting, connections and Spark settings, until none has come for so long. They then need
        no start of Spark, which is most of what a small window costs; in return the driver keeps its memory, half a gigabyte
    """

    template_fields: Sequence[str] = (*spark_submit_window.SparkWindowOperator.template_fields, "accept_other_records")
    verb: ClassVar[str] = "load"  # in the name of the Spark application
    ui_color = "#fbe9d0"

    def __init__(
        self,
        *,
        pipeline: model.Pipeline,
        max_windows_per_application: int = spark_submit.WINDOWS_PER_JOB_MAX,
        accept_other_records: bool | str = False,
        fill_gaps: bool = False,
        max_task_bytes: int = spark_submit.MAX_TASK_BYTES,
        warehouse_connections: int = spark_submit.WAREHOUSE_CONNECTIONS,
        driver_idle_timeout: timedelta | None = None,
        application: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(pipeline, model.Pipeline):
            raise task_context.not_a_pipeline(pipeline, type(self).__name__)
        task_context.validate_count("max_windows_per_application", max_windows_per_application)
        super().__init__(
            application=application or str(spark_submit.application_path()),
            name=name or f"logbus {self.verb} {pipeline.name}",
            **kwargs,
        )
        pipeline_definition.check_pipeline(pipeline)
        if self.durable:
            raise errors.UserError(
                f"durable=True does not work for a load (task {self.task_id}): each try supersedes the driver of the try "
                "before it, and reconnecting to that one would be waiting for a load that may no longer commit. Leave it out"
            )
        self.pipeline = pipeline
        self._run: spark_submit.LoadRun | None = None
        self.max_windows_per_application = max_windows_per_application
        self.accept_other_records = accept_other_records
        self.fill_gaps = fill_gaps
        is_span = isinstance(driver_idle_timeout, timedelta) and driver_idle_timeout > timedelta(0)
        if driver_idle_timeout is not None and not is_span:
            raise errors.UserError(f"driver_idle_timeout is a timedelta of more than 0, not {driver_idle_timeout!r}")
        self.driver_idle_timeout = driver_idle_timeout
        self._driver: resident_driver.ResidentDriver | None = None
        self.limits = spark_submit.TaskLimits(max_task_bytes=max_task_bytes, warehouse_connections=warehouse_connections)

    def execute(self, context: Context) -> dict[str, Any]:
        starts, ledger = self._starts(context), self.warehouse.ledger()
        with task_context.fail_without_retry():
            to_load = self._windows_to_load(ledger, starts, context)
            waiting, is_by_newer = self._load(ledger, to_load, context) if to_load is not None else ([], True)
        return self._report(ledger, starts, context, is_by_newer, waiting if self.fill_gaps and self._is_shared else None)

    def on_kill(self) -> None:
        """Ends the application and its attempts.

        In cluster mode the attempts end first: Airflow kills the task itself after five seconds, a cluster manager may take
        longer to answer, and a driver that the request does not reach must not commit. Local processes end at once.
        """
        if self._driver is not None:
            self._driver.abandon()
        steps = [super().on_kill, self._end_attempts]
        first, second = reversed(steps) if self._is_in_cluster_mode else steps
        try:
            first()
        finally:
            second()

    def _end_attempts(self) -> None:
        if self._run is not None:
            self._run.end("the task was ended while it loaded")

    def _load(self, ledger: Ledger, intervals: Sequence[model.Interval], context: Context) -> tuple[list[datetime], bool]:
        """Loads our windows, and with them those of other waiting runs. The task fails only if ours are not loaded.

        Returns the windows that other runs wait for, and whether a newer attempt has loaded one of ours: it began after our
        request, so it counts as ours.
        """
        environment: dict[str, str] = {}
        if self.credentials_in_environment:
            environment = spark_submit.environment(self.warehouse.url, self.broker.client_config())
        self._validate_connection(environment)
        self._register(ledger, context)  # as the freeze did: if only the load is cleared, an edit of the DAG still applies

        def submit(attempts: Sequence[model.Attempt]) -> None:
            self.application_args = spark_submit.application_arguments(self.pipeline.name, attempts, self.limits)
            self.log.info("Loading %d window(s), from %s to %s", len(attempts), attempts[0].token, attempts[-1].token)
            # A parser of the user's own is imported anew by each load: an edit counts from the next on.
            may_stay = self.driver_idle_timeout is not None and not pipeline_definition.is_own_parser(self.pipeline.parse)
            if not may_stay or not self._is_loaded_by_resident(environment):
                self._submit(context, environment)

        self._run = self._load_run(ledger, context)
        accepts_others = task_context.is_true(self.accept_other_records)
        waiting: list[datetime] = []
        is_by_newer = False
        for group in spark_submit.in_groups(intervals):
            starts = [interval.start for interval in group]
            waiting, gaps = self._windows_beside(ledger, group[0], context)
            loaded = self._run.load(submit, starts, [*waiting, *gaps], starts if accepts_others else ())
            is_by_newer = is_by_newer or any(outcome.is_loaded_by_newer for outcome in loaded)
        return waiting, is_by_newer

    def _is_loaded_by_resident(self, environment: Mapping[str, str]) -> bool:
        """Has the driver that stays load the attempts. False if it is at work for another task."""
        assert self.driver_idle_timeout is not None, "only a driver that may wait for work stays"
        self._driver = resident_driver.ResidentDriver(
            command=self._resident_command,
            environment={**(self.env_vars or {}), **environment},
            idle_seconds=self.driver_idle_timeout.total_seconds(),
        )
        try:
            return self._driver.load(self.application_args, self.log.info)
        finally:
            self._driver = None

    def _resident_command(self, arguments: Sequence[str]) -> list[str]:
        hook = self._get_hook()
        if hook._connection["deploy_mode"] == "cluster":
            raise errors.UserError(
                f"driver_idle_timeout needs a driver on the machine of the task: the connection {self._conn_id!r} has the deploy "
                "mode cluster. Leave it out, or set deploy_mode='client'"
            )
        hook._name, hook._application_args = RESIDENT_NAME, list(arguments)
        return hook._build_spark_submit_command(self.application)


class IngestWindowOperator(freeze_window.FreezesWindow, audit.AuditsWindows, LoadWindowOperator):
    """Freeze the run's window, load it and audit it, in one task: each further task of a run costs seconds until it works.

    It does what FreezeWindowOperator, LoadWindowOperator and AuditWindowOperator do, and takes what the second of them takes.

    A try that failed after the window was loaded, at the audit, is repeated from there: a table that does not hold what was
    loaded into it is not quietly loaded again. For that, clear the task.

    Returns what LoadWindowOperator returns, and in `audited` how many windows were. Its success is an event of its outlets, for
    which there is `logbus.assets.outlets(pipeline)`.
    """

    verb = "ingest"

    def __init__(self, *, pipeline: model.Pipeline, **kwargs: Any) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.pipeline_name = pipeline.name
        if self.is_given_windows:
            raise errors.UserError(
                f"{type(self).__name__} works on the window of its run: for others, FreezeClosedWindowsOperator, "
                "LoadWindowOperator and AuditWindowOperator take `windows`"
            )

    def execute(self, context: Context) -> dict[str, Any]:
        self._defer_until_closed(context, self.resume)
        return self.resume(context)

    def resume(self, context: Context, event: dict[str, Any] | None = None) -> dict[str, Any]:
        """Once the hour is closed, after the trigger has fired if there was one."""
        window = self._freeze(context)
        done = super().execute(context)
        starts = sorted({window.interval.start, *task_context.window_starts(done["filled"])})
        return {**done, "audited": len(self._audit(context, starts))}

    def _windows_to_load(self, ledger: Ledger, starts: Sequence[datetime], context: Context) -> list[model.Interval] | None:
        ti = context["ti"]
        # Airflow raises max_tries by the number of retries whenever the task is cleared.
        first_try = int(ti.max_tries) - int(self.retries) + 1
        if ledger.loaded_by_tries(self.pipeline, starts, ti.dag_id, str(context["run_id"]), first_try) == set(starts):
            self.log.info("An earlier try of this task has loaded the window")
            return None
        return super()._windows_to_load(ledger, starts, context)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Of the load, and whether the table is exact. Called only by Airflow's OpenLineage provider, if installed."""
        return super().get_openlineage_facets_on_complete(task_instance).merge(self._audit_lineage())

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """What an audit found that failed."""
        return self._audit_lineage()


class ReplayOperator(LoadWindowOperator):
    """Load the frozen windows between `since` and `until` again (or those of `windows`), with one Spark application.

    Logs what it replaces. Fails before it loads anything if records of a window are gone, or another run is at work on one.

    Returns what LoadWindowOperator returns, and `starts` for downstream tasks.

    :param since: windows that end after this instant; templated, as is `until`: windows that begin before it.
    :param skip_lost: leave out windows of which retention has deleted records.
    :param supersede: take over from other runs, whose attempts can then no longer commit.
    """

    template_fields: Sequence[str] = (*LoadWindowOperator.template_fields, "since", "until")
    verb = "replay"

    def __init__(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        skip_lost: bool = False,
        supersede: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(multiple_outputs=True, **kwargs)
        self.since = since
        self.until = until
        self.skip_lost = skip_lost
        self.supersede = supersede

    def execute(self, context: Context) -> dict[str, Any]:
        ledger, log = self.warehouse.ledger(), self.broker.log_offsets()
        with task_context.fail_without_retry():
            plan = replay.plan(ledger, log, self.pipeline.name, self._span(), self._now(), str(context["run_id"]))
            accepted = task_context.is_true(self.accept_other_records)
            starts = plan.starts(skip_lost=self.skip_lost, supersede=self.supersede, accept_other_records=accepted)
        for window in plan.windows:
            lost = f"; left out, deleted: {', '.join(window.lost)}" if window.lost else ""
            self.log.info("%s: %d rows are replaced%s", model.instant_text(window.start), window.rows_replaced, lost)
        self.windows = [model.instant_text(start) for start in starts]
        return {**super().execute(context), "starts": self.windows}

    def _span(self) -> Span:
        if self.is_given_windows and not self.windows and not isinstance(self.windows, str):
            self._skip_without_windows()
        starts = tuple(task_context.window_starts(self.windows))
        return Span(
            since=task_context.optional_instant("since", self.since),
            until=task_context.optional_instant("until", self.until),
            starts=starts,
        )
