from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from logbus.errors import LoadFailed, RecordsLost
from logbus.model import Interval, Pipeline
from logbus.operators.spark_submit_window import SparkSubmitWindowOperator

from tests.support.airflow_context import HOUR_START, run_context
from tests.support.fake_hooks import offline
from tests.support.fake_ledger import FakeLedger
from tests.support.fake_submit import FakeSubmit, Submitted


def operator(ledger: FakeLedger, **arguments: Any) -> SparkSubmitWindowOperator:
    made = SparkSubmitWindowOperator(task_id="mine", application="mine.py", **{"pipeline": "access_log", **arguments})
    return offline(made, ledger)


def conf(submit: FakeSubmit) -> dict[str, str]:
    pairs = [word for before, word in zip(submit.command, submit.command[1:], strict=False) if before == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.fixture
def registered(ledger: FakeLedger, pipeline: Pipeline) -> FakeLedger:
    ledger.registered.append(pipeline)
    return ledger


def test_the_program_gets_the_frozen_offsets_in_environment_and_settings(registered: FakeLedger, submitted: Submitted) -> None:
    result = operator(registered, application_args=["--mine"]).execute(run_context())
    [submit] = submitted
    handed = json.loads(submit.env["LOGBUS_WINDOWS"])
    assert handed["windows"][0]["ranges"] == {"0": [5, 15]}
    settings = conf(submit)
    assert json.loads(settings["spark.logbus.windows"]) == handed
    assert settings["spark.logbus.topic"] == "access_log"
    assert json.loads(settings["spark.logbus.startingOffsets"]) == {"access_log": {"0": 5}}
    assert json.loads(settings["spark.logbus.endingOffsets"]) == {"access_log": {"0": 15}}
    assert submit.command[-2:] == ["mine.py", "--mine"]
    assert result["windows"][0]["records"] == 10


def test_a_pipeline_by_name_must_be_registered_and_one_given_whole_is(
    registered: FakeLedger, pipeline: Pipeline, submitted: Submitted
) -> None:
    operator(registered).execute(run_context())
    assert registered.registered == [pipeline]
    operator(registered, pipeline=pipeline).execute(run_context())
    assert registered.registered == [pipeline, pipeline]


def test_only_what_is_asked_for_of_the_secrets_is_handed_over(registered: FakeLedger, submitted: Submitted) -> None:
    operator(registered).execute(run_context())
    operator(registered, warehouse_in_environment=True).execute(run_context())
    assert "broker-password" in submitted[0].env["LOGBUS_KAFKA_CONFIG"]
    assert ["LOGBUS_WAREHOUSE_URL" in submit.env for submit in submitted] == [False, True]
    assert not [
        word
        for submit in submitted
        for word in submit.command
        if "password" in word and not word.startswith("spark.redaction.regex=")
    ]


@pytest.mark.parametrize(("master", "setting"), [("local[2]", None), ("yarn", "spark.yarn.appMasterEnv.LOGBUS_WINDOWS")])
def test_the_windows_are_handed_over_where_the_secrets_are_mounted(
    master: str, setting: str | None, registered: FakeLedger, submitted: Submitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": master}))
    operator(registered, credentials_in_environment=False, warehouse_in_environment=True).execute(run_context())
    [submit] = submitted
    handed = submit.env.get("LOGBUS_WINDOWS") if setting is None else conf(submit)[setting]
    assert handed == conf(submit)["spark.logbus.windows"]
    assert not {"LOGBUS_KAFKA_CONFIG", "LOGBUS_WAREHOUSE_URL"} & submit.env.keys()
    assert not [word for word in submit.command if "password" in word and not word.startswith("spark.redaction.regex=")]


def test_a_driver_in_a_standalone_cluster_gets_the_windows_as_settings_alone(
    registered: FakeLedger, submitted: Submitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "spark", "host": "spark://master", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    mine = SparkSubmitWindowOperator(
        task_id="mine", application="mine.jar", pipeline="access_log", credentials_in_environment=False
    )
    with pytest.raises(LoadFailed, match="out of luck"):  # the process that stands for spark-submit names no driver to wait for
        offline(mine, registered).execute(run_context())
    [submit] = submitted
    assert "spark.logbus.windows" in conf(submit)
    assert "LOGBUS_WINDOWS" not in submit.env


def test_many_windows_can_be_asked_for(registered: FakeLedger, submitted: Submitted) -> None:
    windows = [(HOUR_START + timedelta(hours=number)).isoformat() for number in range(3)]
    operator(registered, windows=windows).execute(run_context())
    assert registered.frozen == [Interval.hour(HOUR_START + timedelta(hours=number)) for number in range(3)]
    assert len(json.loads(submitted[0].env["LOGBUS_WINDOWS"])["windows"]) == 3


def test_lost_records_fail_at_once(registered: FakeLedger, submitted: Submitted) -> None:
    registered.refused = {HOUR_START: RecordsLost("offsets 3 to 9")}
    with pytest.raises(AirflowFailException, match="offsets 3 to 9"):
        operator(registered).execute(run_context())
    assert submitted == []


def test_the_pipelines_name_is_a_template() -> None:
    assert {"pipeline_name", "windows", "application_args"} <= set(SparkSubmitWindowOperator.template_fields)
