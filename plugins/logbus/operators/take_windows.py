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

from logbus.errors import WrongRequest
from logbus.hooks.warehouse import WarehouseHook
from logbus.ledger.announcements import take, told_since
from logbus.model import instant_text, parse_instant, utc_now
from logbus.operators.window_operator import fail_without_retry
from logbus.run_interval import plain

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
        now: Callable[[], datetime] = utc_now,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._now = now
        self.consumer = consumer
        self.warehouse_conn_id = warehouse_conn_id

    def execute(self, context: Context) -> list[str]:
        engine, now = WarehouseHook(self.warehouse_conn_id).ledger().engine, self._now()
        events = [event for events in context["triggering_asset_events"].values() for event in events]
        with fail_without_retry():
            announced = windows_of_events(events)
        for (watcher, pipeline), since in first_events(events).items():
            announced[pipeline] += told_since(engine, watcher, plain(since) - CLOCK_SKEW, now)
        mine = {
            start
            for pipeline, starts in announced.items()
            for start in take(engine, self.consumer, pipeline, starts, context["run_id"], now)
        }
        if not mine:
            raise AirflowSkipException("other runs of this DAG have taken up every window that was announced")
        return [instant_text(start) for start in sorted(mine)]


def windows_of_events(events: Iterable[Any]) -> dict[str, list[datetime]]:
    """Starts of the announced windows by pipeline."""
    found: dict[str, list[datetime]] = {}
    for event in events:
        for pipeline, start in windows_of_event(event.extra or {}):
            found.setdefault(pipeline, []).append(parse_instant(start))
    if not found:
        raise WrongRequest(
            "no event that started this run tells of a window: schedule the DAG by assets whose events carry windows"
        )
    return found


def windows_of_event(extra: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """An event of a WindowEventTrigger carries one window, that of a task the starts of all of its windows."""
    payload = extra.get("payload") or {}
    if "start" in payload:
        yield payload["pipeline"], payload["start"]
    if "starts" in extra:
        yield from ((extra["pipeline"], start) for start in extra["starts"])
        return
    # Events stored by an earlier version have the details of the first windows only. To work on those and pass over the others
    # would look like success.
    windows = extra.get("windows") or ()
    count = extra.get("window_count", len(windows))
    if count > len(windows):
        raise WrongRequest(
            f"an event of pipeline {extra.get('pipeline')} is about {count} windows and names only the first {len(windows)}, as "
            "events of an earlier version do: clear the task that created it, and its new event names all of them"
        )
    for window in windows:
        yield window["pipeline"], window["start"]


def first_events(events: Iterable[Any]) -> dict[tuple[str, str], datetime]:
    """When the first event of each watcher arrived, by watcher and pipeline."""
    first: dict[tuple[str, str], datetime] = {}
    for event in events:
        payload = (event.extra or {}).get("payload") or {}
        if "watcher" in payload:
            key = (payload["watcher"], payload["pipeline"])
            first[key] = min(first.get(key, event.timestamp), event.timestamp)
    return first
