"""Starts DAGs when an hour closes, is loaded or is audited, by whatever process: one event for each hour, no record consumed.

For an AssetWatcher. What has been announced is stored in the ledger (logbus.windows.handover), not in this process: Airflow
calls back once it has stored an event, and only then is the hour recorded. A triggerer that dies in between announces the hour
again after its restart, but never skips it; `TakeWindowsOperator` in the DAG drops the duplicate.

Triggers of the same watcher share one query of the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from datetime import datetime
from typing import Any

from airflow import __version__ as airflow_version
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.utils.log.logging_mixin import LoggingMixin
from sqlalchemy import Engine

from logbus.hooks.warehouse import WarehouseHook
from logbus.model import Interval, Pipeline, instant_text, utc_now
from logbus.sensors.window_sensor import AWAY, POLL_SECONDS_DEFAULT, Answer, ask_ledger, listening
from logbus.windows.handover import Stage, begin_watch, note_announced, unannounced

try:
    from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer
except ModuleNotFoundError:
    raise ImportError(
        f"WindowEventTrigger needs Airflow 3.3 or newer, this is {airflow_version}: wait with WindowLoadedSensor instead"
    ) from None


class WindowEventTrigger(BaseEventTrigger):
    """An event for each window of the pipeline that reaches the stage from now on.

    Its payload is `{"watcher", "pipeline", "stage", "start", "end"}`.

    :param pipeline: a `Pipeline`, or its name; it may be watched before it is registered
    :param stage: "closed", "loaded" or "audited"
    :param watcher: the name under which the ledger stores what was announced; triggers with the same name share it
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        stage: str = Stage.AUDITED,
        watcher: str | None = None,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        poll_seconds: float = POLL_SECONDS_DEFAULT,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline if isinstance(pipeline, str) else pipeline.name
        self.stage = str(Stage(stage))
        self.watcher = watcher or f"{self.pipeline}/{self.stage}"
        self.warehouse_conn_id = warehouse_conn_id
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        fields = ("pipeline", "stage", "watcher", "warehouse_conn_id", "poll_seconds")
        return ("logbus.sensors.window_event.WindowEventTrigger", {name: getattr(self, name) for name in fields})

    def shared_stream_key(self) -> Hashable:
        return ("logbus", self.warehouse_conn_id, self.watcher)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return WindowEvents(cls(**kwargs))

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            yield TriggerEvent(event)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        raise NotImplementedError(
            "Airflow 3.3 and later run this trigger as a shared stream, which reports when an event is stored"
        )
        yield TriggerEvent(None)


class WindowEvents(SharedStreamProducer, LoggingMixin):  # type: ignore[misc]
    """Asks the ledger for windows to announce, and records those whose events are stored."""

    def __init__(
        self, trigger: WindowEventTrigger, *, now: Callable[[], datetime] = utc_now, hook: type[WarehouseHook] = WarehouseHook
    ) -> None:
        super().__init__()
        self._trigger = trigger
        self._now = now
        self._hook = hook
        self._under_way: set[datetime] = set()

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], datetime]]:
        trigger = self._trigger
        await self._ask(lambda engine: begin_watch(engine, trigger.watcher, trigger.pipeline, Stage(trigger.stage), self._now()))
        async with listening(self._hook(trigger.warehouse_conn_id)) as news:
            while True:
                heard = news.heard(trigger.pipeline)
                for interval in await self._ask(lambda engine: unannounced(engine, trigger.watcher, self._now())):
                    if interval.start not in self._under_way:
                        self._under_way.add(interval.start)
                        yield self._event(interval), interval.start
                await news.wait(trigger.pipeline, heard, trigger.poll_seconds)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Records the events that are stored; the next poll finds the others again."""
        stored = [item.broker_payload for item in batch if item.outcome.is_clean]
        if stored:
            await self._ask(lambda engine: note_announced(engine, self._trigger.watcher, stored, self._now()))
        self._under_way.difference_update(item.broker_payload for item in batch)

    def _event(self, interval: Interval) -> dict[str, Any]:
        span = {"start": instant_text(interval.start), "end": instant_text(interval.end)}
        names = {name: getattr(self._trigger, name) for name in ("watcher", "pipeline", "stage")}
        return {**names, **span}

    async def _ask(self, question: Callable[[Engine], Answer]) -> Answer:
        """Queries the ledger in a thread, outside the triggerer's event loop; waits while the warehouse is unavailable."""
        while True:
            try:
                return await asyncio.to_thread(ask_ledger, self._hook(self._trigger.warehouse_conn_id), question)
            except AWAY as error:
                self.log.warning("The ledger did not answer, asking again in %g s: %s", self._trigger.poll_seconds, error)
            await asyncio.sleep(self._trigger.poll_seconds)
