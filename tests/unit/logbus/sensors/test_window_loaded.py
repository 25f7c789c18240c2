from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException
from logbus.errors import PipelineConflict, UserError, WarehouseUnavailable
from logbus.model import Pipeline
from logbus.sensors.window_loaded import WindowLoadedSensor

from tests.support.airflow_context import HOUR_END, run_context


def test_the_pipelines_name_is_a_template() -> None:
    assert "pipeline_name" in WindowLoadedSensor.template_fields


def test_lateness_without_event_time_would_do_nothing_and_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(UserError, match="lateness is for event_time=True"):
        WindowLoadedSensor(task_id="loaded", pipeline=pipeline, lateness=timedelta(minutes=5))


def test_a_warehouse_that_is_away_in_the_middle_of_a_wait_does_not_end_it() -> None:
    away = WarehouseUnavailable("restarting")
    sensor = Told(answers=[False, away, away, True])
    assert sensor.execute(run_context())["pipeline"] == "p"
    assert sensor.answers == []


def test_a_warehouse_that_never_answered_fails_the_task_and_so_does_a_wrong_request_at_any_time() -> None:
    with pytest.raises(WarehouseUnavailable):
        Told(answers=[WarehouseUnavailable("refused"), True]).execute(run_context())
    with pytest.raises(AirflowFailException):
        Told(answers=[False, PipelineConflict("another topic"), True]).execute(run_context())


def test_a_wait_that_was_rescheduled_has_had_an_answer() -> None:
    ti = SimpleNamespace(get_first_reschedule_date=lambda context: HOUR_END, task_id="loaded")
    with pytest.raises(AirflowRescheduleException):
        Told(answers=[WarehouseUnavailable("restarting")], mode="reschedule").execute({**run_context(), "ti": ti})


class Told(WindowLoadedSensor):
    """Its checks are answered with these values, or raise them."""

    def __init__(self, *, answers: list[bool | Exception], **arguments: Any) -> None:
        super().__init__(task_id="loaded", pipeline="p", deferrable=False, poke_interval=0, timeout=10**9, **arguments)
        self.answers = answers

    def has_happened(self, context: Any) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer
