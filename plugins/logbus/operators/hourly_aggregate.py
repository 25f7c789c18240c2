"""Bring an aggregate up to date after loads, and prove it: the hours that loads have touched, and no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from logbus import assets, model, task_context
from logbus.hooks.warehouse import WarehouseHook
from logbus.streams.aggregate_definition import Aggregate
from logbus.streams.aggregate_listing import AggregateProof, prove_unaudited, refuse_wrong
from logbus.streams.hourly_aggregates import bring_up_to_date, define


class HourlyAggregateOperator(BaseOperator):
    """Compute the hours of `aggregate` again that loads have touched since the last run, in a fenced transaction: if another run
    has begun since, this one writes nothing and fails without a retry.

    The first run makes the table, of all windows that are loaded. Returns how many windows it took in, how many rows it wrote,
    and the starts of the hours.

    :param aggregate: what `logbus.streams.aggregate_definition.define_aggregate` returns
    :param warehouse_conn_id: the connection of the warehouse (templated)
    :param now: the clock; tests pass another one
    """

    template_fields: Sequence[str] = ("warehouse_conn_id",)
    ui_color = "#e6e0f5"

    def __init__(
        self,
        *,
        aggregate: Aggregate,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        now: Callable[[], datetime] = model.utc_now,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.aggregate = aggregate
        self.warehouse_conn_id = warehouse_conn_id
        self._now = now

    def execute(self, context: Context) -> dict[str, Any]:
        engine = WarehouseHook(self.warehouse_conn_id).ledger().engine
        with task_context.fail_without_retry():
            define(engine, self.aggregate, self._now())
            done = bring_up_to_date(engine, self.aggregate.name, str(context["run_id"]), self._now)
        self.log.info("%d window(s) were new, %d hour(s) are computed again", done.windows, len(done.hours))
        for hour, reason in done.kept.items():
            self.log.warning("%s is kept as it is: %s", model.instant_text(hour), reason)
        return done.summary()


class AuditAggregateOperator(BaseOperator):
    """Compare the hours of an aggregate that were written by this run, or since the last audit, row by row with what the
    pipeline's rows add up to, and fail if any differs. Its success is an event of its outlets, for which there is
    `logbus.assets.aggregate_outlets`.

    Returns which hours are exact, and which were left to the next run because a load has touched them meanwhile; without an
    exact one it is skipped.

    :param aggregate: the aggregate, or its name (templated)
    :param warehouse_conn_id: the connection of the warehouse (templated)
    :param now: the clock; tests pass another one
    """

    template_fields: Sequence[str] = ("aggregate_name", "warehouse_conn_id")
    ui_color = "#ddf1de"

    def __init__(
        self,
        *,
        aggregate: Aggregate | str,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        now: Callable[[], datetime] = model.utc_now,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.aggregate_name = aggregate if isinstance(aggregate, str) else aggregate.name
        self.warehouse_conn_id = warehouse_conn_id
        self._now = now

    def execute(self, context: Context) -> dict[str, Any]:
        engine = WarehouseHook(self.warehouse_conn_id).ledger().engine
        proof: AggregateProof = prove_unaudited(engine, self.aggregate_name, self._now(), run_id=str(context["run_id"]))
        for hour in proof.hours:
            for problem in hour.problems:
                self.log.info("%s %s", model.instant_text(hour.hour), problem)
        refuse_wrong(proof)
        exact, behind = ([model.instant_text(hour) for hour in proof.of(verdict)] for verdict in ("exact", "behind"))
        if not exact:
            raise AirflowSkipException("no hour was written since the last audit")
        assets.tell_of_aggregated(context, self.outlets, self.aggregate_name, proof.of("exact"))
        return {"audited": len(exact), "hours": exact, "behind": behind}
