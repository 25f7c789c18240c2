from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from logbus.model import Pipeline
from logbus.operators.audit import AuditWindowOperator
from logbus.operators.freeze_window import FreezeWindowOperator
from logbus.operators.load_window import LoadWindowOperator
from logbus.operators.maintenance import RedriveOperator
from logbus.operators.spark_submit_window import SparkSubmitWindowOperator
from logbus.sensors.window_loaded import WindowLoadedSensor
from logbus.task_context import WindowLink

from tests.support.airflow_context import run_context

BASE = "https://airflow.example.com/prefix"


@pytest.fixture(autouse=True)
def base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", BASE + "/")


def link(operator: Any, context: dict[str, Any]) -> str:
    assert any(isinstance(found, WindowLink) for found in operator.operator_extra_links)
    return WindowLink().get_link(operator, ti_key=SimpleNamespace(get_template_context=lambda: context))


def test_every_task_leads_to_the_window_of_its_run(pipeline: Pipeline) -> None:
    expected = f"{BASE}/logbus/windows/access_log/2015-05-17T10:00:00Z?warehouse_conn_id=warehouse_default"
    operators = [
        FreezeWindowOperator(task_id="freeze", pipeline=pipeline),
        LoadWindowOperator(task_id="load", pipeline=pipeline),
        SparkSubmitWindowOperator(task_id="mine", pipeline="access_log", application="mine.py"),
        WindowLoadedSensor(task_id="loaded", pipeline="access_log"),
    ]
    assert {link(operator, run_context()) for operator in operators} == {expected}


def test_a_task_over_many_windows_and_a_run_without_an_interval_lead_to_all_of_the_pipeline(pipeline: Pipeline) -> None:
    load = LoadWindowOperator(task_id="load", pipeline=pipeline, windows=["2015-05-17T10:00:00Z"], warehouse_conn_id="other db")
    assert link(load, run_context()) == f"{BASE}/logbus/windows/access_log?warehouse_conn_id=other+db"
    freeze = FreezeWindowOperator(task_id="freeze", pipeline=pipeline)
    assert link(freeze, run_context(None, None)).startswith(f"{BASE}/logbus/windows/access_log?")


def test_a_pipeline_that_is_only_named_is_led_to_as_well() -> None:
    for operator in (RedriveOperator(task_id="r", pipeline="p"), AuditWindowOperator(task_id="a", pipeline="p")):
        assert link(operator, run_context()).startswith(f"{BASE}/logbus/windows/p/2015-05-17T10:00:00Z?")
