"""Freeze windows, a run's own or every closed one of a span: decide forever which offsets of each partition belong to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from logbus import model, task_context
from logbus.operators.window_operator import CONNECTION_FIELDS, OverWindows, WindowOperator
from logbus.sensors.window_loaded import WindowClosedTrigger
from logbus.windows.catch_up import WINDOWS_UNCONFIRMED_MAX, progress_to


class FreezesWindow(OverWindows):
    """Mixed into the operators that freeze their run's window: a run that starts before its hour is closed (a manual run, a
    backfill up to now) is deferred until it is."""

    registers = True

    def _defer_until_closed(self: Any, context: Context, resume: Callable[..., Any]) -> None:
        with task_context.fail_without_retry():
            closes_at = task_context.run_interval(context).end + self.pipeline.lateness
        if self._now() < closes_at:
            self.log.info("The hour is open until %s: waiting in the triggerer", closes_at)
            self.defer(trigger=WindowClosedTrigger(model.instant_text(closes_at)), method_name=resume.__name__)

    def _freeze(self, context: Context) -> model.FrozenWindow:
        ledger, log, now = self.warehouse.ledger(), self.broker.log_offsets(), self._now()
        with task_context.fail_without_retry():
            self._register(ledger, context)
            window = ledger.freeze_or_get(self.pipeline.name, task_context.run_interval(context), log, now)
        self.log.info("Window %s holds %d records: %s", window.interval, window.record_count, ", ".join(map(str, window.ranges)))
        return window


class FreezeWindowOperator(FreezesWindow, WindowOperator):
    """Freeze the run's data interval; a rerun finds the same offsets. Registers the pipeline on its first run.

    A run that starts before its hour is closed is deferred until it is.

    Returns the window: its ranges and how many records they hold.
    """

    ui_color = "#d7ecf5"

    def execute(self, context: Context) -> dict[str, Any]:
        self._defer_until_closed(context, self.resume)
        return self.resume(context)

    def resume(self, context: Context, event: dict[str, Any] | None = None) -> dict[str, Any]:
        """Once the hour is closed, after the trigger has fired if there was one."""
        return task_context.bounded_details([self._freeze(context).summary()])[0]


class FreezeClosedWindowsOperator(WindowOperator):
    """Freeze the closed hours between `since` and `until` (templated; empty means from the first record, up to the last closed
    hour that holds a record).

    Returns the starts of the windows as `starts`, for downstream tasks, which are skipped if no hour is closed.

    :param max_windows: how many windows may be frozen at most; if there are more, the task fails before it freezes any
    """

    template_fields: Sequence[str] = ("since", "until", *CONNECTION_FIELDS)
    registers = True
    ui_color = "#d7ecf5"

    def __init__(
        self, *, since: str | None = None, until: str | None = None, max_windows: int = WINDOWS_UNCONFIRMED_MAX, **kwargs: Any
    ) -> None:
        super().__init__(multiple_outputs=True, **kwargs)
        task_context.validate_count("max_windows", max_windows)
        self.max_windows = max_windows
        self.since = since
        self.until = until

    def execute(self, context: Context) -> dict[str, Any]:
        ledger, log, now = self.warehouse.ledger(), self.broker.log_offsets(), self._now()
        since, until = task_context.optional_instant("since", self.since), task_context.optional_instant("until", self.until)
        with task_context.fail_without_retry():
            self._register(ledger, context)
            plan = ledger.plan_load(self.pipeline.name, log, now, since, until)
            plan.refuse_more_than(self.max_windows, "max_windows allows more, since and until choose some")
            windows = ledger.freeze_plan(plan, log, now, progress_to(self.log.info, plan.count))
        if not windows:
            raise AirflowSkipException(f"no closed hour of {self.pipeline.name} lies between {self.since} and {self.until}")
        records = sum(window.record_count for window in windows)
        self.log.info("Frozen: %d hours from %s on, with %d records", len(windows), windows[0].interval, records)
        return {"starts": [model.instant_text(window.interval.start) for window in windows], "records": records}
