"""When may an hour be frozen? Once the clock has passed its end plus the lateness the pipeline allows.

Nothing waits for data, so quiet partitions close like busy ones. The sensor looks first and defers only if it has to: a run of
the past passes in one step. Deferring can race with the scheduler in Airflow 3 (a task that its trigger has queued again before
the scheduler saw it leave is failed), so a retry is the default.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context

from logbus.run_interval import run_interval
from logbus.triggers.window_closed import WindowClosedTrigger, utc_now
from logbus.windows.model import LATENESS_DEFAULT, instant_text

RETRIES_DEFAULT = 2
RETRY_DELAY_DEFAULT = timedelta(seconds=10)


class WindowClosedSensor(BaseSensorOperator):
    """Passes when the run's data interval is closed.

    :param lateness: how long after its end the hour stays open for records still on their way
    """

    ui_color = "#e8f0fe"

    def __init__(self, *, lateness: timedelta = LATENESS_DEFAULT, now: Callable[[], datetime] = utc_now, **kwargs: Any) -> None:
        kwargs.setdefault("retries", RETRIES_DEFAULT)
        kwargs.setdefault("retry_delay", RETRY_DELAY_DEFAULT)
        super().__init__(**kwargs)
        self.lateness = lateness
        self._now = now

    def execute(self, context: Context) -> str:
        if not self.poke(context):
            self.defer(
                trigger=WindowClosedTrigger(instant_text(self._closes_at(context))),
                method_name=self.resume.__name__,
                timeout=timedelta(seconds=self.timeout),
            )
        return instant_text(self._closes_at(context))

    def poke(self, context: Context) -> bool:
        return self._now() >= self._closes_at(context)

    def resume(self, context: Context, event: dict[str, Any]) -> str:
        return str(event["closed_at"])

    def _closes_at(self, context: Context) -> datetime:
        return run_interval(context).end + self.lateness
