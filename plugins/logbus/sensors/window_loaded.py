"""May a downstream DAG read an hour? Once its window is loaded, or audited if required.

For use in another DAG: one team's `hourly_ingest` fills a table, another team's daily report waits for the 24 windows of its day.

A window is a range of offsets, named after the hour at which it begins. A DAG that selects rows by `_timestamp` should set
`event_time`, to wait also for the later windows that may hold records of the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Context

from logbus.errors import UserError
from logbus.hooks.warehouse import WarehouseHook
from logbus.ledger.stamped_hours import windows_holding
from logbus.links import WindowLink
from logbus.model import Interval, Pipeline, instant_text
from logbus.operators.window_operator import no_pipeline
from logbus.run_interval import run_interval
from logbus.sensors.window_sensor import WindowSensor
from logbus.triggers.window_loaded import AWAY, WindowLoadedTrigger


class WindowLoadedSensor(WindowSensor):
    """Passes once every window of the pipeline within the run's data interval is loaded.

    Returns the loaded span. Waits for a pipeline that is not registered yet.

    :param pipeline: a pipeline, or the name of a registered one (templated)
    :param audited: wait for the audit as well: nothing differs between table, ledger and broker
    :param event_time: wait until every record that is stamped within the interval and reached the broker no later than `lateness`
        after its end is loaded, in whichever window. That holds once all windows up to `end + lateness + max_ahead` are loaded,
        provided that no producer's clock is more than the pipeline's `max_ahead_minutes` fast; records that arrive later cannot
        be waited for. Also returns which windows hold records of the interval.
    :param lateness: with `event_time`: how late a record may arrive and still be waited for; by default the pipeline's lateness
    """

    operator_extra_links = (WindowLink(),)
    template_fields: Sequence[str] = ("pipeline_name", "warehouse_conn_id")

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        audited: bool = False,
        event_time: bool = False,
        lateness: timedelta | None = None,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if lateness is not None and not event_time:
            raise UserError("lateness is for event_time=True: without it the sensor waits for the windows of the interval alone")
        if not isinstance(pipeline, (Pipeline, str)):
            raise no_pipeline(pipeline, type(self).__name__)
        self.event_time = event_time
        self.lateness = lateness
        self.pipeline_name = pipeline if isinstance(pipeline, str) else pipeline.name
        self.audited = audited
        self.warehouse_conn_id = warehouse_conn_id
        self._has_answered = False

    def poke(self, context: Context) -> bool:
        """As in the triggerer, a warehouse that is away for a moment ends no wait. One that never answered is an error."""
        try:
            passes = super().poke(context)
        except AWAY as error:
            if not self._is_waiting(context):
                raise
            self.log.warning("The ledger did not answer, asking again in %g s: %s", self.poke_interval, error)
            return False
        self._has_answered = True
        return passes

    def _is_waiting(self, context: Context) -> bool:
        """Whether the warehouse has answered before: this process, or the one that rescheduled the task."""
        return self._has_answered or (self.reschedule and context["ti"].get_first_reschedule_date(context) is not None)

    def has_happened(self, context: Context) -> bool:
        missing = self.trigger_for(context).missing(WarehouseHook(self.warehouse_conn_id).ledger().engine)
        if missing is not None:
            self.log.info("%s of %s is not %s yet", missing, self.pipeline_name, "audited" if self.audited else "loaded")
        return missing is None

    def outcome(self, context: Context) -> dict[str, Any]:
        span = run_interval(context)
        loaded = {"pipeline": self.pipeline_name, "start": instant_text(span.start), "end": instant_text(span.end)}
        if not self.event_time:
            return loaded
        return {**loaded, "windows": {instant_text(start): count for start, count in self._held(span).items()}}

    def _held(self, span: Interval) -> dict[datetime, int]:
        """Which windows hold records stamped within the span, and how many."""
        with WarehouseHook(self.warehouse_conn_id).ledger().engine.connect() as connection:
            return windows_holding(connection, self.pipeline_name, span)

    def trigger_for(self, context: Context) -> WindowLoadedTrigger:
        span = run_interval(context)
        return WindowLoadedTrigger(
            pipeline=self.pipeline_name,
            start=instant_text(span.start),
            end=instant_text(span.end),
            audited=self.audited,
            event_time=self.event_time,
            lateness_seconds=None if self.lateness is None else self.lateness.total_seconds(),
            warehouse_conn_id=self.warehouse_conn_id,
            poll_seconds=self.poke_interval,
        )
