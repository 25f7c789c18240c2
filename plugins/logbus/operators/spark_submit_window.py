"""Spark applications over windows: secrets are passed in the environment of spark-submit and nowhere else, and the whole
application is ended on kill. What runs is a load (load_window.py), or any program of your own over exactly the offsets of the
run's window, or of those that a run was started for: only one run of the DAG gets each, however often it is announced.

`TakeWindowsOperator` is for DAGs scheduled by assets: those of WindowEventTrigger, or the tables for which `hourly_ingest` emits
events. The ledger decides which run a window belongs to; a rerun of that run gets it again. This is needed for two reasons. After
a crash of the triggerer an event may arrive twice. And Airflow creates one run for events that arrive close together, but leaves
an event that arrives while it creates the run to the next run, which may be an hour away: so a run also takes what its watcher
has announced since its first event.

The program can read its windows from three places: the environment variable LOGBUS_WINDOWS and the Spark setting
`spark.logbus.windows` hold the same JSON (logbus.windows.handover); `spark.logbus.topic`, `spark.logbus.startingOffsets` and
`spark.logbus.endingOffsets` can be passed to the Kafka connector as they are. A driver in a standalone cluster gets no
environment variables, so it has the settings only. A rerun gets the same offsets; if the topic was recreated since the windows
were frozen, or its log is another one, the task fails before the program begins. What the program writes is its own
responsibility: nothing here makes that exactly once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import psutil  # type: ignore[import-untyped]
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from logbus import errors, model, pipeline_definition, spark_submit, task_context
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.kafka.topics import OffsetLog
from logbus.loads.ledger import Ledger
from logbus.operators.window_operator import CONNECTION_FIELDS, OverWindows
from logbus.windows.handover import as_text, take, told_since

CLOCK_SKEW = timedelta(minutes=1)  # between Airflow's database, which dates events, and the triggerer, which dates announcements


class TakeWindowsOperator(BaseOperator):
    """Returns a list of the starts of the windows this run is to work on; skips downstream tasks if other runs have them all.

    :param consumer: the name for which each window is taken once; by default the id of this DAG
    """

    template_fields: Sequence[str] = ("consumer", "warehouse_conn_id")
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        consumer: str = "{{ dag.dag_id }}",
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        now: Callable[[], datetime] = model.utc_now,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._now = now
        self.consumer = consumer
        self.warehouse_conn_id = warehouse_conn_id

    def execute(self, context: Context) -> list[str]:
        engine, now = WarehouseHook(self.warehouse_conn_id).ledger().engine, self._now()
        events = [event for events in context["triggering_asset_events"].values() for event in events]
        with task_context.fail_without_retry():
            announced = windows_of_events(events)
        for (watcher, pipeline), since in _first_events(events).items():
            announced[pipeline] += told_since(engine, watcher, task_context.plain(since) - CLOCK_SKEW, now)
        taken = {
            start
            for pipeline, starts in announced.items()
            for start in take(engine, self.consumer, pipeline, starts, context["run_id"], now)
        }
        if not taken:
            raise AirflowSkipException("other runs of this DAG have taken every announced window")
        return [model.instant_text(start) for start in sorted(taken)]


def windows_of_events(events: Iterable[Any]) -> dict[str, list[datetime]]:
    """Starts of the announced windows by pipeline."""
    starts_by_pipeline: dict[str, list[datetime]] = {}
    for event in events:
        for pipeline, start in _windows_of_event(event.extra or {}):
            starts_by_pipeline.setdefault(pipeline, []).append(model.parse_instant(start))
    if not starts_by_pipeline:
        raise errors.WrongRequest(
            "no event that started this run names a window: schedule the DAG by assets whose events carry windows"
        )
    return starts_by_pipeline


def _windows_of_event(extra: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """An event of a WindowEventTrigger carries one window, that of a task the starts of all of its windows."""
    payload = extra.get("payload") or {}
    if "start" in payload:
        yield payload["pipeline"], payload["start"]
    yield from ((extra["pipeline"], start) for start in extra.get("starts", ()))


def _first_events(events: Iterable[Any]) -> dict[tuple[str, str], datetime]:
    """When the first event of each watcher arrived, by watcher and pipeline."""
    first: dict[tuple[str, str], datetime] = {}
    for event in events:
        payload = (event.extra or {}).get("payload") or {}
        if "watcher" in payload:
            key = (payload["watcher"], payload["pipeline"])
            first[key] = min(first.get(key, event.timestamp), event.timestamp)
    return first


# Spark applications over windows: secrets are passed in the environment of spark-submit and nowhere else, and the whole
# application is ended on kill. What runs is a load (load_window.py), or any program of your own over exactly the offsets of
# the run's window.


class SparkWindowOperator(OverWindows, SparkSubmitOperator):
    """Base of the operators that submit a Spark application over windows.

    Needs the pool `logbus_load` (a task in a missing pool is never scheduled): `logbus airflow setup` creates it, as does
    `airflow pools set logbus_load 1 "Spark loads"`. `pool` and `default_args` choose another, for mapped tasks as well.

    :param credentials_in_environment: pass secrets as environment variables. On YARN and Kubernetes spark-submit would put them
        on its command line: there, mount them as secrets in the driver and set this to False.
    :param durable: whether a try reconnects to the driver of an earlier try if the cluster manager still has it, as the Spark
        provider does by default (in cluster mode, where Airflow tracks the driver). By default each try here submits a new
        driver: a cleared task would otherwise find the finished one, and do nothing.
    """

    operator_extra_links = (task_context.WindowLink(),)
    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "windows", *CONNECTION_FIELDS)

    def __init__(
        self,
        *,
        windows: Sequence[str] | None = None,
        kafka_conn_id: str = BrokerHook.default_conn_name,
        kafka_config_id: str | None = None,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        credentials_in_environment: bool = True,
        durable: bool = False,
        pool: str = spark_submit.LOAD_POOL,
        driver_memory: str = spark_submit.LOCAL_DRIVER_MEMORY,
        conf: dict[str, Any] | None = None,
        now: Callable[[], datetime] = model.utc_now,
        **kwargs: Any,
    ) -> None:
        # Named parameters, not defaults put into kwargs: Airflow fills them from default_args, which win over ours.
        super().__init__(pool=pool, driver_memory=driver_memory, conf={**spark_submit.conf(), **(conf or {})}, **kwargs)
        self.windows = windows
        self.is_given_windows = windows is not None
        self.kafka_conn_id = kafka_config_id or kafka_conn_id
        self.warehouse_conn_id = warehouse_conn_id
        self.credentials_in_environment = credentials_in_environment
        # Set here, not passed to super(): the provider's parameter is `durable` since 6.2, was `reconnect_on_retry` in 6.1, and
        # did not exist before (each try submitted anew); Airflow before 3.3 warns about it. Each reads one or neither.
        self.durable = self.reconnect_on_retry = durable
        self._environment: Mapping[str, str] = {}
        self._now = now

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """For mapped tasks: the scheduler reads their pool here, before any of them is created."""
        operator = super().partial(**kwargs)
        operator.kwargs.setdefault("pool", spark_submit.LOAD_POOL)  # by now it has a pool of the author's, or of default_args
        return operator

    def on_kill(self) -> None:
        """Ends the whole application: the driver that this try submitted, and spark-submit with every process it started.

        Killing spark-submit alone leaves a Python driver running, which would be refused at commit but keeps reading and writing
        until then. This calls the hook, not the provider's operator: on YARN the operator uses the REST API even where only the
        `yarn` command can end the application, and leaves spark-submit running.
        """
        if self._hook is None:
            return
        family = self._application_processes()
        try:
            self._hook.on_kill()
        finally:
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def _submit(self, context: Context, environment: Mapping[str, str]) -> None:
        """Runs the application to its end, with these variables, secrets among them, in the environment of spark-submit.

        Each call makes a new hook, so on_kill never ends the driver of an earlier call.
        """
        self._hook, self._environment = None, environment
        try:
            super().execute(context)
        except AirflowException as error:
            # The provider's message begins with the whole command, eighty windows long; only then follows what happened.
            tail = self._hook._submit_log_tail if self._hook is not None else ""
            raise errors.LoadFailed(f"the Spark application failed{tail}" if tail else str(error)) from error
        except (RuntimeError, OSError) as error:  # the driver is reported as failed; no spark-submit, no answer
            raise errors.LoadFailed(f"the Spark application failed: {error}") from error

    def _validate_connection(self, environment: Mapping[str, str]) -> None:
        """Before anything is begun: `UserError` if the connection's master cannot run this, or would expose secrets."""
        self._environment = environment
        self._get_hook()

    def _get_hook(self) -> SparkSubmitHook:
        try:
            hook = super()._get_hook()
        except NameError:  # raised in the provider, for the Kubernetes client that it could not import
            raise errors.UserError(
                f"the connection {self._conn_id!r} names a Kubernetes master: install apache-airflow-providers-cncf-kubernetes, "
                "with which Airflow watches and ends drivers there"
            ) from None
        self._validate_master(hook)
        if self._environment and not hook._should_track_driver_status:  # a standalone cluster's driver would get none of them
            hook._env_vars = {**(self.env_vars or {}), **self._environment}
        return hook

    def _validate_master(self, hook: SparkSubmitHook) -> None:
        """Refuses what would fail only later: after attempts were begun, or with secrets on a command line anyone can read."""
        if hook._should_track_driver_status and self.application.endswith(".py"):
            raise errors.UserError(
                "Spark runs no Python program in cluster mode on a standalone cluster: set the deploy mode to client, in the "
                f"connection {self._conn_id!r} or by deploy_mode='client'"
            )
        if not self.credentials_in_environment:
            return
        names = " and ".join(_secret_names(self._environment))
        if hook._is_yarn or hook._is_kubernetes:
            raise errors.UserError(
                "on YARN and Kubernetes spark-submit puts environment variables on its command line, where anyone can read "
                f"passwords: mount {names} as secrets in the driver and set credentials_in_environment=False"
            )
        if hook._should_track_driver_status:
            raise errors.UserError(
                f"a standalone cluster gives its drivers no environment variables: set {names} where they run and "
                "credentials_in_environment=False"
            )

    @property
    def _is_in_cluster_mode(self) -> bool:
        return self._hook is not None and self._hook._connection["deploy_mode"] == "cluster"

    def _application_processes(self) -> list[psutil.Process]:
        submitted = self._hook._submit_sp if self._hook is not None else None
        if submitted is None or submitted.poll() is not None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(submitted.pid).children(recursive=True))
        return []


