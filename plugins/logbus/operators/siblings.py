"""The other runs of a DAG that wait at the same task: a backfill, many cleared hours, or a schedule that has to catch up.

Tasks cannot reach Airflow's database; the Execution API returns the states of task instances by logical date, which for every
scheduled or backfilled run over an interval is the interval's start. A logical date has only one run, so a count answers for many
dates at once, and halving finds a few waiting runs among many dates with few requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from logbus.model import Interval

# A task instance in one of these states will still run. None: its upstream tasks have not finished.
WAITING_STATES = frozenset({None, "scheduled", "queued", "up_for_retry", "up_for_reschedule", "deferred"})

DATES_PER_QUESTION_MAX = 84  # they are part of a URL
UUID7 = 7
UUID7_TIME_SHIFT = 80  # the first 48 of 128 bits are milliseconds since the epoch

CountWaiting = Callable[[Sequence[datetime]], int]


def asked_at(task_instance: Any) -> datetime | None:
    """When this try was requested: Airflow gives a task instance a new id, which contains the time, when its run is created and
    whenever it is cleared or retried. None if the id contains no time."""
    identity = UUID(str(task_instance.id))
    if identity.version != UUID7:
        return None
    return datetime.fromtimestamp((identity.int >> UUID7_TIME_SHIFT) / 1000, UTC)


def waiting_intervals(context: Mapping[str, Any], own: Interval, reach: int) -> Iterator[Interval]:
    """Intervals of the runs that wait at this task, at most `reach` intervals away from our own: later ones first."""
    task_instance = context["ti"]

    def count_waiting(dates: Sequence[datetime]) -> int:
        states = task_instance.get_task_states(
            dag_id=task_instance.dag_id, task_ids=[task_instance.task_id], logical_dates=list(dates)
        )
        return sum(task_states.get(task_instance.task_id, "none there") in WAITING_STATES for task_states in states.values())

    length = own.end - own.start
    for direction in (1, -1):
        starts = [own.start + direction * steps * length for steps in range(1, reach + 1)]
        for begin in range(0, len(starts), DATES_PER_QUESTION_MAX):
            for start in those_waiting(starts[begin : begin + DATES_PER_QUESTION_MAX], count_waiting):
                yield Interval(start, start + length)


def those_waiting(dates: Sequence[datetime], count_waiting: CountWaiting) -> Iterator[datetime]:
    """The dates that have a waiting run, in the order given."""
    found = count_waiting(dates) if dates else 0
    if found >= len(dates):
        yield from dates
    elif found:
        middle = len(dates) // 2
        yield from those_waiting(dates[:middle], count_waiting)
        yield from those_waiting(dates[middle:], count_waiting)
