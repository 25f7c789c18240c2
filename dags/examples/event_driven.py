"""Event-driven Airflow DAGs downstream of a pipeline: one starts when an hour is audited, one waits for its whole day.

`page_views_by_hour` starts once for each audited hour of page_views, whether its DAG, a backfill, a catch-up or the command line
loaded it. `page_views_by_day` runs on a cron schedule and waits for the 24 windows of its day.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task
from airflow.timetables.interval import CronDataIntervalTimetable
from logbus.hooks.warehouse import WarehouseHook
from logbus.operators.spark_submit_window import TakeWindowsOperator
from logbus.sensors.window_event import WindowEventTrigger
from logbus.sensors.window_loaded import WindowLoadedSensor

AUDITED = WindowEventTrigger(pipeline="page_views", stage="audited")
AUDITED_HOUR = Asset("page_views audited hour", watchers=[AssetWatcher(name="page_views audited", trigger=AUDITED)])
SETTINGS: dict[str, Any] = {"catchup": False, "start_date": datetime(2000, 1, 1, tzinfo=UTC), "tags": ["logbus", "example"]}


@task
def count_visitors(starts: list[str]) -> dict[str, int]:
    """Distinct visitors of each hour."""
    from logbus.model import parse_instant
    from sqlalchemy import text

    query = text("select count(distinct visitor) from page_views where _window_start = :start")
    with WarehouseHook().get_engine().connect() as connection:
        return {start: connection.execute(query, {"start": parse_instant(start)}).scalar_one() for start in starts}


with DAG("page_views_by_hour", schedule=[AUDITED_HOUR], **SETTINGS):
    count_visitors(TakeWindowsOperator(task_id="windows").output)


@task
def count_day(span: dict[str, str]) -> int:
    """Page views of the day that the sensor waited for."""
    from logbus.model import parse_instant
    from sqlalchemy import text

    query = text("select count(*) from page_views where _window_start >= :start and _window_start < :end")
    instants = {name: parse_instant(span[name]) for name in ("start", "end")}
    with WarehouseHook().get_engine().connect() as connection:
        return int(connection.execute(query, instants).scalar_one())


with DAG("page_views_by_day", schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"), **SETTINGS):
    day = WindowLoadedSensor(task_id="day", pipeline="page_views", audited=True, deferrable=True)
    count_day(day.output)
