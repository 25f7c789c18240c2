"""Which window does an Airflow run stand for? Its data interval, and nothing else.

A run's logical date means the start of the interval in some timetables and its end in others, and `schedule="@hourly"` gives
intervals of no length at all. So windows come from data_interval_start and data_interval_end, and a run without them is told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from logbus.errors import WrongRequest
from logbus.model import Interval

TIMETABLE_ADVICE = (
    "schedule the DAG by logbus.timetable.WindowTimetable(), as hourly_ingest does, or by "
    'CronDataIntervalTimetable("0 * * * *", timezone="UTC")'
)


def run_interval(context: Mapping[str, Any]) -> Interval:
    """The data interval of the run that `context` belongs to."""
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if start is None or end is None:
        raise WrongRequest(
            "this run has no data interval, so it is unknown which window it is for: trigger it with a logical date, "
            "or load past hours with the pipeline's catch-up DAG"
        )
    if start == end:
        raise WrongRequest(f"the data interval of this run has no length ({start.isoformat()}): {TIMETABLE_ADVICE}")
    return Interval(plain(start), plain(end))


def plain(instant: datetime) -> datetime:
    """Airflow's instants are pendulum's, which lose their zone when a timedelta is added after astimezone(UTC)."""
    return datetime.fromtimestamp(instant.timestamp(), UTC)
