from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from logbus.errors import RecordsLost, UserError, WindowNotClosed
from logbus.model import Interval, Pipeline
from logbus.operators.freeze_window import FreezeClosedWindowsOperator, FreezeWindowOperator
from logbus.task_context import optional_instant

from tests.support.airflow_context import HOUR_END, HOUR_START, run_context
from tests.support.fake_hooks import offline
from tests.support.fake_ledger import FakeLedger


def test_it_registers_the_pipeline_and_freezes_the_runs_interval(pipeline: Pipeline, ledger: FakeLedger) -> None:
    shown = offline(FreezeWindowOperator(task_id="freeze", pipeline=pipeline), ledger).execute(run_context())
    assert (ledger.registered, ledger.dags) == ([pipeline], [("access_log", "access_log")])
    assert ledger.frozen == [Interval(HOUR_START, HOUR_END)]
    assert (shown["start"], shown["records"], shown["ranges"]) == ("2015-05-17T10:00:00Z", 10, {"0": [5, 15]})


def test_a_run_that_comes_before_its_hour_is_closed_waits_in_the_triggerer(pipeline: Pipeline, ledger: FakeLedger) -> None:
    """A manual run or a backfill up to now; runs of the timetable never start early."""
    operator = offline(FreezeWindowOperator(task_id="freeze", pipeline=pipeline, now=lambda: HOUR_END), ledger)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(run_context())
    assert deferred.value.trigger.serialize()[1] == {"closes_at": "2015-05-17T11:05:00Z"}
    assert ledger.frozen == []
    resume = getattr(operator, deferred.value.method_name)
    assert resume(run_context(), {"closed_at": "2015-05-17T11:05:01Z"})["start"] == "2015-05-17T10:00:00Z"
    assert ledger.frozen == [Interval(HOUR_START, HOUR_END)]


@pytest.mark.parametrize(("error", "raised"), [(RecordsLost, AirflowFailException), (WindowNotClosed, WindowNotClosed)])
def test_only_what_no_retry_can_mend_fails_at_once(
    error: type[Exception], raised: type[Exception], pipeline: Pipeline, ledger: FakeLedger
) -> None:
    ledger.refused = {HOUR_START: error("offsets 3 to 9 of access_log-0")}
    with pytest.raises(raised, match="offsets 3 to 9"):
        offline(FreezeWindowOperator(task_id="freeze", pipeline=pipeline), ledger).execute(run_context())


HOURS = [Interval.hour(HOUR_START + timedelta(hours=number)) for number in range(3)]


def freeze(pipeline: Pipeline, ledger: FakeLedger, **arguments: Any) -> dict[str, Any]:
    operator = FreezeClosedWindowsOperator(task_id="freeze", pipeline=pipeline, **arguments)
    result: dict[str, Any] = offline(operator, ledger).execute(run_context())
    return result


@pytest.mark.parametrize("number", ["84", None, 0])
def test_a_number_of_windows_that_means_nothing_is_refused_when_the_dag_is_parsed(pipeline: Pipeline, number: Any) -> None:
    with pytest.raises(UserError, match="max_windows is a number of windows, 1 or more"):
        FreezeClosedWindowsOperator(task_id="freeze", pipeline=pipeline, max_windows=number)


def test_it_freezes_every_closed_hour_and_returns_their_starts(pipeline: Pipeline, ledger: FakeLedger) -> None:
    ledger.closed = HOURS
    frozen = freeze(pipeline, ledger, since="None", until="")
    assert ledger.frozen == HOURS
    assert frozen["starts"] == ["2015-05-17T10:00:00Z", "2015-05-17T11:00:00Z", "2015-05-17T12:00:00Z"]
    assert frozen["records"] == 30


def test_since_and_until_limit_the_hours(pipeline: Pipeline, ledger: FakeLedger) -> None:
    ledger.closed = HOURS
    since, until = "2015-05-17T11:00:00Z", "2015-05-17T12:00:00+00:00"
    freeze(pipeline, ledger, since=since, until=until)
    assert ledger.frozen == [HOURS[1]]


def test_nothing_closed_skips_the_rest(pipeline: Pipeline, ledger: FakeLedger) -> None:
    with pytest.raises(AirflowSkipException, match="no closed hour"):
        freeze(pipeline, ledger)


def test_more_windows_than_are_allowed_fail_at_once_and_nothing_is_frozen(pipeline: Pipeline, ledger: FakeLedger) -> None:
    ledger.closed = HOURS
    with pytest.raises(AirflowFailException, match="3 windows of .* refusing to start more than 2 .* max_windows allows more"):
        freeze(pipeline, ledger, max_windows=2)
    assert ledger.frozen == []


@pytest.mark.parametrize("text", [None, "", "None"])
def test_a_parameter_left_out_is_no_instant(text: str | None) -> None:
    assert optional_instant("since", text) is None


def test_a_parameter_that_is_no_instant_is_named() -> None:
    with pytest.raises(UserError, match="until is an instant such as"):
        optional_instant("until", "yesterday")
