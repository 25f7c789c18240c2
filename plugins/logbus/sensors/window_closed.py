"""When may an hour be frozen? Once the clock has passed its end plus the lateness the pipeline allows.

Nothing waits for data, so quiet partitions close like busy ones.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Context

from logbus.model import LATENESS_DEFAULT, instant_text
from logbus.run_interval import run_interval
from logbus.sensors.window_sensor import WindowSensor
from logbus.triggers.window_closed import WindowClosedTrigger


class WindowClosedSensor(WindowSensor):
    """Passes once the run's data interval is closed. Returns the instant at which it closed.

    :param lateness: how long after its end the hour stays open for records still on their way (default: five minutes)
    """

    def __init__(self, *, lateness: timedelta = LATENESS_DEFAULT, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lateness = lateness

    def has_happened(self, context: Context) -> bool:
        return self._now() >= self._closes_at(context)

    def outcome(self, context: Context) -> str:
        return instant_text(self._closes_at(context))

    def trigger_for(self, context: Context) -> WindowClosedTrigger:
        return WindowClosedTrigger(instant_text(self._closes_at(context)))

    def _closes_at(self, context: Context) -> datetime:
        return run_interval(context).end + self.lateness
