"""Take up the windows that a run was started for: each by one run of the DAG only, however often it is announced.

For DAGs scheduled by assets: those of WindowEventTrigger, or the tables that `hourly_ingest` tells about. Events may come in
bundles, and after a crash of the triggerer twice; the ledger decides which run a window belongs to. A rerun of that run gets it
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from logbus.errors import UserError
from logbus.hooks.warehouse import WarehouseHook
from logbus.triggers.window_closed import utc_now
from logbus.windows.announcements import take
from logbus.windows.model import instant_text, parse_instant


class TakeWindowsOperator(BaseOperator):
    """Returns the starts of the windows this run is to work on as a list; skips the tasks behind it where others have them all.

    :param consumer: for whom a window is taken up once; by default this DAG
    """

    template_fields: Sequence[str] = ("consumer", "warehouse_conn_id")
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        consumer: str = "{{ dag.dag_id }}",
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.consumer = consumer
        self.warehouse_conn_id = warehouse_conn_id

    def execute(self, context: Context) -> list[str]:
        engine = WarehouseHook(self.warehouse_conn_id).ledger().engine
        announced = windows_of_events(context["triggering_asset_events"])
        mine = {
            start
            for pipeline, starts in announced.items()
            for start in take(engine, self.consumer, pipeline, [*map(parse_instant, starts)], context["run_id"], utc_now())
        }
        if not mine:
            raise AirflowSkipException("other runs of this DAG have taken up every window that was announced")
        return [instant_text(start) for start in sorted(mine)]


def windows_of_events(events_by_asset: Mapping[Any, Iterable[Any]]) -> dict[str, list[str]]:
    """Starts of the announced windows by pipeline."""
    found: dict[str, list[str]] = {}
    for events in events_by_asset.values():
        for event in events:
            for pipeline, start in windows_of_event(event.extra or {}):
                found.setdefault(pipeline, []).append(start)
    if not found:
        raise UserError("no event that started this run tells of a window: schedule the DAG by assets whose events carry windows")
    return found


def windows_of_event(extra: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """An event of a WindowEventTrigger tells one window, that of a task a list of them."""
    payload = extra.get("payload") or {}
    if "start" in payload:
        yield payload["pipeline"], payload["start"]
    for window in extra.get("windows") or ():
        yield window["pipeline"], window["start"]
