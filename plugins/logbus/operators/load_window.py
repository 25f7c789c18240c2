"""Load frozen windows, one or many, by one Spark application.

The attempt is taken here, before spark-submit: the driver only verifies its number, so a slow first driver cannot fence out the
good second one, and a driver that outlives its task is refused at commit. The application gets windows and attempt numbers as
arguments; the warehouse's URL and the broker's configuration travel in its environment only, never on a command line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import psutil  # type: ignore[import-untyped]
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from logbus import spark_submit
from logbus.errors import LoadFailed, UserError
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.operators.adoption import Beside, is_committed, is_loaded_since_asked
from logbus.operators.window_operator import OverWindows, beyond_retry_fails_at_once
from logbus.triggers.window_closed import utc_now
from logbus.windows.ledger import Ledger
from logbus.windows.model import Attempt, FrozenWindow, Pipeline

POOL_DEFAULT = "logbus_load"  # one slot: two drivers beside each other only make both slow on one machine
WINDOWS_PER_APPLICATION_MAX = 84  # half a week of hours: one Spark job, and what is lost where its driver dies
ERROR_CHARACTERS_MAX = 4_000  # of a failure's text kept in the ledger; the task's log has all of it


class LoadWindowOperator(OverWindows, SparkSubmitOperator):
    """Load the run's window, or all of `windows`, exactly as they are frozen. A rerun replaces the rows by the same rows.

    Needs the pool `logbus_load` (a task in a missing pool is never scheduled): `airflow pools set logbus_load 1 "Spark loads"`.

    Where other runs of the DAG wait at this task (a backfill, a clear of many hours), the first of them loads their closed hours
    in its own application, and they find theirs loaded since they were asked for: 84 hours cost one start of Spark, not 84.

    :param max_windows_per_application: how many hours one application takes at the most; 1 keeps each run to its own.
    :param credentials_in_environment: hand the warehouse URL and the broker's configuration over as environment variables.
        On YARN and Kubernetes spark-submit would put them on its command line: mount LOGBUS_WAREHOUSE_URL and
        LOGBUS_KAFKA_CONFIG as secrets in the driver there and set this to False.

    Returns for each window of this run what was read, loaded and dead-lettered, and its fingerprint; and whether another run's
    application had loaded it.
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "windows")
    ui_color = "#fbe9d0"

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        windows: Sequence[str] | None = None,
        kafka_conn_id: str = BrokerHook.default_conn_name,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        max_windows_per_application: int = WINDOWS_PER_APPLICATION_MAX,
        credentials_in_environment: bool = True,
        now: Callable[[], datetime] = utc_now,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("application", str(spark_submit.application_path()))
        kwargs.setdefault("name", f"logbus load {pipeline.name}")
        kwargs.setdefault("pool", POOL_DEFAULT)
        kwargs.setdefault("driver_memory", spark_submit.LOCAL_DRIVER_MEMORY)
        super().__init__(conf={**spark_submit.conf(), **(kwargs.pop("conf", None) or {})}, **kwargs)
        self.pipeline = pipeline
        self.windows = windows
        self.kafka_conn_id = kafka_conn_id
        self.warehouse_conn_id = warehouse_conn_id
        self.max_windows_per_application = max_windows_per_application
        self.credentials_in_environment = credentials_in_environment
        self._now = now

    def execute(self, context: Context) -> dict[str, Any]:
        starts, warehouse = self._starts(context), self._warehouse()
        ledger = warehouse.ledger()
        with beyond_retry_fails_at_once():
            adopted = self._shares and is_loaded_since_asked(ledger, self.pipeline.name, starts, context)
            if adopted:
                self.log.info("Another run's application has loaded this hour since this run was asked for")
            else:
                self._load(warehouse, ledger, starts, context)
        return {**load_summary([ledger.window(self.pipeline.name, start) for start in starts]), "adopted": adopted}

    def on_kill(self) -> None:
        """End the whole application. Killing spark-submit alone leaves a Python driver running, which would be refused at
        commit but goes on reading and writing until then."""
        family = self._application_processes()
        super().on_kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    @property
    def _shares(self) -> bool:
        return self.windows is None and self.max_windows_per_application > 1

    def _load(self, warehouse: WarehouseHook, ledger: Ledger, starts: Sequence[datetime], context: Context) -> None:
        """One application for our windows and those of runs that wait beside us. It failed only if it failed ours."""
        beside = self._hours_beside(ledger, context)
        attempts = self._begin(ledger, [*starts, *beside], context)
        self.application_args = spark_submit.application_arguments(self.pipeline.name, attempts)
        try:
            with self._failure_recorded(ledger, attempts):
                self._hand_over_credentials(warehouse)
                self._submit(context)
        except LoadFailed as error:
            own = [attempt for attempt in attempts if attempt.interval.start in set(starts)]
            if not beside or not all(is_committed(ledger, attempt) for attempt in own):
                raise
            self.log.warning("Not all hours of other runs could be loaded beside ours; their own runs will tell: %s", error)

    def _hours_beside(self, ledger: Ledger, context: Context) -> list[datetime]:
        if not self._shares:
            return []
        beside = Beside(ledger=ledger, log=self._broker().log_offsets(), pipeline_name=self.pipeline.name, now=self._now())
        hours = beside.hours(context, self.max_windows_per_application - 1)
        if hours:
            self.log.info("%d other runs wait for their hours, which are loaded in the same application", len(hours))
        return hours

    def _begin(self, ledger: Ledger, starts: Sequence[datetime], context: Context) -> list[Attempt]:
        run_id, try_number = str(context["run_id"]), int(context["ti"].try_number)
        attempts = ledger.begin_attempts(self.pipeline.name, starts, run_id, try_number, self._now())
        self.log.info("Loading %d window(s), from %s to %s", len(attempts), attempts[0].token, attempts[-1].token)
        return attempts

    def _submit(self, context: Context) -> None:
        try:
            super().execute(context)
        except AirflowException as error:
            # The provider's message begins with the whole command, eighty windows long; what happened comes after it.
            tail = self._hook._submit_log_tail if self._hook is not None else ""
            raise LoadFailed(f"the Spark application failed{tail}" if tail else str(error)) from error

    @contextlib.contextmanager
    def _failure_recorded(self, ledger: Ledger, attempts: Sequence[Attempt]) -> Any:
        """A failed application leaves its reason in the ledger, beside the attempt it belongs to."""
        try:
            yield
        except Exception as error:
            ledger.fail_attempts(attempts, str(error)[-ERROR_CHARACTERS_MAX:], self._now())
            raise

    def _hand_over_credentials(self, warehouse: WarehouseHook) -> None:
        if not self.credentials_in_environment:
            return
        hook = self._hook = self._get_hook()
        if hook._is_yarn or hook._is_kubernetes:
            raise UserError(
                "on YARN and Kubernetes spark-submit puts environment variables on its command line, where anybody reads the "
                "warehouse's password: mount LOGBUS_WAREHOUSE_URL and LOGBUS_KAFKA_CONFIG as secrets in the driver and set "
                "credentials_in_environment=False"
            )
        hook._env_vars = {**(self.env_vars or {}), **spark_submit.environment(warehouse.url, self._broker().client_config())}

    def _application_processes(self) -> list[psutil.Process]:
        submitted = self._hook._submit_sp if self._hook is not None else None
        if submitted is None or submitted.poll() is not None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(submitted.pid).children(recursive=True))
        return []


def load_summary(windows: Sequence[FrozenWindow]) -> dict[str, Any]:
    """What the task returns: totals, then window by window."""
    counts = [window.counts for window in windows if window.counts is not None]
    return {
        "read": sum(count.read for count in counts),
        "loaded": sum(count.loaded for count in counts),
        "dead_lettered": sum(count.dead_lettered for count in counts),
        "windows": [window.summary() for window in windows],
    }
