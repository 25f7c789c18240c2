"""What the operators of this package share: the pipeline, the two connections, and how a failure is told.

Operators assign in the constructor and act in `execute`. The windows of a run are its own data interval, or those that `windows`
lists (starts as ISO instants, or another task's output). Errors that no retry can mend fail the task at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from logbus.errors import (
    ErrorBudgetExceeded,
    PipelineConflict,
    RecordsLost,
    TooManyWindows,
    TopicRecreated,
    UserError,
    WindowOverlap,
)
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.links import WindowLink
from logbus.run_interval import run_interval
from logbus.triggers.window_closed import utc_now
from logbus.windows.model import Pipeline, TaskKey, parse_instant

CONNECTION_FIELDS = ("kafka_conn_id", "warehouse_conn_id")
BEYOND_RETRY = (RecordsLost, TopicRecreated, PipelineConflict, WindowOverlap, ErrorBudgetExceeded, TooManyWindows)


class OverWindows:
    """Mixed into every operator over windows: its fields, and what follows from them."""

    pipeline: Any  # a Pipeline; or the name of one, where an operator takes that
    windows: Sequence[str] | None
    kafka_conn_id: str
    warehouse_conn_id: str

    def _broker(self) -> BrokerHook:
        return BrokerHook(self.kafka_conn_id)

    def _warehouse(self) -> WarehouseHook:
        return WarehouseHook(self.warehouse_conn_id)

    def _starts(self, context: Mapping[str, Any]) -> list[datetime]:
        """The starts of the windows to work on, in order."""
        return [run_interval(context).start] if self.windows is None else window_starts(self.windows)


class WindowOperator(OverWindows, BaseOperator):
    """Base of the operators that work on windows by themselves (not through spark-submit).

    :param pipeline: whose windows; every operator of a DAG is given the same
    :param windows: their starts as ISO instants, a list or a text of them (templated); by default the run's own data interval
    :param kafka_conn_id: the broker's connection, of the Kafka provider's type (templated)
    :param warehouse_conn_id: the connection of the warehouse, where the ledger is, too (templated)
    :param now: the clock; tests give another
    """

    operator_extra_links = (WindowLink(),)
    template_fields: Sequence[str] = ("windows", *CONNECTION_FIELDS)

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        windows: Sequence[str] | None = None,
        kafka_conn_id: str = BrokerHook.default_conn_name,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        now: Callable[[], datetime] = utc_now,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.windows = windows
        self.kafka_conn_id = kafka_conn_id
        self.warehouse_conn_id = warehouse_conn_id
        self._now = now


def task_key(context: Mapping[str, Any]) -> TaskKey:
    """The task that runs, for the ledger: its pages lead to the log, and show a pipeline to those who may see the DAG."""
    ti = context["ti"]
    return TaskKey(dag_id=ti.dag_id, task_id=ti.task_id, map_index=ti.map_index if ti.map_index >= 0 else None)


def window_starts(windows: Sequence[str] | str) -> list[datetime]:
    """Instants out of a list, or out of the text a template renders to (separated by commas or blanks)."""
    words = windows.replace(",", " ").split() if isinstance(windows, str) else windows
    try:
        return sorted({parse_instant(word) for word in words})
    except ValueError as error:
        raise UserError(f"windows are the starts of hours, such as 2015-05-17T10:00:00Z: {error}") from None


@contextlib.contextmanager
def beyond_retry_fails_at_once() -> Iterator[None]:
    """Retrying a lost record or a recreated topic only hides it for an hour."""
    try:
        yield
    except BEYOND_RETRY as error:
        raise AirflowFailException(str(error)) from error