def _secret_names(environment: Mapping[str, str]) -> list[str]:
    """The variables of the secrets to pass; both, while that is unknown."""
    names = [spark_submit.WAREHOUSE_URL_VARIABLE, spark_submit.KAFKA_CONFIG_VARIABLE]
    return [name for name in names if name in environment] or names


class SparkSubmitWindowOperator(SparkWindowOperator):
    """Freeze the run's window (or all of `windows`) unless it is frozen, and pass its offsets to your own Spark program.

    Returns the starts of the windows, and of the first hundred their ranges and how many records they hold.

    :param pipeline: the name of a registered pipeline (templated), or a `Pipeline`, which is registered if necessary
    :param application: the program, as spark-submit takes it
    :param warehouse_in_environment: also pass LOGBUS_WAREHOUSE_URL, with its password. The broker's configuration is passed
        either way, in LOGBUS_KAFKA_CONFIG: it may hold a password too, so neither is if `credentials_in_environment` is False.
    """

    template_fields: Sequence[str] = (*SparkWindowOperator.template_fields, "pipeline_name")
    ui_color = "#f3e2f7"

    def __init__(
        self, *, pipeline: model.Pipeline | str, application: str, warehouse_in_environment: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(application=application, **kwargs)
        if isinstance(pipeline, model.Pipeline):
            pipeline_definition.check_pipeline(pipeline)
        elif not isinstance(pipeline, str):
            raise task_context.not_a_pipeline(pipeline, type(self).__name__)
        self.pipeline_name = pipeline if isinstance(pipeline, str) else pipeline.name
        self.registered_as = None if isinstance(pipeline, str) else pipeline
        self.warehouse_in_environment = warehouse_in_environment

    def execute(self, context: Context) -> dict[str, Any]:
        ledger, log = self.warehouse.ledger(), self.broker.log_offsets()
        with task_context.fail_without_retry():
            pipeline, windows = self._frozen(ledger, log, self._starts(context), context["ti"].dag_id)
            text = as_text(content := ledger.hand_over(pipeline, windows, log))
        self.conf: dict[str, Any] = {**(self.conf or {}), **_spark_settings(content, text)}
        self.log.info("Handing over %d window(s) of %s: %s", len(windows), pipeline.name, text)
        self._submit(context, self._handed_over(text))
        return {"pipeline": pipeline.name, **task_context.windows_extra([window.interval.start for window in windows], windows)}

    def _handed_over(self, windows: str) -> dict[str, str]:
        """The program's environment. The windows are no secret: anyone may see them on a command line."""
        handed = {spark_submit.WINDOWS_VARIABLE: windows}
        if not self.credentials_in_environment:
            return handed
        secrets = self.warehouse.url if self.warehouse_in_environment else None
        return {**spark_submit.environment(secrets, self.broker.client_config()), **handed}

    def _frozen(
        self, ledger: Ledger, log: OffsetLog, starts: Sequence[datetime], dag_id: str
    ) -> tuple[model.Pipeline, list[model.FrozenWindow]]:
        now = self._now()
        if self.registered_as is not None:
            ledger.define(self.registered_as, log, now, dag_id=dag_id, remembers=False)
        pipeline = ledger.pipeline(self.pipeline_name)
        return pipeline, [ledger.freeze_or_get(pipeline.name, pipeline.grid.window(start), log, now) for start in starts]


def _spark_settings(content: dict[str, Any], text: str) -> dict[str, str]:
    """The same as Spark settings, which reach the driver on any kind of cluster."""
    names = ("topic", "startingOffsets", "endingOffsets")
    single = {f"spark.logbus.{name}": content[name] for name in names if content[name] is not None}
    return {"spark.logbus.windows": text, **single}
