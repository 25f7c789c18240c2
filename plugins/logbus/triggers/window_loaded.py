"""Waits for the ledger: fires once when every window of a span is loaded, or audited.

One short query every `poll_seconds`, in a thread outside the triggerer's event loop, on a connection that is closed in between.
If the warehouse is slow or restarts, the trigger keeps waiting: a wait of hours should not fail because of one minute, and ends
with the sensor's own `timeout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent
from sqlalchemy import Engine
from sqlalchemy.exc import InterfaceError, OperationalError

from logbus.errors import WarehouseUnavailable
from logbus.hooks.warehouse import WarehouseHook
from logbus.ledger.coverage import missing_span
from logbus.ledger.stamped_hours import missing_of_stamped
from logbus.model import Interval, parse_instant

POLL_SECONDS_DEFAULT = 30.0
AWAY = (WarehouseUnavailable, OperationalError, InterfaceError)
Answer = TypeVar("Answer")


def ask_ledger(hook: WarehouseHook, question: Callable[[Engine], Answer]) -> Answer:
    """The answer of the ledger, on a connection that is closed afterwards: a thousand waits would hold a thousand of them."""
    engine = hook.ledger().engine
    try:
        return question(engine)
    finally:
        engine.dispose()


class WindowLoadedTrigger(BaseTrigger):
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
        return ("logbus.triggers.window_loaded.WindowLoadedTrigger", {name: getattr(self, name) for name in fields})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        hook = WarehouseHook(self.warehouse_conn_id)
        while not await self.is_loaded(hook):
            await asyncio.sleep(self.poll_seconds)
        yield TriggerEvent({"pipeline": self.pipeline, "start": self.start, "end": self.end})

    async def is_loaded(self, hook: WarehouseHook) -> bool:
        """Whether the whole span is loaded now; False if the warehouse does not answer."""
        try:
            return await asyncio.to_thread(ask_ledger, hook, self.missing) is None
        except AWAY as error:
            self.log.warning("The ledger did not answer, asking again in %g s: %s", self.poll_seconds, error)
            return False

    def missing(self, engine: Engine) -> Interval | None:
        """The first part of the span that is not loaded yet; None once all of it is."""
        span = Interval(parse_instant(self.start), parse_instant(self.end))
        if not self.event_time:
            return missing_span(engine, self.pipeline, span, audited=self.audited)
        lateness = None if self.lateness_seconds is None else timedelta(seconds=self.lateness_seconds)
        return missing_of_stamped(engine, self.pipeline, span, lateness, audited=self.audited)
