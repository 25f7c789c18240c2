"""What a night does: old hourly partitions become days, files that are no longer public go, and records that every pipeline has
loaded are deleted from managed topics; and what is done after a parser or its columns were fixed: dead letters are parsed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from airflow.sdk import BaseOperator, Context

from logbus import errors, model, task_context
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.loads.maintenance import maintain
from logbus.loads.sinks import MaintenanceOptions
from logbus.operators.window_operator import CONNECTION_FIELDS, WindowOperator
from logbus.status import retention_plan, retention_run


class MaintainOperator(BaseOperator):
    """Maintain the targets of `pipelines` (by default all that are registered) while loads and readers continue.

    Returns what was done, by pipeline. What readers or loads blocked is left for the next run.

    :param pipelines: names, as a list or as text (templated)
    :param keep_hourly: days younger than this keep a partition for each hour (PostgreSQL).
    :param keep_replaced: files that never became public, or are no longer, are kept this long (Iceberg).
    """

    template_fields: Sequence[str] = ("pipelines", "warehouse_conn_id")
    ui_color = "#e8e4f3"

    def __init__(
        self,
        *,
        pipelines: Sequence[str] | str | None = (),
        keep_hourly: timedelta = timedelta(days=35),
        keep_replaced: timedelta = timedelta(days=1),
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        now: Callable[[], datetime] = model.utc_now,
        sleep: Callable[[float], None] = time.sleep,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        self.pipelines = pipelines
        self.keep_hourly = keep_hourly
        self.keep_replaced = keep_replaced
        self.warehouse_conn_id = warehouse_conn_id
        self._now = now
        self._sleep = sleep

    def execute(self, context: Context) -> dict[str, list[str]]:
        options = MaintenanceOptions(
            now=self._now(), sleep=self._sleep, keep_hourly=self.keep_hourly, keep_replaced=self.keep_replaced
        )
        done = maintain(WarehouseHook(self.warehouse_conn_id).get_engine(), options, task_context.names(self.pipelines))
        for name, lines in done.items():
            for line in lines or ["nothing to do"]:
                self.log.info("%s: %s", name, line)
        return done


class RetentionOperator(BaseOperator):
    """Delete old records of the managed topics, as far as every pipeline has loaded and audited them.

    An alarm (a pipeline holds records back longer than it may, or records are gone that were never loaded) fails the task after
    everything else is done; a retry does not help.

    Returns the report: records, and for each topic what was deleted, what is held back and which windows stop being replayable.

    :param topics: only these topics, as a list or as text (templated); by default all that have a policy.
    :param policies: retention policies set in code; they replace those in the ledger at every run that is not a dry run.
    :param dry_run: only plan; templated, so that a manual run can set it.
    """

    template_fields: Sequence[str] = ("topics", "dry_run")
    ui_color = "#f3dede"

    def __init__(
        self,
        *,
        topics: Sequence[str] | str | None = None,
        policies: Sequence[retention_plan.RetentionPolicy] = (),
        dry_run: bool | str = False,
        kafka_conn_id: str = BrokerHook.default_conn_name,
        kafka_config_id: str | None = None,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        now: Callable[[], datetime] = model.utc_now,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topics = topics
        self.policies = policies
        self.dry_run = dry_run
        self.kafka_conn_id = kafka_config_id or kafka_conn_id
        self.warehouse_conn_id = warehouse_conn_id
        self._now = now

    def execute(self, context: Context) -> dict[str, Any]:
        retention, now = self.retention, self._now()
        topics = task_context.names(self.topics) or None
        if task_context.is_true(self.dry_run):
            report = retention.plan(now, topics)
        else:
            for policy in self.policies:
                retention.store.set_policy(policy, now)
            report = retention.run(now, str(context["run_id"]), topics)
        self._tell(report)
        if report.alarms:
            raise errors.RetentionOverdue("\n".join(report.alarms))
        return {**report.summary(), "topics": task_context.bounded_details(plan.summary() for plan in report.plans)}

    @cached_property
    def retention(self) -> retention_run.RetentionRun:
        ledger = WarehouseHook(self.warehouse_conn_id).ledger()
        return retention_run.RetentionRun(ledger.engine, BrokerHook(self.kafka_conn_id).log_offsets())

    def _tell(self, report: retention_run.RetentionReport) -> None:
        for plan in report.plans:
            windows = len(plan.unreplayable)
            self.log.info("%s: %d records; %d windows stop being replayable", plan.policy.topic, plan.records, windows)
            for remark in (*plan.holds, *plan.notes):
                self.log.info("  %s", remark)
        for line in report.metrics():
            self.log.info(line)


# Parse the dead letters of windows again, after the parser or the columns were fixed.


class RedriveOperator(WindowOperator):
    """Move dead letters that now parse into their windows: those of the run's interval, or of `windows`. Does not use Spark.

    A window keeps its fingerprint but must be audited again: put an AuditWindowOperator downstream. A second redrive finds less
    to do.

    Returns how many were tried, how many were loaded, and how many still do not parse; for the first hundred windows one by one,
    by error class.

    :param pipeline: a `Pipeline`, which is registered again first, so that the parser and settings are those of the DAG; or the
        name of a registered one (templated), whose parser and settings stay
    :param dry_run: only report what would become of them.
    """

    template_fields: Sequence[str] = ("pipeline_name", "windows", *CONNECTION_FIELDS)
    registers = True
    accepts_name = True
    ui_color = "#f6e3e3"

    def __init__(self, *, pipeline: model.Pipeline | str, dry_run: bool = False, **kwargs: Any) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.dry_run = dry_run

    def execute(self, context: Context) -> dict[str, Any]:
        from logbus.loads.redrive import Redrive, parser_of

        starts, ledger = self._starts(context), self.warehouse.ledger()
        with task_context.fail_without_retry():
            if isinstance(self.pipeline, model.Pipeline):
                self._register(ledger, context, remembers=False)
            pipeline = ledger.pipeline(self.pipeline_name)  # with the columns that loads have inferred
            windows = ledger.windows_at(pipeline.name, starts)
            redrive = Redrive(
                engine=self.warehouse.get_engine(),
                pipeline=pipeline,
                parser=parser_of(self.warehouse.get_engine(), pipeline, windows, self.broker.client_config()),
                run_id=str(context["run_id"]),
                now=self._now,
            )
            act = redrive.plan if self.dry_run else redrive.run
            outcomes = [act(window) for window in windows]
        for outcome in outcomes:
            self.log.info("%s", outcome.summary())
        return {
            "tried": sum(outcome.tried for outcome in outcomes),
            "loaded": sum(outcome.loaded for outcome in outcomes),
            "dead_lettered": sum(outcome.dead_lettered for outcome in outcomes),
            **task_context.windows_extra(starts, outcomes),
        }
