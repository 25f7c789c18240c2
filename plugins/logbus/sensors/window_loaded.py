"""May an hour be frozen? Once the clock has passed its end plus the lateness the pipeline allows. May a downstream DAG read it?
Once its window is loaded, or audited if required.

Nothing waits for data, so quiet partitions close like busy ones. The trigger reads no data and holds no connection, so
thousands of them cost the triggerer next to nothing.

`WindowLoadedSensor` is for use in another DAG: one team's `hourly_ingest` fills a table, another team's daily report waits for
the 24 windows of its day.

A window is a range of offsets, named after the hour at which it begins. A DAG that selects rows by `_timestamp` should set
`event_time`, to wait also for the later windows that may hold records of the interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Context
from airflow.triggers.base import BaseTrigger, TriggerEvent
from sqlalchemy import Engine

from logbus import errors, model, task_context
from logbus.hooks.warehouse import WarehouseHook
from logbus.loads.completeness import missing_of_stamped, missing_span, windows_holding
from logbus.sensors.window_sensor import POLL_SECONDS_DEFAULT, LedgerSensor, LedgerTrigger, WindowSensor


class WindowClosedSensor(WindowSensor):
    """Passes once the run's data interval is closed. Returns the instant at which it closed.

    :param lateness: how long after its end the hour stays open for records still on their way (default: five minutes)
    """

    def __init__(self, *, lateness: timedelta = model.LATENESS_DEFAULT, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lateness = lateness

    def has_happened(self, context: Context) -> bool:
        return self._now() >= self._closes_at(context)

    def outcome(self, context: Context) -> str:
        return model.instant_text(self._closes_at(context))

    def trigger_for(self, context: Context) -> WindowClosedTrigger:
        return WindowClosedTrigger(model.instant_text(self._closes_at(context)))

    def _closes_at(self, context: Context) -> datetime:
        return task_context.run_interval(context).end + self.lateness


SLEEP_SECONDS_MAX = 30.0
Sleep = Callable[[float], Awaitable[None]]


class WindowClosedTrigger(BaseTrigger):
    """Fires at `closes_at`, an instant as text because triggers are serialized between processes."""

    def __init__(self, closes_at: str, now: Callable[[], datetime] = model.utc_now, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__()
        self.closes_at = closes_at
        self._now = now
        self._sleep = sleep

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return ("logbus.sensors.window_loaded.WindowClosedTrigger", {"closes_at": self.closes_at})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        # In short sleeps: the wall clock counts, which is still right after a laptop was suspended or a clock set.
        while (seconds := self._seconds_left()) > 0:
            await self._sleep(min(seconds, SLEEP_SECONDS_MAX))
        yield TriggerEvent({"closed_at": model.instant_text(self._now())})

    def _seconds_left(self) -> float:
        return (model.parse_instant(self.closes_at) - self._now()).total_seconds()


# May a downstream DAG read an hour? Once its window is loaded, or audited if required.


class WindowLoadedSensor(LedgerSensor):
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

    operator_extra_links = (task_context.WindowLink(),)
    template_fields: Sequence[str] = ("pipeline_name", "warehouse_conn_id")

    def __init__(
        self,
        *,
        pipeline: model.Pipeline | str,
        audited: bool = False,
        event_time: bool = False,
        lateness: timedelta | None = None,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if lateness is not None and not event_time:
            raise errors.UserError(
                "lateness requires event_time=True: without it the sensor waits only for the windows of the interval"
            )
        if not isinstance(pipeline, (model.Pipeline, str)):
            raise task_context.not_a_pipeline(pipeline, type(self).__name__)
        self.event_time = event_time
        self.lateness = lateness
        self.pipeline_name = pipeline if isinstance(pipeline, str) else pipeline.name
        self.audited = audited
        self.warehouse_conn_id = warehouse_conn_id

    def has_happened(self, context: Context) -> bool:
        missing = self.trigger_for(context).missing(WarehouseHook(self.warehouse_conn_id).ledger().engine)
        if missing is not None:
            self.log.info("%s of %s is not %s yet", missing, self.pipeline_name, "audited" if self.audited else "loaded")
        return missing is None

    def outcome(self, context: Context) -> dict[str, Any]:
        span = task_context.run_interval(context)
        loaded = {"pipeline": self.pipeline_name, "start": model.instant_text(span.start), "end": model.instant_text(span.end)}
        if not self.event_time:
            return loaded
        return {**loaded, "windows": {model.instant_text(start): count for start, count in self._held(span).items()}}

    def _held(self, span: model.Interval) -> dict[datetime, int]:
        """Which windows hold records stamped within the span, and how many."""
        with WarehouseHook(self.warehouse_conn_id).ledger().engine.connect() as connection:
            return windows_holding(connection, self.pipeline_name, span)

    def trigger_for(self, context: Context) -> WindowLoadedTrigger:
        span = task_context.run_interval(context)
        return WindowLoadedTrigger(
            pipeline=self.pipeline_name,
            start=model.instant_text(span.start),
            end=model.instant_text(span.end),
            audited=self.audited,
            event_time=self.event_time,
            lateness_seconds=None if self.lateness is None else self.lateness.total_seconds(),
            warehouse_conn_id=self.warehouse_conn_id,
            poll_seconds=self.poke_interval,
        )


class WindowLoadedTrigger(LedgerTrigger):
    """Fires when [start, end), instants as text, is covered by loaded windows of the pipeline; with `event_time`, when the
    records stamped within it are loaded (which ones: see `WindowLoadedSensor`)."""

    def __init__(
        self,
        *,
        pipeline: str,
        start: str,
        end: str,
        audited: bool = False,
        event_time: bool = False,
        lateness_seconds: float | None = None,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        poll_seconds: float = POLL_SECONDS_DEFAULT,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.start = start
        self.end = end
        self.audited = audited
        self.event_time = event_time
        self.lateness_seconds = lateness_seconds
        self.warehouse_conn_id = warehouse_conn_id
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        fields = ("pipeline", "start", "end", "audited", "event_time", "lateness_seconds", "warehouse_conn_id", "poll_seconds")
        return ("logbus.sensors.window_loaded.WindowLoadedTrigger", {name: getattr(self, name) for name in fields})

    def has_happened(self, engine: Engine) -> bool:
        return self.missing(engine) is None

    def event(self) -> dict[str, Any]:
        return {"pipeline": self.pipeline, "start": self.start, "end": self.end}

    def missing(self, engine: Engine) -> model.Interval | None:
        """The first part of the span that is not loaded yet; None once all of it is."""
        span = model.Interval(model.parse_instant(self.start), model.parse_instant(self.end))
        if not self.event_time:
            return missing_span(engine, self.pipeline, span, audited=self.audited)
        lateness = None if self.lateness_seconds is None else timedelta(seconds=self.lateness_seconds)
        return missing_of_stamped(engine, self.pipeline, span, lateness, audited=self.audited)
