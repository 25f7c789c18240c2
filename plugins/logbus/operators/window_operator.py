"""What the operators of this package share: the pipeline, the two connections, and how a failure is reported.

Operators only assign in the constructor and act in `execute`. The windows of a run are its own data interval, or those that
`windows` lists (starts as ISO instants, or another task's output). Errors that a retry cannot fix fail the task at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from logbus.errors import (
    AttemptSuperseded,
    ErrorBudgetExceeded,
    LogChanged,
    OtherRecords,
    PipelineConflict,
    RecordsLost,
    TooManyWindows,
    TopicRecreated,
    UserError,
    WindowOverlap,
)
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.ledger.definition import differences, in_words, is_same
from logbus.ledger.ledger import Ledger
from logbus.links import WindowLink
from logbus.model import Pipeline, TaskKey, parse_instant, utc_now
from logbus.pipeline_checks import check_pipeline
from logbus.run_interval import run_interval

CONNECTION_FIELDS = ("kafka_conn_id", "warehouse_conn_id")
BEYOND_RETRY = (
    RecordsLost,
    TopicRecreated,
    LogChanged,
    PipelineConflict,
    WindowOverlap,
    ErrorBudgetExceeded,
    OtherRecords,
    AttemptSuperseded,
    TooManyWindows,
)
TRUE_WORDS = ("true", "yes", "1", "on")


class OverWindows:
    """Mixed into every operator over windows: its fields, and what follows from them."""

    registers: ClassVar[bool] = False  # whether it defines the pipeline, or only names the one it works on
    pipeline: Any  # a Pipeline; or the name of one, where an operator accepts that
    windows: Sequence[str] | None
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
        self._refuse_two_definitions(context)
        dag_id = context["ti"].dag_id
        done = ledger.define(self.pipeline, self.broker.log_offsets(), self._now(), dag_id=dag_id, remembers=remembers)
        for change in done.changes:
            self.log.info("The definition of pipeline %s is changed by this DAG: %s", self.pipeline.name, change)

    def _refuse_two_definitions(self, context: Mapping[str, Any]) -> None:
        """Tasks of one DAG would overwrite each other's definition of the pipeline, and each time it would look like an edit."""
        dag = context.get("dag")
        registering = [task for task in (dag.tasks if dag else ()) if getattr(task, "registers", False)]
        for pipeline in (task.pipeline for task in registering):
            if isinstance(pipeline, Pipeline) and pipeline.name == self.pipeline.name and not is_same(pipeline, self.pipeline):
                raise PipelineConflict(
                    f"tasks of this DAG define pipeline {pipeline.name} differently: "
                    f"{in_words(differences(self.pipeline, pipeline))}. Give all of them the same Pipeline"
                )

    def _starts(self, context: Mapping[str, Any]) -> list[datetime]:
        """The starts of the windows to work on, in order."""
        return [run_interval(context).start] if self.windows is None else window_starts(self.windows)


class WindowOperator(OverWindows, BaseOperator):
    """Base of the operators that work on windows in the task itself (not through spark-submit).

    :param pipeline: the pipeline whose windows they are; the same for every operator of a DAG
    :param windows: their starts as ISO instants, as a list or as text (templated); by default the run's own data interval
    :param kafka_conn_id: the connection of the broker, of the Kafka provider's type (templated)
    :param warehouse_conn_id: the connection of the warehouse, which also holds the ledger (templated)
    :param now: the clock; tests pass another one
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
        if isinstance(pipeline, Pipeline):
            check_pipeline(pipeline)
        self.pipeline = pipeline
        self.pipeline_name = pipeline if isinstance(pipeline, str) else pipeline.name
        self.windows = windows
        self.kafka_conn_id = kafka_conn_id
        self.warehouse_conn_id = warehouse_conn_id
        self._now = now


def task_key(context: Mapping[str, Any]) -> TaskKey:
    """The running task, stored in the ledger: the pages link to its log, and show a pipeline to users who may see its DAG."""
    ti = context["ti"]
    return TaskKey(dag_id=ti.dag_id, task_id=ti.task_id, map_index=ti.map_index if ti.map_index >= 0 else None)


def window_starts(windows: Sequence[str] | str) -> list[datetime]:
    """Instants from a list, or from the text that a template renders (separated by commas or spaces)."""
    words = windows.replace(",", " ").split() if isinstance(windows, str) else windows
    try:
        return sorted({parse_instant(word) for word in words})
    except ValueError as error:
        raise UserError(f"windows are the starts of hours, such as 2015-05-17T10:00:00Z: {error}") from None


def is_true(value: bool | str) -> bool:
    """Whether the value is true; a DAG parameter renders as text."""
    return str(value).strip().lower() in TRUE_WORDS


@contextlib.contextmanager
def fail_without_retry() -> Iterator[None]:
    """A retry would only hide a lost record or a recreated topic for an hour; a superseded load would take the window back."""
    try:
        yield
    except BEYOND_RETRY as error:
        raise AirflowFailException(str(error)) from error
