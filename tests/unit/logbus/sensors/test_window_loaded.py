from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException
from logbus.errors import PipelineConflict, UserError, WarehouseUnavailable
from logbus.hooks.warehouse import WarehouseHook
from logbus.loads.ledger import Ledger
from logbus.model import Pipeline
from logbus.sensors.window_loaded import WindowLoadedSensor, WindowLoadedTrigger
from sqlalchemy.exc import InterfaceError, OperationalError

from tests.support.airflow_context import HOUR_END, run_context


def test_the_pipelines_name_is_a_template() -> None:
    assert "pipeline_name" in WindowLoadedSensor.template_fields


def test_lateness_without_event_time_would_do_nothing_and_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(UserError, match="lateness requires event_time=True"):
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


SPAN = {"start": "2015-05-17T00:00:00Z", "end": "2015-05-18T00:00:00Z"}


def failing(error: Exception) -> WarehouseHook:
    class Failing(WarehouseHook):
        def ledger(self) -> Ledger:
            raise error

    return Failing()


@pytest.mark.parametrize(
    "error",
    [
        WarehouseUnavailable("restarting"),
        OperationalError("select", None, Exception("terminating connection due to administrator command")),
        InterfaceError("select", None, Exception("the connection is closed")),
    ],
)
def test_a_warehouse_that_is_away_is_waited_for(error: Exception) -> None:
    assert asyncio.run(WindowLoadedTrigger(pipeline="p", **SPAN).fires(failing(error))) is False


def test_a_wrong_request_fails_the_wait_at_once() -> None:
    with pytest.raises(UserError, match="newer"):
        asyncio.run(WindowLoadedTrigger(pipeline="p", **SPAN).fires(failing(UserError("install a newer logbus"))))


def test_it_is_rebuilt_from_what_it_is_stored_as() -> None:
    stamped = {"event_time": True, "lateness_seconds": 600.0}
    made = WindowLoadedTrigger(pipeline="p", **SPAN, audited=True, **stamped, warehouse_conn_id="w", poll_seconds=1.5)
    path, arguments = made.serialize()
    assert path == f"{WindowLoadedTrigger.__module__}.{WindowLoadedTrigger.__qualname__}"
    assert WindowLoadedTrigger(**arguments).serialize() == (path, arguments)
