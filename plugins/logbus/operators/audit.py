"""The second witness: count the table again, ask the broker again, and fail if anything differs; and the same for a table that
others load: compare it with its topic, and fail if records are missing, doubled or foreign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

from airflow.sdk import BaseOperator, Context

from logbus import assets, errors, formatting, model, task_context
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.loads import table_audit, target
from logbus.loads.audit import audit_window
from logbus.loads.completeness import complete_until
from logbus.loads.sinks import each_sink_once, sink_for
from logbus.operators.window_operator import OverWindows, WindowOperator

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


# Audit a table that others load: compare it with its topic, and fail if records are missing, doubled or foreign.


HOURS_RETURNED_MAX = 100


class AuditTableOperator(BaseOperator):
    """Compare `table` with `topic`, hour by hour, and fail if records are missing from it, are in it twice, or are foreign. No
    pipeline is needed, and the table is not changed; the result is kept in the ledger, for pages and metrics.

    Returns the counts, and the first hundred hours that are not exact. A wrong name of a table or column fails without a retry.

    :param table: `schema.table` in PostgreSQL, `namespace.table` in a catalog (templated)
    :param topic: templated
    :param catalog: of an Iceberg table: its name in pyiceberg's configuration (templated)
    :param topic_column: by default found, as are the other three: `topic`, `_topic`, `kafka_topic`, ...
    :param partition_column: a dot leads into a struct
    :param offset_column: likewise
    :param timestamp_column: with the record's time; without one, foreign rows are counted for the whole table only
    :param is_shared: whether the table holds other topics too, whose rows are then not foreign
    :param since: the first instant (templated); by default that of the log's first record
    :param until: the last instant (templated); by default the last closed hour's end
    :param table_conn_id: the PostgreSQL that holds the table (templated); by default the warehouse
    """

    template_fields: Sequence[str] = (
        *("table", "topic", "catalog", "topic_column", "partition_column", "offset_column", "timestamp_column", "since", "until"),
        *("table_conn_id", "kafka_conn_id", "warehouse_conn_id"),
    )
    ui_color = "#ddf1de"

    def __init__(
        self,
        *,
        table: str,
        topic: str,
        catalog: str | None = None,
        topic_column: str | None = None,
        partition_column: str | None = None,
        offset_column: str | None = None,
        timestamp_column: str | None = None,
        is_shared: bool = False,
        since: str | None = None,
        until: str | None = None,
        table_conn_id: str | None = None,
        kafka_conn_id: str = BrokerHook.default_conn_name,
        kafka_config_id: str | None = None,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        now: Callable[[], datetime] = model.utc_now,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.topic = topic
        self.catalog = catalog
        self.topic_column = topic_column
        self.partition_column = partition_column
        self.offset_column = offset_column
        self.timestamp_column = timestamp_column
        self.is_shared = is_shared
        self.since = since
        self.until = until
        self.table_conn_id = table_conn_id
        self.kafka_conn_id = kafka_config_id or kafka_conn_id
        self.warehouse_conn_id = warehouse_conn_id
        self._now = now

    @cached_property
    def broker(self) -> BrokerHook:
        return BrokerHook(self.kafka_conn_id)

    def execute(self, context: Context) -> dict[str, Any]:
        ledger = WarehouseHook(self.warehouse_conn_id).ledger()
        with task_context.fail_without_retry():
            report = self._audit()
        table_audit.record_report(ledger.engine, report, self._now())
        not_exact = [hour.summary() for hour in report.hours if hour.verdict != table_audit.EXACT]
        for hour in not_exact:
            self.log.info("%s %s: %s", hour["start"], hour["verdict"], "; ".join(hour["remarks"]))
        for remark in (*report.problems, *report.notes):
            self.log.info(remark)
        if not report.ok:
            raise errors.AuditMismatch(report.failure())
        return {**report.summary(), "hours": not_exact[:HOURS_RETURNED_MAX], "audited": len(report.hours)}

    def _audit(self) -> table_audit.TableReport:
        columns = target.Columns(
            topic=self.topic_column,
            partition=self.partition_column,
            offset=self.offset_column,
            timestamp=self.timestamp_column,
        )
        if self.catalog:
            opened = target.iceberg_table(self.catalog, self.table, columns)
        else:
            engine = WarehouseHook(self.table_conn_id or self.warehouse_conn_id).get_engine()
            opened = target.postgres_table(engine, self.table, columns)
        since, until = (
            task_context.optional_instant(name, text) for name, text in (("since", self.since), ("until", self.until))
        )
        log, now = self.broker.log_offsets(), self._now()
        with opened as table:
            return table_audit.audit_table(log, table, self.topic, now, since=since, until=until, is_shared=self.is_shared)
