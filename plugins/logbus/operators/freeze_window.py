"""Freeze a window: decide for ever which offsets of each partition belong to it."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from logbus.operators.window_operator import WindowOperator, beyond_retry_fails_at_once
from logbus.run_interval import run_interval


class FreezeWindowOperator(WindowOperator):
    """Freeze the run's data interval; a rerun finds the same offsets. Registers the pipeline on its first run.

    Returns the window: its ranges and how many records they hold.
    """

    registers = True
    ui_color = "#d7ecf5"

    def execute(self, context: Context) -> dict[str, Any]:
        ledger, log, now = self._warehouse().ledger(), self._broker().log_offsets(), self._now()
        with beyond_retry_fails_at_once():
            self._register(ledger, context)
            window = ledger.freeze_or_get(self.pipeline.name, run_interval(context), log, now)
        self.log.info("Window %s holds %d records: %s", window.interval, window.record_count, ", ".join(map(str, window.ranges)))
        return window.summary()
