"""The second witness: count the table again, ask the broker again, and fail if anything differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow.sdk import Context

from logbus import assets, errors, formatting, model, task_context
from logbus.hooks.warehouse import WarehouseHook
from logbus.loads.audit import audit_window
from logbus.loads.sinks import each_sink_once, sink_for
from logbus.operators.window_operator import OverWindows, WindowOperator
from logbus.windows.coverage import complete_until

PROBLEMS_SHOWN_MAX = 20  # in the error of an audit over many windows; the log has all of them


class AuditsWindows(OverWindows):
    """Mixed into the operators that audit windows: what they find, and what they tell of it."""

    outlets: Sequence[Any]
    pipeline_name: str
    _reports: Sequence[model.AuditReport] = ()

    def _audit(self, context: Context, starts: Sequence[datetime]) -> list[model.AuditReport]:
        """The reports, all exact: `AuditMismatch` says what is not."""
        engine, log = self.warehouse.get_engine(), self.broker.log_offsets()
        with task_context.fail_without_retry():
            sinks = each_sink_once()
            reports = [audit_window(engine, log, self.pipeline_name, start, self._now(), sinks) for start in starts]
        self._reports = reports
        for report in reports:
            self._tell(report)
        with engine.connect() as connection:
            until = complete_until(connection, self.pipeline_name)
        assets.store_complete_until(context, self.outlets, self.pipeline_name, until)
        if problems := [problem for report in reports for problem in _dated_problems(report)]:
            raise errors.AuditMismatch(audit_failure(problems, len(reports)))
        proven = [_as_audited(report, self._now()) for report in reports]
        pipeline = self.warehouse.ledger().pipeline(self.pipeline_name)
        assets.tell_of_proven(context, self.outlets, pipeline, proven, sinks(pipeline, engine).public_table)
        return reports

    def _audit_lineage(self: Any) -> Any:
        """The table, and whether it is exact: for Airflow's OpenLineage provider, if installed."""
        from logbus import lineage

        if not self._reports:  # what failed came before the audit, perhaps before the pipeline was registered
            return lineage.of_audit(None, [])
        ledger = WarehouseHook(self.warehouse_conn_id).ledger()
        table = sink_for(ledger.pipeline(self.pipeline_name), ledger.engine).public_table()
        return lineage.of_audit(table, self._reports)

    def _tell(self, report: model.AuditReport) -> None:
        count = sum(tally.loaded + tally.dead_lettered for tally in report.counted.values())
        self.log.info("%s %s: %d records found", report.verdict if report.ok else "WRONG", report.window.interval, count)
        for remark in (*report.problems, *report.notes):
            self.log.info("  %s", remark)


class AuditWindowOperator(AuditsWindows, WindowOperator):
    """Audit the run's window, or all of `windows`. If a count is off, the task fails and names the partition and the difference.

    Returns the starts of the windows, and what was counted in each of the first hundred. Its success is an event of its outlets,
    for which there is `logbus.assets.outlets(pipeline)`.

    :param pipeline: a `Pipeline`, or the name of a registered one (templated)
    :param also: starts of additional windows that the run has loaded (templated)
    """

    template_fields: Sequence[str] = ("pipeline_name", "also", *WindowOperator.template_fields)
    accepts_name = True
    ui_color = "#ddf1de"

    def __init__(self, *, pipeline: model.Pipeline | str, also: Sequence[str] | str = (), **kwargs: Any) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.also = also

    def execute(self, context: Context) -> dict[str, Any]:
        with task_context.fail_without_retry():
            starts = self._starts(context, task_context.window_starts(self.also))
        reports = self._audit(context, starts)
        return {"audited": len(reports), **task_context.windows_extra(starts, reports)}

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Called only by Airflow's OpenLineage provider, if installed."""
        return self._audit_lineage()

    get_openlineage_facets_on_failure = get_openlineage_facets_on_complete


def _as_audited(report: model.AuditReport, now: datetime) -> model.FrozenWindow:
    """The window as it is after the audit that has just passed."""
    return replace(report.window, state=model.WindowState.AUDITED, audited_at=now)


def _dated_problems(report: model.AuditReport) -> list[str]:
    start: datetime = report.window.interval.start
    return [f"{model.instant_text(start)}: {problem}" for problem in report.problems]


def audit_failure(problems: list[str], window_count: int) -> str:
    left_out = len(problems) - PROBLEMS_SHOWN_MAX
    lines = [*problems[:PROBLEMS_SHOWN_MAX], *([f"and {left_out} more, see the log"] if left_out > 0 else [])]
    audited = f"the audit of {formatting.many(window_count, 'window')}"
    return f"{audited} found differences; load them again and audit them again:\n" + "\n".join(lines)
