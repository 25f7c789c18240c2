from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, TaskGroup
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from airflow.triggers.base import TriggerEvent
from logbus.errors import WrongRequest
from logbus.sensors.window_loaded import SLEEP_SECONDS_MAX, WindowClosedSensor, WindowClosedTrigger
from logbus.sensors.window_sensor import RETRIES_DEFAULT, RETRY_DELAY_DEFAULT

from tests.support.airflow_context import HOUR_END, run_context

LATENESS = timedelta(minutes=5)


def sensor(seconds_after_closing: float) -> WindowClosedSensor:
    now = HOUR_END + LATENESS + timedelta(seconds=seconds_after_closing)
    return WindowClosedSensor(task_id="closed", lateness=LATENESS, now=lambda: now, deferrable=True)


def test_a_closed_hour_passes_without_deferring() -> None:
    assert sensor(0).execute(run_context()) == "2015-05-17T11:05:00Z"


def test_an_open_hour_is_deferred_until_its_end_plus_the_lateness() -> None:
    with pytest.raises(TaskDeferred) as deferred:
        sensor(-1).execute(run_context())
    assert isinstance(deferred.value.trigger, WindowClosedTrigger)
    assert deferred.value.trigger.closes_at == "2015-05-17T11:05:00Z"
    assert callable(getattr(sensor(0), deferred.value.method_name))


def test_after_the_trigger_has_fired_it_returns_when_the_hour_closed() -> None:
    assert sensor(0).resume(run_context(), {"closed_at": "2015-05-17T11:05:01Z"}) == "2015-05-17T11:05:00Z"


def test_airflows_setting_decides_whether_it_defers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WindowClosedSensor(task_id="closed").deferrable is False
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    assert WindowClosedSensor(task_id="closed").deferrable is True


def test_it_is_retried_by_default_because_deferring_can_race_with_the_scheduler() -> None:
    assert sensor(0).retries >= 1
    assert WindowClosedSensor(task_id="closed", retries=7).retries == 7


def test_default_args_win_over_the_sensors_own_retries() -> None:
    with DAG("daily", schedule=None, default_args={"retries": 7, "retry_delay": timedelta(minutes=5)}):
        with TaskGroup("waits", default_args={"retries": 5}):
            grouped = WindowClosedSensor(task_id="closed")
        plain = WindowClosedSensor(task_id="closed")
    assert (plain.retries, plain.retry_delay) == (7, timedelta(minutes=5))
    assert (grouped.retries, grouped.retry_delay) == (5, timedelta(minutes=5))


def test_a_mapped_sensor_is_retried_too() -> None:
    with DAG("daily", schedule=None) as dag:
        WindowClosedSensor.partial(task_id="closed").expand(lateness=[LATENESS])
        WindowClosedSensor.partial(task_id="mine", retries=7).expand(lateness=[LATENESS])
    with DAG("hourly", schedule=None, default_args={"retries": 5}) as defaulted:
        WindowClosedSensor.partial(task_id="closed").expand(lateness=[LATENESS])
    assert [dag.get_task(name).retries for name in ("closed", "mine")] == [RETRIES_DEFAULT, 7]
    assert dag.get_task("closed").retry_delay == RETRY_DELAY_DEFAULT
    assert defaulted.get_task("closed").retries == 5


def test_a_run_without_an_interval_is_told_so() -> None:
    """And not tried again, by no kind of wait: the next try would find the same."""
    for deferrable in (True, False):
        with pytest.raises(AirflowFailException, match="no data interval"):
            WindowClosedSensor(task_id="closed", deferrable=deferrable, silent_fail=True).execute(run_context(None, None))


@pytest.mark.parametrize("deferrable", [True, False])
@pytest.mark.parametrize(
    ("promise", "error"), [("never_fail", OSError), ("never_fail", WrongRequest), ("soft_fail", WrongRequest)]
)
def test_what_airflow_promises_of_a_failing_check_holds_for_the_first(
    deferrable: bool, promise: str, error: type[Exception]
) -> None:
    with pytest.raises(AirflowSkipException):
        Failing(error=error, deferrable=deferrable, **{promise: True}).execute(run_context())


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_failing_check_fails_the_task_if_nothing_was_promised(deferrable: bool) -> None:
    for promised in ({}, {"soft_fail": True}):
        with pytest.raises(OSError, match="not now"):
            Failing(error=OSError, deferrable=deferrable, **promised).execute(run_context())


def test_a_check_that_fails_silently_is_made_again() -> None:
    waiting = Failing(error=OSError, silent_fail=True, deferrable=True)
    with pytest.raises(TaskDeferred):
        waiting.execute(run_context())
    poking = Failing(error=OSError, silent_fail=True, deferrable=False, poke_interval=0)
    assert poking.execute(run_context()) == "2015-05-17T11:05:00Z"
    assert (waiting.checks, poking.checks) == (1, 2)


class Failing(WindowClosedSensor):
    """Its first check fails."""

    def __init__(self, *, error: type[Exception], **arguments: Any) -> None:
        super().__init__(task_id="closed", **arguments)
        self.error = error
        self.checks = 0

    def has_happened(self, context: Any) -> bool:
        self.checks += 1
        if self.checks == 1:
            raise self.error("not now")
        return True


CLOSES = "2015-05-17T11:05:00Z"
CLOSES_AT = datetime(2015, 5, 17, 11, 5, tzinfo=UTC)


class Clock:
    """Advances by the time slept, or by more."""

    def __init__(self, now: datetime, jump: timedelta = timedelta()) -> None:
        self.now = now
        self.jump = jump
        self.slept: list[float] = []

    def __call__(self) -> datetime:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += timedelta(seconds=seconds) + self.jump


async def first_event(trigger: WindowClosedTrigger) -> TriggerEvent:
    async for event in trigger.run():
        return event
    raise AssertionError("the trigger ended without an event")


def fire(clock: Clock) -> TriggerEvent:
    return asyncio.run(first_event(WindowClosedTrigger(CLOSES, now=clock, sleep=clock.sleep)))


def test_it_fires_at_once_when_the_window_is_closed() -> None:
    clock = Clock(CLOSES_AT)
    assert fire(clock).payload == {"closed_at": CLOSES}
    assert clock.slept == []


def test_it_waits_until_the_clock_has_passed_the_closing() -> None:
    clock = Clock(CLOSES_AT - timedelta(seconds=70))
    assert fire(clock).payload == {"closed_at": CLOSES}
    assert clock.slept == [SLEEP_SECONDS_MAX, SLEEP_SECONDS_MAX, 10.0]


def test_a_clock_that_jumps_ahead_ends_the_wait() -> None:
    clock = Clock(CLOSES_AT - timedelta(hours=9), jump=timedelta(hours=9))
    fire(clock)
    assert clock.slept == [SLEEP_SECONDS_MAX]


def test_it_is_rebuilt_from_what_it_is_stored_as() -> None:
    path, arguments = WindowClosedTrigger(CLOSES).serialize()
    assert path == f"{WindowClosedTrigger.__module__}.{WindowClosedTrigger.__qualname__}"
    assert WindowClosedTrigger(**arguments).closes_at == CLOSES
