"""What both sensors share: check once, and only then wait, in the triggerer or by poking.

Checking first lets a run for a past interval pass in one step, and it is what makes a retry harmless: deferring can race with the
scheduler in Airflow 3 (a task that its trigger queues again before the scheduler has seen it defer is failed), so retries are on
by default, and a retry finds that what it waits for has happened.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseSensorOperator, Context
from airflow.triggers.base import BaseTrigger

from logbus.model import utc_now

RETRIES_DEFAULT = 2
RETRY_DELAY_DEFAULT = timedelta(seconds=10)


class WindowSensor(BaseSensorOperator):
    """Base of the sensors over windows.

    :param deferrable: wait in the triggerer, where a thousand waits cost no worker slot. Default: Airflow's setting
        `operators.default_deferrable`.
    """

    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        deferrable: bool | None = None,
        # Named parameters, not defaults put into kwargs: Airflow reads them for mapped tasks, and default_args win over them.
        retries: int | None = RETRIES_DEFAULT,
        retry_delay: timedelta | float = RETRY_DELAY_DEFAULT,
        now: Callable[[], datetime] = utc_now,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.deferrable = conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable
        self._now = now

    def execute(self, context: Context) -> Any:
        if self.poke(context):
            return self.outcome(context)
        if not self.deferrable:
            super().execute(context)
            return self.outcome(context)
        return self.defer(
            trigger=self.trigger_for(context),
            method_name=self.resume.__name__,
            timeout=timedelta(seconds=self.timeout),
        )

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """Continues after the trigger has fired."""
        return self.outcome(context)

    @abstractmethod
    def outcome(self, context: Context) -> Any:
        """What the task returns once it passes."""

    @abstractmethod
    def trigger_for(self, context: Context) -> BaseTrigger:
        """The trigger that waits in the task's place."""
