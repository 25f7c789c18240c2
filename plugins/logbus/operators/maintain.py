"""Maintenance of targets: merge old hourly partitions into days, remove files that are no longer public."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from airflow.sdk import BaseOperator, Context

from logbus.hooks.warehouse import WarehouseHook
from logbus.model import utc_now
from logbus.operators.window_operator import names
from logbus.warehouse.sinks import Upkeep
from logbus.warehouse.upkeep import maintain


class MaintainOperator(BaseOperator):
    """Maintain the targets of `pipelines` (by default all that are registered) while loads and readers continue.

    Returns what was done, by pipeline. What readers or loads blocked is left for the next run.

    :param pipelines: names, as a list or as text (templated)
    :param keep_hourly: days younger than this keep a partition for each hour (PostgreSQL).
    :param keep_replaced: files that never became public, or are no longer, are kept this long (Iceberg, Parquet).
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
        now: Callable[[], datetime] = utc_now,
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
        upkeep = Upkeep(now=self._now(), sleep=self._sleep, keep_hourly=self.keep_hourly, keep_replaced=self.keep_replaced)
        done = maintain(WarehouseHook(self.warehouse_conn_id).get_engine(), upkeep, names(self.pipelines))
        for name, lines in done.items():
            for line in lines or ["nothing to do"]:
                self.log.info("%s: %s", name, line)
        return done
