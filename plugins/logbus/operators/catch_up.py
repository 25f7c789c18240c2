"""Freeze every closed hour of a span at once, so that one Spark application can load them all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from logbus.errors import UserError
from logbus.ledger.catch_up import WINDOWS_UNASKED_MAX, telling
from logbus.model import instant_text, parse_instant
from logbus.operators.window_operator import CONNECTION_FIELDS, WindowOperator, fail_without_retry, refuse_no_count


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
        self, *, since: str | None = None, until: str | None = None, max_windows: int = WINDOWS_UNASKED_MAX, **kwargs: Any
    ) -> None:
        super().__init__(multiple_outputs=True, **kwargs)
        refuse_no_count("max_windows", max_windows)
        self.max_windows = max_windows
        self.since = since
        self.until = until

    def execute(self, context: Context) -> dict[str, Any]:
        ledger, log, now = self.warehouse.ledger(), self.broker.log_offsets(), self._now()
        since, until = optional_instant("since", self.since), optional_instant("until", self.until)
        with fail_without_retry():
            self._register(ledger, context)
            plan = ledger.plan_load(self.pipeline.name, log, now, since, until)
            plan.refuse_more_than(self.max_windows, "max_windows allows more, since and until choose some")
            windows = ledger.freeze_plan(plan, log, now, telling(plan.count, self.log.info))
        if not windows:
            raise AirflowSkipException(f"no closed hour of {self.pipeline.name} lies between {self.since} and {self.until}")
        records = sum(window.record_count for window in windows)
        self.log.info("%d hours from %s on hold %d records", len(windows), windows[0].interval, records)
        return {"starts": [instant_text(window.interval.start) for window in windows], "records": records}


def optional_instant(name: str, text: str | None) -> datetime | None:
    """The instant, or None if it was left out; a DAG parameter that was left out renders as "None"."""
    if text is None or text in {"", "None"}:
        return None
    try:
        return parse_instant(text)
    except ValueError as error:
        raise UserError(f"{name} is an instant such as 2015-05-17T10:00:00Z: {error}") from None
