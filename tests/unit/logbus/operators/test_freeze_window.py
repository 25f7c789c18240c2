from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from logbus.errors import RecordsLost, WindowNotClosed
from logbus.model import Interval, Pipeline
from logbus.operators.freeze_window import FreezeWindowOperator

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
