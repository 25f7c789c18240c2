"""Audit a table that others load: compare it with its topic, and fail if records are missing, doubled or foreign."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from airflow.sdk import BaseOperator, Context

from logbus import errors, model, task_context
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.loads import foreign_table, table_audit

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
        columns = foreign_table.Columns(
            topic=self.topic_column,
            partition=self.partition_column,
            offset=self.offset_column,
            timestamp=self.timestamp_column,
        )
        if self.catalog:
            opened = foreign_table.iceberg_table(self.catalog, self.table, columns)
        else:
            engine = WarehouseHook(self.table_conn_id or self.warehouse_conn_id).get_engine()
            opened = foreign_table.postgres_table(engine, self.table, columns)
        since, until = (
            task_context.optional_instant(name, text) for name, text in (("since", self.since), ("until", self.until))
        )
        log, now = self.broker.log_offsets(), self._now()
        with opened as table:
            return table_audit.audit_table(log, table, self.topic, now, since=since, until=until, is_shared=self.is_shared)
