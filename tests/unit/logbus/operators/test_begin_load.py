from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from logbus import spark_submit
from logbus.errors import UserError
from logbus.model import Pipeline
from logbus.operators.load_steps import BeginLoadOperator, VerifyLoadOperator

from tests.support.airflow_context import HOUR_START, run_context
from tests.support.fake_hooks import offline
from tests.support.fake_ledger import FakeLedger


def begun(pipeline: Pipeline, ledger: FakeLedger, **arguments: Any) -> dict[str, Any]:
    operator = offline(BeginLoadOperator(task_id="begin", pipeline=pipeline, **arguments), ledger)
    return dict(operator.execute(run_context(waiting=[HOUR_START + timedelta(hours=1)])))


def test_other_records_are_accepted_for_the_hours_of_the_run_that_says_so_only(pipeline: Pipeline, ledger: FakeLedger) -> None:
    assert len(begun(pipeline, ledger, accept_other_records="True")["attempts"]) == 2
    assert (ledger.accepted, ledger.begun_as) == ([HOUR_START], [pipeline])


def test_what_is_passed_on_is_no_secret(pipeline: Pipeline, ledger: FakeLedger) -> None:
    assert "password" not in str(begun(pipeline, ledger))


def test_more_windows_than_a_command_line_holds_are_refused_before_anything_is_begun(
    pipeline: Pipeline, ledger: FakeLedger
) -> None:
    count = spark_submit.WINDOWS_PER_APPLICATION_MAX + 1
    windows = [(HOUR_START + timedelta(hours=number)).isoformat() for number in range(count)]
    with pytest.raises(AirflowFailException, match="1,001 windows are more than the 1,000 of one application"):
        begun(pipeline, ledger, windows=windows)
    assert ledger.begun == []


def test_arguments_that_no_load_could_use_are_refused_when_the_dag_is_parsed(pipeline: Pipeline) -> None:
    with pytest.raises(UserError, match="max_windows_per_application is a number of windows"):
        BeginLoadOperator(task_id="begin", pipeline=pipeline, max_windows_per_application=0)
    with pytest.raises(UserError, match="VerifyLoadOperator takes a Pipeline"):
        VerifyLoadOperator(task_id="verify", pipeline="access_log", begun={})


def test_the_authors_word_wins_over_our_trigger_rule(pipeline: Pipeline) -> None:
    with DAG("d", default_args={"trigger_rule": "all_success"}):
        of_dag = VerifyLoadOperator(task_id="verify", pipeline=pipeline, begun={})
    assert (of_dag.trigger_rule, VerifyLoadOperator(task_id="v", pipeline=pipeline, begun={}).trigger_rule) == (
        "all_success",
        "all_done",
    )
