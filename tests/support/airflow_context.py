"""The context of a task, as far as our operators read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse, GetDagRun
from logbus.model import Interval
from logbus.operators import window_operator
from logbus.timetable import WindowTimetable

HOUR_START = datetime(2015, 5, 17, 10, tzinfo=UTC)
HOUR_END = datetime(2015, 5, 17, 11, tzinfo=UTC)


ASKED_AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def task_instance_id(instant: datetime) -> UUID:
    """As Airflow creates them: UUID version 7, which begins with the time."""
    return UUID(int=int(instant.timestamp() * 1000) << 80 | 7 << 76 | 2 << 62 | 4711)


@dataclass
class Runs:
    """The process that answers a task for Airflow, as far as it tells of other runs: those of `run_context` are for the hour that
    begins at their logical date. A run with None was deleted."""

    intervals: dict[str, Interval | None] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def send(self, message: GetDagRun) -> Any:
        self.asked.append(message.run_id)
        if message.run_id not in self.intervals:
            found: Interval | None = Interval.hour(datetime.fromisoformat(message.run_id.removeprefix("backfill__")))
        else:
            found = self.intervals[message.run_id]
        if found is None:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))
        return SimpleNamespace(data_interval_start=found.start, data_interval_end=found.end)


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """What a task learns of the other runs of its DAG."""
    made = Runs()
    monkeypatch.setattr(window_operator, "task_runner", SimpleNamespace(SUPERVISOR_COMMS=made))
    return made


def run_context(
    start: datetime | None = HOUR_START,
    end: datetime | None = HOUR_END,
    try_number: int = 1,
    *,
    asked_at: datetime = ASKED_AT,
    waiting: Sequence[datetime] = (),
    run_type: str = "manual",
) -> dict[str, Any]:
    """The context of a run over [start, end); runs of the hours in `waiting` wait at the same task."""

    def get_task_states(dag_id: str, task_ids: list[str], logical_dates: list[datetime]) -> dict[str, Any]:
        return {f"backfill__{date.isoformat()}": {task_ids[0]: None} for date in logical_dates if date in waiting}

    return {
        "data_interval_start": start,
        "data_interval_end": end,
        # A trap: a run's logical date is not its window.
        "logical_date": datetime(1999, 1, 1, tzinfo=UTC),
        "run_id": "manual__1",
        "dag": SimpleNamespace(tasks=(), timetable=WindowTimetable()),
        "dag_run": SimpleNamespace(start_date=asked_at, run_type=run_type),
        "ti": SimpleNamespace(
            id=task_instance_id(asked_at),
            try_number=try_number,
            max_tries=0,
            dag_id="access_log",
            task_id="load",
            map_index=-1,
            get_task_states=get_task_states,
            stats_tags={},
        ),
    }
