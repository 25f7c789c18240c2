"""Load frozen windows, one or many, with one Spark application.

The attempt number is taken here, before spark-submit; the driver only verifies it. So a slow first driver cannot fence out the
good second one, and a driver that outlives its task is refused at commit. The application gets windows and attempt numbers as
arguments; the warehouse's URL and the broker's configuration are passed in its environment only, never on a command line.

Whether the load succeeded is read from the ledger, not from spark-submit or a cluster manager: those report only that a driver
has ended, and some of them report the driver of an earlier try.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, ClassVar

from airflow.sdk import Context

from logbus import spark_submit
from logbus.assets import event_extra, tell_outlets
from logbus.errors import AttemptSuperseded, LoadFailed, UserError
from logbus.ledger.ledger import Ledger
from logbus.ledger.standing import Standing, why_not_loaded
from logbus.lineage import load_lineage
from logbus.model import Attempt, FrozenWindow, Pipeline, instant_text
from logbus.operators.adoption import Beside, is_loaded_since_asked
from logbus.operators.spark_window_operator import SparkWindowOperator
from logbus.operators.window_operator import fail_without_retry, is_true, no_pipeline, refuse_no_count, task_key
from logbus.pipeline_checks import check_pipeline

WINDOWS_PER_APPLICATION_MAX = 84  # half a week of hours: one Spark job, and all that is lost if its driver dies
WINDOWS_PER_COMMAND_MAX = 1_000  # of a catch-up: attempts are passed on a command line, whose length is limited
ERROR_CHARACTERS_MAX = 4_000  # of a failure's text kept in the ledger; the task's log has all of it


class LoadWindowOperator(SparkWindowOperator):
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
    """

    template_fields: Sequence[str] = (*SparkWindowOperator.template_fields, "accept_other_records")
    registers = True
    verb: ClassVar[str] = "load"  # in the name of the Spark application
    ui_color = "#fbe9d0"

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        max_windows_per_application: int = WINDOWS_PER_APPLICATION_MAX,
        accept_other_records: bool | str = False,
        fill_gaps: bool = False,
        application: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(pipeline, Pipeline):
            raise no_pipeline(pipeline, type(self).__name__)
        refuse_no_count("max_windows_per_application", max_windows_per_application)
        super().__init__(
            application=application or str(spark_submit.application_path()),
            name=name or f"logbus {self.verb} {pipeline.name}",
            **kwargs,
        )
        check_pipeline(pipeline)
        if self.durable:
            raise UserError(
                f"durable=True is not for a load (task {self.task_id}): each try takes its windows over from the driver of the "
                "try before, and to reconnect to that one is to wait for a load that may not commit any more. Leave it out"
            )
        self.pipeline = pipeline
        self._under_way: tuple[Ledger, Sequence[Attempt]] | None = None
        self.max_windows_per_application = max_windows_per_application
        self.accept_other_records = accept_other_records
        self.fill_gaps = fill_gaps
        self._beside: Sequence[datetime] = ()

    def execute(self, context: Context) -> dict[str, Any]:
        starts, ledger = self._starts(context), self.warehouse.ledger()
        with fail_without_retry():
            adopted = self._shares and is_loaded_since_asked(ledger, self.pipeline, starts, context)
            if adopted:
                self.log.info("Another run's application has loaded this hour since this run was asked for")
            else:
                groups = range(0, len(starts), WINDOWS_PER_COMMAND_MAX)
                done = [self._load(ledger, starts[begin : begin + WINDOWS_PER_COMMAND_MAX], context) for begin in groups]
                adopted = any(done)
        windows = [ledger.window(self.pipeline.name, start) for start in starts]
        filled = self._filled(ledger, starts, context)
        tell_outlets(context, self.outlets, windows)
        return {**load_summary(windows), "adopted": adopted, "filled": [instant_text(start) for start in filled]}

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Topic and table. Called only by Airflow's OpenLineage provider, if installed."""
        return load_lineage(self.broker.client_config(), self.warehouse.url, self.pipeline)

    @property
    def _shares(self) -> bool:
        return self.windows is None and self.max_windows_per_application > 1

    def on_kill(self) -> None:
        """Ends the application and its attempts.

        In cluster mode the attempts end first: Airflow kills the task itself after five seconds, a cluster manager may take
        longer to answer, and a driver that the request does not reach must not commit. Local processes end at once.
        """
        steps = [super().on_kill, self._end_attempts]
        first, second = reversed(steps) if self._is_in_cluster_mode else steps
        try:
            first()
        finally:
            second()

    def _end_attempts(self) -> None:
        if self._under_way is not None:
            ledger, attempts = self._under_way
            ledger.fail_attempts(attempts, "the task was ended while it loaded", self._now())

    def _load(self, ledger: Ledger, starts: Sequence[datetime], context: Context) -> bool:
        """Runs one application for our windows and those of other waiting runs. The load failed only if ours are not loaded.

        Returns whether a newer attempt than ours has loaded one of them: it began after our request, so it counts as ours.
        """
        environment = self._secrets()
        self._refuse_early(environment)
        self._beside = self._hours_beside(ledger, context)
        beside = [*self._beside, *self._gaps_before(ledger, [*starts, *self._beside], context)]
        attempts = self._begin(ledger, [*starts, *beside], context, starts if is_true(self.accept_other_records) else ())
        self.application_args = spark_submit.application_arguments(self.pipeline.name, attempts)
        failure: LoadFailed | None = None
        try:
            with self._failure_recorded(ledger, attempts):
                self._submit(context, environment)
        except LoadFailed as error:
            failure = error
        own = [standing for standing in ledger.settle_attempts(attempts, self._now()) if standing.start in set(starts)]
        self._raise_unless_loaded(ledger, own, failure)
        return any(standing.is_loaded_by_newer for standing in own)

    def _raise_unless_loaded(self, ledger: Ledger, own: Sequence[Standing], failure: LoadFailed | None) -> None:
        """The ledger decides whether our windows are loaded; `failure` is what spark-submit reported."""
        missing = why_not_loaded(own)
        if missing is not None:
            if final := ledger.beyond_retry([standing.attempt for standing in own]):
                raise final from failure
            raise failure if failure and not isinstance(missing, AttemptSuperseded) else missing
        if failure is not None:
            self.log.warning("What this task was to load is loaded; the application failed all the same: %s", failure)
        for standing in own:
            if standing.is_loaded_by_newer:
                self.log.info("Attempt %d took over from ours and has loaded it: %s", standing.newest, standing.attempt.token)

    def _secrets(self) -> dict[str, str]:
        if not self.credentials_in_environment:
            return {}
        return spark_submit.environment(self.warehouse.url, self.broker.client_config())

    def _hours_beside(self, ledger: Ledger, context: Context) -> list[datetime]:
        if not self._shares:
            return []
        beside = Beside(ledger=ledger, log=self.broker.log_offsets(), pipeline_name=self.pipeline.name, now=self._now())
        hours = beside.hours(context, self.max_windows_per_application - 1)
        if hours:
            self.log.info("%d other runs wait for their hours, which are loaded in the same application", len(hours))
        return hours

    def _gaps_before(self, ledger: Ledger, taken: Sequence[datetime], context: Context) -> list[datetime]:
        if not self._fills:
            return []
        beside = Beside(ledger=ledger, log=self.broker.log_offsets(), pipeline_name=self.pipeline.name, now=self._now())
        hours = beside.missing_before(context, self.max_windows_per_application - len(taken), set(taken))
        if hours:
            self.log.info("%d hours before this one are missing and loaded with it: %s", len(hours), ", ".join(map(str, hours)))
        return hours

    @property
    def _fills(self) -> bool:
        return self.fill_gaps and self._shares

    def _filled(self, ledger: Ledger, starts: Sequence[datetime], context: Context) -> list[datetime]:
        """Windows that this run's attempts loaded, earlier tries included, but that neither it nor a waiting run was for."""
        if not self._fills:
            return []
        loaded = ledger.unaudited_of_run(self.pipeline.name, context["ti"].dag_id, str(context["run_id"]))
        return sorted(loaded - {*starts, *self._beside})

    def _begin(
        self, ledger: Ledger, starts: Sequence[datetime], context: Context, accepted: Sequence[datetime] = ()
    ) -> list[Attempt]:
        run_id, try_number = str(context["run_id"]), int(context["ti"].try_number)
        self._register(ledger, context)  # as the freeze did: if only the load is cleared, an edit of the DAG still applies
        task, now = task_key(context), self._now()
        attempts = ledger.begin_attempts(
            self.pipeline.name, starts, run_id, try_number, now, task, self.pipeline, accept_other_records=accepted
        )
        self.log.info("Loading %d window(s), from %s to %s", len(attempts), attempts[0].token, attempts[-1].token)
        return attempts

    @contextlib.contextmanager
    def _failure_recorded(self, ledger: Ledger, attempts: Sequence[Attempt]) -> Iterator[None]:
        """Stores why the application failed in the ledger, with its attempts."""
        self._under_way = ledger, attempts
        try:
            yield
        except BaseException as error:  # Airflow's timeout is not an Exception
            ledger.fail_attempts(attempts, str(error)[-ERROR_CHARACTERS_MAX:], self._now())
            raise
        finally:
            self._under_way = None


def load_summary(windows: Sequence[FrozenWindow]) -> dict[str, Any]:
    """What the task returns: totals, the starts of all windows, and details of the first ones."""
    return {"read": sum(window.counts.read for window in windows if window.counts is not None), **event_extra(windows)}
