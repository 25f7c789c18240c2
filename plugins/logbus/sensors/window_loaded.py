"""May somebody downstream read an hour? Once its window is loaded, or audited where that is asked for.

For a DAG of its own: `hourly_ingest` of one team fills a table, another team's daily report waits for the 24 windows of its day.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from logbus.hooks.warehouse import WarehouseHook
from logbus.links import WindowLink
from logbus.run_interval import run_interval
from logbus.sensors.window_sensor import WindowSensor
from logbus.triggers.window_loaded import WindowLoadedTrigger
from logbus.windows.coverage import missing_span
from logbus.windows.model import Pipeline, instant_text


class WindowLoadedSensor(WindowSensor):
    """Passes when every window of the pipeline within the run's data interval is loaded.

    Returns the span that is loaded. A pipeline that nobody has registered yet is waited for.

    :param pipeline: a pipeline, or the name of a registered one (templated)
    :param audited: wait for the audit as well: nothing differs between table, ledger and broker
    """

    operator_extra_links = (WindowLink(),)
    template_fields: Sequence[str] = ("pipeline_name", "warehouse_conn_id")

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        audited: bool = False,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline_name = pipeline if isinstance(pipeline, str) else pipeline.name
        self.audited = audited
        self.warehouse_conn_id = warehouse_conn_id

    def poke(self, context: Context) -> bool:
        engine = WarehouseHook(self.warehouse_conn_id).ledger().engine
        missing = missing_span(engine, self.pipeline_name, run_interval(context), audited=self.audited)
        if missing is not None:
            self.log.info("%s of %s is not %s yet", missing, self.pipeline_name, "audited" if self.audited else "loaded")
        return missing is None

    def outcome(self, context: Context) -> dict[str, Any]:
        span = run_interval(context)
        return {"pipeline": self.pipeline_name, "start": instant_text(span.start), "end": instant_text(span.end)}

    def trigger_for(self, context: Context) -> WindowLoadedTrigger:
        span = run_interval(context)
        return WindowLoadedTrigger(
            pipeline=self.pipeline_name,
            start=instant_text(span.start),
            end=instant_text(span.end),
            audited=self.audited,
            warehouse_conn_id=self.warehouse_conn_id,
            poll_seconds=self.poke_interval,
        )
