"""What the operators of this package share: the pipeline, the two connections, and how a failure is reported.

Operators only assign in the constructor and act in `execute`. The windows of a run are its own data interval, or those that
`windows` lists (starts as ISO instants, or another task's output). A task that was given `windows` and finds none in it is
skipped, and never takes the run's own instead. Errors that a retry cannot fix fail the task at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

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
    WrongRequest,
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
    WrongRequest,
)
TRUE_WORDS = ("true", "yes", "1", "on")


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

    def _starts(self, context: Mapping[str, Any], also: Sequence[datetime] = ()) -> list[datetime]:
        """The starts of the windows to work on, in order: at least one, or the task is skipped."""
        with fail_without_retry():
            if self.windows is None and not self.is_given_windows:
                return sorted({run_interval(context).start, *also})
            refuse_empty_text(self.windows)
            starts = sorted({*window_starts(self.windows), *also})
        return starts or self._skip_without_windows()

    def _skip_without_windows(self) -> NoReturn:
        raise AirflowSkipException("no window to work on: the task that provides `windows` returned none, or was skipped")


class WindowOperator(OverWindows, BaseOperator):
    """Base of the operators that work on windows in the task itself (not through spark-submit).

    :param pipeline: the pipeline whose windows they are; the same for every operator of a DAG
    :param windows: their starts as ISO instants, as a list or as text (templated); by default the run's own data interval. If
        another task is to name them and names none, or was skipped, this one is skipped; an empty text is an error.
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
        elif not self.accepts_name or not isinstance(pipeline, str):
            raise no_pipeline(pipeline, type(self).__name__)
        self.pipeline = pipeline
        self.pipeline_name = pipeline if isinstance(pipeline, str) else pipeline.name
        self.windows = windows
        self.is_given_windows = windows is not None
        self.kafka_conn_id = kafka_conn_id
        self.warehouse_conn_id = warehouse_conn_id
        self._now = now


def task_key(context: Mapping[str, Any]) -> TaskKey:
    """The running task, stored in the ledger: the pages link to its log, and show a pipeline to users who may see its DAG."""
    ti = context["ti"]
    return TaskKey(dag_id=ti.dag_id, task_id=ti.task_id, map_index=ti.map_index if ti.map_index >= 0 else None)


def no_pipeline(given: object, operator: str) -> UserError:
    return UserError(
        f"{operator} wants a Pipeline, not {given!r}: pass what define_pipeline(...) returns, as to the DAG's other tasks"
    )


def refuse_no_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{name} is a number of windows, 1 or more; got {value!r}")


def names(given: Iterable[str] | str | None) -> list[str]:
    """Names from a list, or from the text that a template renders (separated by commas or spaces). None, also as the text of a
    parameter that was left out, names nothing."""
    if given is None or given == "None":
        return []
    return given.replace(",", " ").split() if isinstance(given, str) else list(given)


def refuse_empty_text(windows: Sequence[str] | str | None) -> None:
    """A text without a window is a parameter that was forgotten: done with nothing, the task would seem to have done its work."""
    if isinstance(windows, str) and not windows.replace(",", " ").split():
        raise WrongRequest(
            f"windows is an empty text ({windows!r}): give the starts of hours, such as 2015-05-17T10:00:00Z, "
            "or leave `windows` out for the run's own"
        )


def window_starts(windows: Sequence[str] | str | None) -> list[datetime]:
    """Instants from a list, or from the text that a template renders (separated by commas or spaces)."""
    words = windows.replace(",", " ").split() if isinstance(windows, str) else windows or ()
    try:
        return sorted({parse_instant(word) for word in words})
    except ValueError as error:
        raise WrongRequest(f"windows are the starts of hours, such as 2015-05-17T10:00:00Z: {error}") from None


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
