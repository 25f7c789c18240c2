"""When may an hour be frozen? Once the clock has passed its end plus the lateness the pipeline allows.

Nothing waits for data, so quiet partitions close like busy ones. The trigger reads no data and holds no connection, so
thousands of them cost the triggerer next to nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Context
from airflow.triggers.base import BaseTrigger, TriggerEvent

from logbus import model, task_context
from logbus.sensors.window_sensor import WindowSensor


class WindowClosedSensor(WindowSensor):
    """Passes once the run's data interval is closed. Returns the instant at which it closed.

    :param lateness: how long after its end the hour stays open for records still on their way (default: five minutes)
    """

    def __init__(self, *, lateness: timedelta = model.LATENESS_DEFAULT, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lateness = lateness

    def has_happened(self, context: Context) -> bool:
        return self._now() >= self._closes_at(context)

    def outcome(self, context: Context) -> str:
        return model.instant_text(self._closes_at(context))

    def trigger_for(self, context: Context) -> WindowClosedTrigger:
        return WindowClosedTrigger(model.instant_text(self._closes_at(context)))

    def _closes_at(self, context: Context) -> datetime:
        return task_context.run_interval(context).end + self.lateness


SLEEP_SECONDS_MAX = 30.0
Sleep = Callable[[float], Awaitable[None]]


class WindowClosedTrigger(BaseTrigger):
    """Fires at `closes_at`, an instant as text because triggers are serialized between processes."""

    def __init__(self, closes_at: str, now: Callable[[], datetime] = model.utc_now, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__()
        self.closes_at = closes_at
        self._now = now
        self._sleep = sleep

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return ("logbus.sensors.window_closed.WindowClosedTrigger", {"closes_at": self.closes_at})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        # In short sleeps: the wall clock counts, which is still right after a laptop was suspended or a clock set.
        while (seconds := self._seconds_left()) > 0:
            await self._sleep(min(seconds, SLEEP_SECONDS_MAX))
        yield TriggerEvent({"closed_at": model.instant_text(self._now())})

    def _seconds_left(self) -> float:
        return (model.parse_instant(self.closes_at) - self._now()).total_seconds()
