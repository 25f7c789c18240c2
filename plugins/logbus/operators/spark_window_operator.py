"""What operators share that hand windows to a Spark application: secrets by environment, the whole application ended on kill.

What anyone may see travels on the command line; passwords travel in the environment of spark-submit and nowhere else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
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
from logbus.links import WindowLink
from logbus.operators.window_operator import CONNECTION_FIELDS, OverWindows
from logbus.triggers.window_closed import utc_now

POOL_DEFAULT = "logbus_load"  # one slot: two drivers beside each other only make both slow on one machine


class SparkWindowOperator(OverWindows, SparkSubmitOperator):
    """Base of the operators that submit a Spark application over windows.

    Needs the pool `logbus_load` (a task in a missing pool is never scheduled): `logbus airflow setup` makes it, or
    `airflow pools set logbus_load 1 "Spark loads"`.

    :param credentials_in_environment: hand secrets over as environment variables. On YARN and Kubernetes spark-submit would put
        them on its command line: mount them as secrets in the driver there and set this to False.
    """

    operator_extra_links = (WindowLink(),)
    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "windows", *CONNECTION_FIELDS)

    def __init__(
        self,
        *,
        windows: Sequence[str] | None = None,
        kafka_conn_id: str = BrokerHook.default_conn_name,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        credentials_in_environment: bool = True,
        now: Callable[[], datetime] = utc_now,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("pool", POOL_DEFAULT)
        kwargs.setdefault("driver_memory", spark_submit.LOCAL_DRIVER_MEMORY)
        super().__init__(conf={**spark_submit.conf(), **(kwargs.pop("conf", None) or {})}, **kwargs)
        self.windows = windows
        self.kafka_conn_id = kafka_conn_id
        self.warehouse_conn_id = warehouse_conn_id
        self.credentials_in_environment = credentials_in_environment
        self._now = now

    def on_kill(self) -> None:
        """End the whole application. Killing spark-submit alone leaves a Python driver running, which would be refused at
        commit but goes on reading and writing until then."""
        family = self._application_processes()
        super().on_kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _submit(self, context: Context) -> None:
        try:
            super().execute(context)
        except AirflowException as error:
            # The provider's message begins with the whole command, eighty windows long; what happened comes after it.
            tail = self._hook._submit_log_tail if self._hook is not None else ""
            raise LoadFailed(f"the Spark application failed{tail}" if tail else str(error)) from error

    def _hand_over(self, environment: Mapping[str, str]) -> None:
        """Puts these variables, secrets among them, into the environment of spark-submit."""
        hook = self._hook = self._get_hook()
        if hook._is_yarn or hook._is_kubernetes:
            raise UserError(
                "on YARN and Kubernetes spark-submit puts environment variables on its command line, where anybody reads "
                f"passwords: mount {' and '.join(secrets_of(environment))} as secrets in the driver and set "
                "credentials_in_environment=False"
            )
        hook._env_vars = {**(self.env_vars or {}), **environment}

    def _application_processes(self) -> list[psutil.Process]:
        submitted = self._hook._submit_sp if self._hook is not None else None
        if submitted is None or submitted.poll() is not None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(submitted.pid).children(recursive=True))
        return []


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    return [name for name in (spark_submit.WAREHOUSE_URL_VARIABLE, spark_submit.KAFKA_CONFIG_VARIABLE) if name in environment]
