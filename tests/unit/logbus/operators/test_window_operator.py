from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from logbus.errors import UserError
from logbus.model import Pipeline
from logbus.operators.audit import PROBLEMS_SHOWN_MAX, AuditWindowOperator, audit_failure
from logbus.operators.freeze_window import FreezeClosedWindowsOperator, FreezeWindowOperator
from logbus.operators.load_window import LoadWindowOperator, ReplayOperator
from logbus.operators.maintenance import RedriveOperator
from logbus.operators.spark_submit_window import SparkSubmitWindowOperator, TakeWindowsOperator
from logbus.operators.topic import CommitOffsetsOperator, RewindOffsetsOperator
from logbus.sensors.window_loaded import WindowLoadedSensor
from logbus.task_context import names, window_starts

from tests.support.airflow_context import run_context
from tests.support.fake_hooks import offline
from tests.support.fake_ledger import FakeLedger

TEN, ELEVEN = datetime(2015, 5, 17, 10, tzinfo=UTC), datetime(2015, 5, 17, 11, tzinfo=UTC)


@pytest.mark.parametrize(
    "windows",
    [
        ["2015-05-17T11:00:00Z", "2015-05-17T10:00:00Z"],
        "2015-05-17T10:00:00Z, 2015-05-17T11:00:00Z",
        ["2015-05-17T10:00:00Z", "2015-05-17T12:00:00+01:00", "2015-05-17T10:00:00"],
    ],
)
def test_windows_come_in_order_and_once(windows: list[str] | str) -> None:
    assert window_starts(windows) == [TEN, ELEVEN]


def test_what_is_no_instant_is_shown_what_one_looks_like() -> None:
    with pytest.raises(UserError, match="2015-05-17T10:00:00Z"):
        window_starts(["last tuesday"])


def program(**arguments: Any) -> SparkSubmitWindowOperator:
    return SparkSubmitWindowOperator(application="mine.py", **arguments)


OVER_WINDOWS = (LoadWindowOperator, AuditWindowOperator, RedriveOperator, CommitOffsetsOperator, RewindOffsetsOperator, program)


@pytest.mark.parametrize("windows", ["", " ", ","])
@pytest.mark.parametrize("kind", OVER_WINDOWS)
def test_an_empty_text_is_a_forgotten_parameter_and_fails_at_once(
    kind: Any, windows: str, pipeline: Pipeline, ledger: FakeLedger
) -> None:
    """Done with no window, the task would be green."""
    operator = offline(kind(task_id="task", pipeline=pipeline, windows="{{ params.start }}"), ledger)
    operator.render_template_fields({"params": {"start": windows}})
    with pytest.raises(AirflowFailException, match="windows is an empty string.*2015-05-17T10:00:00Z"):
        operator.execute(run_context())


@pytest.mark.parametrize("kind", [*OVER_WINDOWS, ReplayOperator])
def test_if_the_task_that_was_to_name_the_windows_was_skipped_so_is_this_one(
    kind: Any, pipeline: Pipeline, ledger: FakeLedger
) -> None:
    """None is then no choice of the run's own window, which nobody asked for."""
    with DAG("clicks", schedule=None):
        take = TakeWindowsOperator(task_id="take")
        operator = offline(kind(task_id="task", pipeline=pipeline, windows=take.output, trigger_rule="none_failed"), ledger)
    skipped = SimpleNamespace(
        task_id="task", dag_id="clicks", run_id="r", map_index=-1, xcom_pull=lambda **asked: asked.get("default")
    )
    operator.render_template_fields({"ti": skipped, "expanded_ti_count": None})
    assert operator.windows is None
    with pytest.raises(AirflowSkipException, match="was skipped"):
        operator.execute(run_context())


@pytest.mark.parametrize("kind", [*OVER_WINDOWS, ReplayOperator])
def test_an_empty_list_is_nothing_to_do(kind: Any, pipeline: Pipeline, ledger: FakeLedger) -> None:
    operator = offline(kind(task_id="task", pipeline=pipeline, windows=[]), ledger)
    with pytest.raises(AirflowSkipException, match="no window to work on"):
        operator.execute(run_context())


@pytest.mark.parametrize("kind", [*OVER_WINDOWS, FreezeWindowOperator])
def test_a_run_without_an_interval_fails_at_once(kind: Any, pipeline: Pipeline, ledger: FakeLedger) -> None:
    with pytest.raises(AirflowFailException, match="no data interval"):
        offline(kind(task_id="task", pipeline=pipeline), ledger).execute(run_context(None, None))


@pytest.mark.parametrize(
    "kind",
    [
        LoadWindowOperator,
        ReplayOperator,
        FreezeWindowOperator,
        FreezeClosedWindowsOperator,
        CommitOffsetsOperator,
        RewindOffsetsOperator,
    ],
)
def test_a_name_is_no_pipeline_where_its_definition_is_needed(kind: Any) -> None:
    with pytest.raises(UserError, match=f"{kind.__name__} takes a Pipeline, not 'clicks'"):
        kind(task_id="task", pipeline="clicks")


@pytest.mark.parametrize("kind", [AuditWindowOperator, RedriveOperator, WindowLoadedSensor, program])
def test_where_a_name_will_do_nothing_else_does(kind: Any) -> None:
    assert kind(task_id="task", pipeline="clicks").pipeline_name == "clicks"
    with pytest.raises(UserError, match="takes a Pipeline, not None"):
        kind(task_id="task", pipeline=None)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("orders", ["orders"]),
        ("orders, payments", ["orders", "payments"]),
        (["orders"], ["orders"]),
        (None, []),
        ("", []),
        ("None", []),
        ((), []),
    ],
)
def test_a_text_is_a_name_or_a_list_of_them(given: Any, meant: list[str]) -> None:
    assert names(given) == meant


def test_a_flood_of_problems_is_cut_with_their_number() -> None:
    text = audit_failure([f"problem {number}" for number in range(PROBLEMS_SHOWN_MAX + 5)], 3)
    assert "and 5 more" in text
    assert f"problem {PROBLEMS_SHOWN_MAX}" not in text
