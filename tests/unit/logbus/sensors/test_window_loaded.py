from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk.exceptions import TaskDeferred
from logbus.errors import UserError
from logbus.model import Interval, Pipeline
from logbus.sensors import window_loaded
from logbus.sensors.window_loaded import WindowLoadedSensor
from logbus.triggers.window_loaded import WindowLoadedTrigger

from tests.support.airflow_context import HOUR_END, HOUR_START, run_context
from tests.support.fake_ledger import FakeLedger

HOUR = Interval(HOUR_START, HOUR_END)


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch, ledger: FakeLedger) -> list[Interval | None]:
    """What the ledger answers, look by look."""
    answers: list[Interval | None] = []
    monkeypatch.setattr(window_loaded, "missing_span", lambda engine, name, span, audited: answers.pop(0))
    return answers


def test_a_loaded_span_passes_without_deferring(pipeline: Pipeline, missing: list[Interval | None]) -> None:
    missing.append(None)
    passed = WindowLoadedSensor(task_id="loaded", pipeline=pipeline, deferrable=True).execute(run_context())
    assert passed == {"pipeline": "access_log", "start": "2015-05-17T10:00:00Z", "end": "2015-05-17T11:00:00Z"}


def test_what_is_not_loaded_yet_is_waited_for_in_the_triggerer(missing: list[Interval | None]) -> None:
    missing.append(HOUR)
    sensor = WindowLoadedSensor(task_id="loaded", pipeline="clicks", audited=True, warehouse_conn_id="w", deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(run_context())
    trigger = deferred.value.trigger
    assert isinstance(trigger, WindowLoadedTrigger)
    assert (trigger.pipeline, trigger.audited, trigger.warehouse_conn_id) == ("clicks", True, "w")
    assert (trigger.start, trigger.end) == ("2015-05-17T10:00:00Z", "2015-05-17T11:00:00Z")
    assert callable(getattr(sensor, deferred.value.method_name))


def test_without_deferring_it_looks_again(pipeline: Pipeline, missing: list[Interval | None]) -> None:
    missing += [HOUR, HOUR, None]
    WindowLoadedSensor(task_id="loaded", pipeline=pipeline, deferrable=False, poke_interval=0).execute(run_context())
    assert missing == []


def test_the_pipelines_name_is_a_template(pipeline: Pipeline) -> None:
    assert "pipeline_name" in WindowLoadedSensor.template_fields


@pytest.fixture
def missing_stamped(monkeypatch: pytest.MonkeyPatch, ledger: FakeLedger) -> list[Interval | None]:
    """The same of an event-time hour."""
    answers: list[Interval | None] = []
    held = {HOUR_START: 20, HOUR_END: 40}
    monkeypatch.setattr(window_loaded, "missing_of_stamped", lambda engine, name, span, lateness, audited: answers.pop(0))
    monkeypatch.setattr(window_loaded.WindowLoadedSensor, "_held", lambda sensor, span: held)
    return answers


def test_an_event_time_hour_passes_with_the_windows_that_hold_it(
    pipeline: Pipeline, missing_stamped: list[Interval | None]
) -> None:
    missing_stamped.append(None)
    passed = WindowLoadedSensor(task_id="loaded", pipeline=pipeline, event_time=True).execute(run_context())
    assert passed["windows"] == {"2015-05-17T10:00:00Z": 20, "2015-05-17T11:00:00Z": 40}


def test_an_event_time_hour_is_waited_for_in_the_triggerer(missing_stamped: list[Interval | None]) -> None:
    missing_stamped.append(HOUR)
    late = timedelta(minutes=20)
    sensor = WindowLoadedSensor(task_id="loaded", pipeline="p", event_time=True, lateness=late, deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(run_context())
    _, arguments = deferred.value.trigger.serialize()
    assert (arguments["event_time"], arguments["lateness_seconds"]) == (True, 1200)


def test_lateness_without_event_time_would_do_nothing_and_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(UserError, match="lateness is for event_time=True"):
        WindowLoadedSensor(task_id="loaded", pipeline=pipeline, lateness=timedelta(minutes=5))
