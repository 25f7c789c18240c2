"""Take the windows that a run was started for: only one run of the DAG gets each, however often it is announced.

For DAGs scheduled by assets: those of WindowEventTrigger, or the tables for which `hourly_ingest` emits events. The ledger
decides which run a window belongs to; a rerun of that run gets it again. This is needed for two reasons. After a crash of the
triggerer an event may arrive twice. And Airflow creates one run for events that arrive close together, but leaves an event that
arrives while it creates the run to the next run, which may be an hour away: so a run also takes what its watcher has announced
since its first event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from logbus import errors, model, task_context
from logbus.hooks.warehouse import WarehouseHook
from logbus.windows.announcements import take, told_since

CLOCK_SKEW = timedelta(minutes=1)  # between Airflow's database, which dates events, and the triggerer, which dates announcements


class TakeWindowsOperator(BaseOperator):
    """Returns a list of the starts of the windows this run is to work on; skips downstream tasks if other runs have them all.

    :param consumer: the name for which each window is taken once; by default the id of this DAG
    """

    template_fields: Sequence[str] = ("consumer", "warehouse_conn_id")
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        consumer: str = "{{ dag.dag_id }}",
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        now: Callable[[], datetime] = model.utc_now,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._now = now
        self.consumer = consumer
        self.warehouse_conn_id = warehouse_conn_id

    def execute(self, context: Context) -> list[str]:
        engine, now = WarehouseHook(self.warehouse_conn_id).ledger().engine, self._now()
        events = [event for events in context["triggering_asset_events"].values() for event in events]
        with task_context.fail_without_retry():
            announced = windows_of_events(events)
        for (watcher, pipeline), since in _first_events(events).items():
            announced[pipeline] += told_since(engine, watcher, task_context.plain(since) - CLOCK_SKEW, now)
        taken = {
            start
            for pipeline, starts in announced.items()
            for start in take(engine, self.consumer, pipeline, starts, context["run_id"], now)
        }
        if not taken:
            raise AirflowSkipException("other runs of this DAG have taken every announced window")
        return [model.instant_text(start) for start in sorted(taken)]


def windows_of_events(events: Iterable[Any]) -> dict[str, list[datetime]]:
    """Starts of the announced windows by pipeline."""
    starts_by_pipeline: dict[str, list[datetime]] = {}
    for event in events:
        for pipeline, start in _windows_of_event(event.extra or {}):
            starts_by_pipeline.setdefault(pipeline, []).append(model.parse_instant(start))
    if not starts_by_pipeline:
        raise errors.WrongRequest(
            "no event that started this run names a window: schedule the DAG by assets whose events carry windows"
        )
    return starts_by_pipeline


def _windows_of_event(extra: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """An event of a WindowEventTrigger carries one window, that of a task the starts of all of its windows."""
    payload = extra.get("payload") or {}
    if "start" in payload:
        yield payload["pipeline"], payload["start"]
    yield from ((extra["pipeline"], start) for start in extra.get("starts", ()))


def _first_events(events: Iterable[Any]) -> dict[tuple[str, str], datetime]:
    """When the first event of each watcher arrived, by watcher and pipeline."""
    first: dict[tuple[str, str], datetime] = {}
    for event in events:
        payload = (event.extra or {}).get("payload") or {}
        if "watcher" in payload:
            key = (payload["watcher"], payload["pipeline"])
            first[key] = min(first.get(key, event.timestamp), event.timestamp)
    return first
