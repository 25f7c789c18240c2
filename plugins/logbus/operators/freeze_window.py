"""Freeze a window: decide forever which offsets of each partition belong to it."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from logbus.model import instant_text
from logbus.operators.window_operator import WindowOperator, fail_without_retry
from logbus.run_interval import run_interval
from logbus.triggers.window_closed import WindowClosedTrigger


class FreezeWindowOperator(WindowOperator):
    """Freeze the run's data interval; a rerun finds the same offsets. Registers the pipeline on its first run.

    A run that starts before its hour is closed (a manual run, a backfill up to now) is deferred until it is.

    Returns the window: its ranges and how many records they hold.
    """

    registers = True
    ui_color = "#d7ecf5"

    def execute(self, context: Context) -> dict[str, Any]:
        with fail_without_retry():
            closes_at = run_interval(context).end + self.pipeline.lateness
        if self._now() < closes_at:
            self.log.info("The hour is open until %s: waiting in the triggerer", closes_at)
            self.defer(trigger=WindowClosedTrigger(instant_text(closes_at)), method_name=self.resume.__name__)
        return self._freeze(context)

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continues after the trigger has fired."""
        return self._freeze(context)

    def _freeze(self, context: Context) -> dict[str, Any]:
        ledger, log, now = self.warehouse.ledger(), self.broker.log_offsets(), self._now()
        with fail_without_retry():
            self._register(ledger, context)
            window = ledger.freeze_or_get(self.pipeline.name, run_interval(context), log, now)
        self.log.info("Window %s holds %d records: %s", window.interval, window.record_count, ", ".join(map(str, window.ranges)))
        return window.summary()
