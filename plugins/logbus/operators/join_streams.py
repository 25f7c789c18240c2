"""Define a join of two pipelines as their records arrive: two streams of rows, and a view over both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from airflow.sdk import BaseOperator, Context

from logbus import errors, model, task_context
from logbus.hooks.warehouse import WarehouseHook
from logbus.streams import stream_ledger
from logbus.streams.joins import Join


class JoinStreamsOperator(BaseOperator):
    """Puts `join` and its two streams into the ledger, if they are not there yet; computing and proving these is for
    StreamOnceOperator and ProveStreamOperator. The view is made here, or by the first run of the second stream if the table of a
    pipeline is not there before. Returns the names of the streams.

    :param join: what `logbus.streams.joins.define_join` returns
    :param warehouse_conn_id: the connection of the warehouse (templated)
    :param now: the clock; tests pass another one
    """

    template_fields: Sequence[str] = ("warehouse_conn_id",)
    ui_color = "#e6e0f5"

    def __init__(
        self,
        *,
        join: Join,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        now: Callable[[], datetime] = model.utc_now,
        **kwargs: Any,
    ) -> None:
        if not isinstance(join, Join):
            raise errors.UserError(f"JoinStreamsOperator takes a Join, not {join!r}: pass what define_join(...) returns")
        super().__init__(**kwargs)
        self.join = join
        self.warehouse_conn_id = warehouse_conn_id
        self._now = now

    def execute(self, context: Context) -> dict[str, Any]:
        with task_context.fail_without_retry():
            stream_ledger.define_join(WarehouseHook(self.warehouse_conn_id).ledger().engine, self.join, self._now())
        return {"view": self.join.table, "streams": [side.name for side in self.join.sides]}
