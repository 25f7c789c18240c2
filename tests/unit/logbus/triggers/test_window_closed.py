from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from airflow.triggers.base import TriggerEvent
from logbus.triggers.window_closed import SLEEP_SECONDS_MAX, WindowClosedTrigger

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
