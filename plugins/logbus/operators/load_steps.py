"""A load whose application another operator runs, in two steps around it: decide which windows it loads and begin their attempts;
then what became of them, according to the ledger.

LoadWindowOperator does this before it submits the application itself. `BeginLoadOperator` does it for any other operator that
submits to Spark, where `VerifyLoadOperator` follows:

    begin = BeginLoadOperator(task_id="begin", pipeline=CLICKS)
    submit = SparkKubernetesOperator(...)  # or of EMR, Dataproc, Livy, Databricks; gets begin.output["arguments"]
    verify = VerifyLoadOperator(task_id="verify", pipeline=CLICKS, begun=begin.output)
    begin >> submit >> verify

What is passed on is no secret: names, instants and numbers.

LoadWindowOperator looks when the application that it submitted is over. `VerifyLoadOperator` looks after another operator has
submitted it, and waits where that operator did not: until each attempt is committed, failed or superseded, or its driver is no
longer heard of.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Context
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowFailException
from sqlalchemy import Engine

from logbus import errors, model, spark_submit, task_context
from logbus.hooks.warehouse import WarehouseHook
from logbus.loads import attempts as attempts_of
from logbus.loads.ledger import Ledger
from logbus.operators import window_operator
from logbus.sensors import window_sensor


class BeginLoadOperator(window_operator.BeginsLoad, window_operator.WindowOperator, SkipMixin):
    """Begin a load of the run's window, or of all of `windows`, that another operator submits and VerifyLoadOperator verifies.
    For Spark that LoadWindowOperator cannot submit to. From then on no earlier application can commit these windows.

    Returns `arguments`, which the other operator passes to the program `load_windows.py` (a list of words), and what
    VerifyLoadOperator takes as `begun`. If there is nothing to load (the windows hold no record, or another run's application
    has loaded them), the tasks directly after it are skipped, except VerifyLoadOperator.

    :param max_windows_per_application: how many hours one application loads at most, those of other runs that wait at this task
        included (84, half a week); 1 keeps each run to its own. Of `windows` it takes a thousand.
    :param accept_other_records: as of LoadWindowOperator (templated)
    :param fill_gaps: as of LoadWindowOperator
    :param max_task_bytes: as of LoadWindowOperator
    :param warehouse_connections: as of LoadWindowOperator
    """

    template_fields: Sequence[str] = (*window_operator.WindowOperator.template_fields, "accept_other_records")
    ui_color = "#fbe9d0"

    def __init__(
        self,
        *,
        max_windows_per_application: int = spark_submit.WINDOWS_PER_JOB_MAX,
        accept_other_records: bool | str = False,
        fill_gaps: bool = False,
        max_task_bytes: int = spark_submit.MAX_TASK_BYTES,
        warehouse_connections: int = spark_submit.WAREHOUSE_CONNECTIONS,
        **kwargs: Any,
    ) -> None:
        super().__init__(multiple_outputs=True, **kwargs)
        task_context.validate_count("max_windows_per_application", max_windows_per_application)
        self.max_windows_per_application = max_windows_per_application
        self.accept_other_records = accept_other_records
        self.fill_gaps = fill_gaps
        self.limits = spark_submit.TaskLimits(max_task_bytes=max_task_bytes, warehouse_connections=warehouse_connections)

    def execute(self, context: Context) -> Mapping[str, Any]:
        starts, ledger = self._starts(context), self.warehouse.ledger()
        with task_context.fail_without_retry():
            to_load = self._windows_to_load(ledger, starts, context)
            if len(to_load or ()) > spark_submit.WINDOWS_PER_APPLICATION_MAX:
                raise errors.TooManyWindows(
                    f"{len(to_load or ()):,} windows are more than the {spark_submit.WINDOWS_PER_APPLICATION_MAX:,} of one "
                    "application: give this task a part of them"
                )
            attempts: list[model.Attempt] = []
            waiting: list[datetime] = []
            if to_load:
                self._register(ledger, context)
                own = [interval.start for interval in to_load]
                waiting, gaps = self._windows_beside(ledger, to_load[0], context)
                accepted = own if task_context.is_true(self.accept_other_records) else ()
                attempts = self._load_run(ledger, context).begin(own, [*waiting, *gaps], accepted)
        begun = {
            "starts": [model.instant_text(start) for start in starts],
            "attempts": [attempt.token for attempt in attempts],
            "arguments": spark_submit.application_arguments(self.pipeline.name, attempts, self.limits),
            "waiting": [model.instant_text(start) for start in waiting],
            "adopted": to_load is None,
            "fills_gaps": self.fill_gaps and self._is_shared,
        }
        if not attempts:
            context["ti"].xcom_push(key="return_value", value=begun)  # what skips does not return
            after = [task for task in self.downstream_list if not isinstance(task, VerifyLoadOperator)]
            self.skip(context["ti"], after)
        return begun


# The second half of a load: what became of its windows, according to the ledger.


STARTUP_TIMEOUT_SECONDS = 3_600
FAILED_STATES = ("failed", "upstream_failed")


class VerifyLoadOperator(window_operator.ReportsLoad, window_operator.WindowOperator, window_sensor.LedgerSensor):
    """Verify a load that BeginLoadOperator began and another operator submitted: the ledger decides, whatever that operator
    reports. Fails with the driver's own error, or says which attempt took over; the windows are then loaded by clearing the task
    that began them.

    Waits while the application may still commit (`poke_interval`, `timeout`, `mode`, `deferrable` as of a sensor), unless the
    task before it has failed. It runs whatever became of that task (`trigger_rule`), and ends the attempts of an application
    that is over, so that nothing commits later than it returns.

    Returns what LoadWindowOperator returns.

    :param begun: what BeginLoadOperator returned: `begin.output` (templated)
    :param startup_timeout_seconds: how long the application may take until its driver reports for the first time: the queue of
        a cluster, pulling an image. A driver that has reported is given up after five minutes of silence.
    """

    template_fields: Sequence[str] = ("begun", *window_operator.CONNECTION_FIELDS)
    ui_color = "#fbe9d0"

    def __init__(
        self,
        *,
        begun: Mapping[str, Any],
        startup_timeout_seconds: float = STARTUP_TIMEOUT_SECONDS,
        trigger_rule: str = "all_done",
        **kwargs: Any,
    ) -> None:
        super().__init__(multiple_outputs=True, trigger_rule=trigger_rule, **kwargs)
        self.begun: Any = begun
        self.startup_timeout_seconds = startup_timeout_seconds

    def has_happened(self, context: Context) -> bool:
        self._validate_begun(context)
        if self._failed_before(context):
            return True
        return self.trigger_for(context).has_happened(self.warehouse.ledger().engine)

    def outcome(self, context: Context) -> dict[str, Any]:
        self._validate_begun(context)
        ledger, starts = self.warehouse.ledger(), task_context.window_starts(self.begun["starts"])
        with contextlib.suppress(errors.UserError):  # a run without an interval
            if starts != [task_context.run_interval(context).start]:
                self.windows = self.begun["starts"]  # for the link
        is_adopted = self.begun["adopted"]
        if self.begun["attempts"]:
            with ledger.engine.connect() as connection:
                attempts = attempts_of.find(connection, self.pipeline.name, self.begun["attempts"])
            self._end_silent(ledger, attempts, context)
            try:
                own = spark_submit.verify(ledger, attempts, starts, self._now(), self.log.info)
            except errors.LoadFailed as error:  # no later look finds more: only new attempts help
                raise AirflowFailException(str(error)) from error
            is_adopted = any(outcome.is_loaded_by_newer for outcome in own)
        waiting = task_context.window_starts(self.begun["waiting"]) if self.begun["fills_gaps"] else None
        return self._report(ledger, starts, context, is_adopted, waiting)

    def trigger_for(self, context: Context) -> LoadOverTrigger:
        return LoadOverTrigger(
            pipeline=self.pipeline.name,
            attempts=list(self.begun["attempts"]),
            startup_timeout_seconds=self.startup_timeout_seconds,
            warehouse_conn_id=self.warehouse_conn_id,
            poll_seconds=self.poke_interval,
            now=self._now,
        )

    def _end_silent(self, ledger: Ledger, attempts: Sequence[model.Attempt], context: Context) -> None:
        """Ends attempts that still run; those of `attempts` that have committed stay as they are."""
        failed = self._failed_before(context)
        reason = (
            f"the submission failed: task {', '.join(failed)}"
            if failed
            else f"no driver reported within {self.startup_timeout_seconds:.0f} s, or it has not been heard of since"
        )
        ledger.fail_attempts(attempts, reason, self._now())

    def _validate_begun(self, context: Context) -> None:
        if self.begun is None:
            failed = self._failed_before(context)
            if failed:
                raise AirflowFailException(f"no load was begun: task {', '.join(failed)} failed")
            self._skip_without_windows()

    def _failed_before(self, context: Context) -> list[str]:
        """The tasks directly before this one that have failed in this run."""
        before, run_id = sorted(self.upstream_task_ids), str(context["run_id"])
        if not before:
            return []
        states = context["ti"].get_task_states(dag_id=context["ti"].dag_id, task_ids=before, run_ids=[run_id])
        return [task_id for task_id, state in states.get(run_id, {}).items() if state in FAILED_STATES]


class LoadOverTrigger(window_sensor.LedgerTrigger):
    """Fires when none of these attempts of the pipeline (`START=NUMBER`) may still commit, or all have."""

    def __init__(
        self,
        *,
        pipeline: str,
        attempts: Sequence[str],
        startup_timeout_seconds: float = STARTUP_TIMEOUT_SECONDS,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        poll_seconds: float = window_sensor.POLL_SECONDS_DEFAULT,
        now: Callable[[], datetime] = model.utc_now,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.attempts = attempts
        self.startup_timeout_seconds = startup_timeout_seconds
        self.warehouse_conn_id = warehouse_conn_id
        self.poll_seconds = poll_seconds
        self._now = now

    def serialize(self) -> tuple[str, dict[str, Any]]:
        fields = ("pipeline", "attempts", "startup_timeout_seconds", "warehouse_conn_id", "poll_seconds")
        return ("logbus.operators.load_steps.LoadOverTrigger", {name: getattr(self, name) for name in fields})

    def has_happened(self, engine: Engine) -> bool:
        if not self.attempts:
            return True
        with engine.connect() as connection:
            attempts = attempts_of.find(connection, self.pipeline, self.attempts)
        startup_timeout = timedelta(seconds=self.startup_timeout_seconds)
        outcomes = attempts_of.outcomes_of(engine, attempts, self._now())
        return not any(outcome.may_commit(self._now(), startup_timeout) for outcome in outcomes)

    def event(self) -> dict[str, Any]:
        return {"pipeline": self.pipeline, "attempts": self.attempts}
