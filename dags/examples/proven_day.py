"""An Airflow DAG that runs once for each day, when all 24 hours of the day are proven, in whatever order and by whichever runs.

Each proven hour of page_views is an event whose partition key is the start of the hour. Airflow (3.3 and newer) collects them; no
task waits.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, DayWindow, PartitionedAssetTimetable, RollupMapper, StartOfDayMapper, task
from logbus.assets import COMPLETE_UNTIL, table_asset, windows_asset
from logbus.hooks.warehouse import WarehouseHook

PAGE_VIEWS = table_asset("page_views")
EACH_DAY = PartitionedAssetTimetable(
    assets=windows_asset("page_views"),
    default_partition_mapper=RollupMapper(upstream_mapper=StartOfDayMapper(), window=DayWindow()),
)


@task(inlets=[PAGE_VIEWS])
def report(partition_key: str | None = None, asset_state_store: Any = None) -> dict[str, Any]:
    """Page views of the day, and until when the table is complete: both are known without asking logbus."""
    from sqlalchemy import text

    day = datetime.fromisoformat(str(partition_key)).replace(tzinfo=UTC)
    query = text("select count(*) from page_views where _window_start >= :start and _window_start < :end")
    with WarehouseHook().get_engine().connect() as connection:
        views = connection.execute(query, {"start": day, "end": day + timedelta(days=1)}).scalar_one()
    return {"day": partition_key, "views": views, "complete_until": asset_state_store[PAGE_VIEWS].get(COMPLETE_UNTIL)}


with DAG(
    "page_views_proven_day",
    schedule=EACH_DAY,
    catchup=False,
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    tags=["logbus", "example"],
):
    report()
