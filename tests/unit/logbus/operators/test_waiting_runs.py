from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk import CronDataIntervalTimetable, CronTriggerTimetable, DeltaDataIntervalTimetable
from logbus.errors import WindowNotClosed
from logbus.model import HOUR, Grid, Interval
from logbus.operators import window_operator
from logbus.task_context import run_interval
from logbus.timetable import WindowTimetable

from tests.support.airflow_context import ASKED_AT, HOUR_START, Runs, run_context, task_instance_id
from tests.support.fake_ledger import FakeLedger

DAY = timedelta(days=1)
BERLIN_DAYS = [datetime(2026, 10, 22 + number, 22 + (number > 2), tzinfo=UTC) for number in range(5)]  # the 25th has 25 hours


def test_the_id_of_a_task_instance_tells_when_it_was_asked_for() -> None:
    assert window_operator.asked_at(SimpleNamespace(id=task_instance_id(ASKED_AT))) == ASKED_AT
    assert window_operator.asked_at(SimpleNamespace(id=str(task_instance_id(ASKED_AT)))) == ASKED_AT


def test_an_id_without_a_time_tells_nothing() -> None:
    assert window_operator.asked_at(SimpleNamespace(id=uuid4())) is None


def test_the_hours_ahead_come_before_those_behind() -> None:
    around = [HOUR_START + timedelta(hours=number) for number in (-2, -1, 1, 2)]
    own = Interval.hour(HOUR_START)
    found = [interval.start for interval in window_operator.waiting_intervals(run_context(waiting=around), own, reach=5)]
    assert found == [around[2], around[3], around[1], around[0]]


def test_our_own_run_is_not_beside_us_and_the_reach_is_kept() -> None:
    around = [HOUR_START, HOUR_START + timedelta(hours=1), HOUR_START + timedelta(hours=2)]
    found = list(window_operator.waiting_intervals(run_context(waiting=around), Interval.hour(HOUR_START), reach=1))
    assert found == [Interval.hour(around[1])]


def test_a_manual_run_waits_for_the_hour_that_ended_at_its_logical_date(runs: Runs) -> None:
    """As `airflow dags trigger --logical-date` makes them, whatever id a user gives them."""
    hours = [HOUR_START + number * HOUR for number in range(1, 4)]
    runs.intervals = {f"backfill__{hour.isoformat()}": Interval(hour - HOUR, hour) for hour in hours}
    found = window_operator.waiting_intervals(run_context(waiting=hours), Interval.hour(HOUR_START), reach=5)
    assert found == [Interval(hour - HOUR, hour) for hour in hours[1:]]


def test_a_window_for_which_two_runs_wait_is_there_once(runs: Runs) -> None:
    hours = [HOUR_START + HOUR, HOUR_START + 2 * HOUR]
    runs.intervals = {f"backfill__{hours[1].isoformat()}": Interval.hour(hours[0])}
    assert window_operator.waiting_intervals(run_context(waiting=hours), Interval.hour(HOUR_START), reach=5) == [
        Interval.hour(hours[0])
    ]


def test_a_run_that_airflow_does_not_know_any_more_is_left_out(runs: Runs) -> None:
    hours = [HOUR_START + HOUR, HOUR_START + 2 * HOUR]
    runs.intervals = {f"backfill__{hours[0].isoformat()}": None}
    assert window_operator.waiting_intervals(run_context(waiting=hours), Interval.hour(HOUR_START), reach=5) == [
        Interval.hour(hours[1])
    ]


def test_the_day_on_which_the_clocks_change_has_the_end_that_its_own_run_gives_it(runs: Runs) -> None:
    own, following = Interval(*BERLIN_DAYS[1:3]), Interval(*BERLIN_DAYS[2:4])
    runs.intervals = {f"backfill__{following.start.isoformat()}": following}
    found = window_operator.waiting_intervals(run_context(waiting=[following.start]), own, reach=5)
    assert found == [following]
    assert following.end - following.start == 25 * HOUR


def test_the_days_around_a_change_of_clocks_are_those_of_the_pipelines_grid(runs: Runs) -> None:
    days = [Interval(start, end) for start, end in pairwise(BERLIN_DAYS)]
    runs.intervals = {f"backfill__{day.start.isoformat()}": day for day in days}
    context, grid = run_context(waiting=[day.start for day in days]), Grid(DAY, "Europe/Berlin")
    assert window_operator.waiting_intervals(context, days[2], reach=5, grid=grid) == [days[3], days[1], days[0]]
    assert window_operator.waiting_intervals(context, days[2], reach=5) == [days[3]], "25 hours from each to the next"


def test_nobody_waiting_costs_two_questions(runs: Runs) -> None:
    context, questions = run_context(), list[int]()

    def count(dag_id: str, task_ids: list[str], logical_dates: list[datetime]) -> dict[str, Any]:
        questions.append(len(logical_dates))
        return {}

    context["ti"].get_task_states = count
    assert window_operator.waiting_intervals(context, Interval.hour(HOUR_START), reach=84) == []
    assert (questions, runs.asked) == ([84, 84], [])


def of_schedule(timetable: Any, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    context = {"dag": SimpleNamespace(timetable=timetable)}
    return [(found.start, found.end) for found in window_operator.intervals_of_schedule(context, Interval(start, end))]


@pytest.mark.parametrize("made", [WindowTimetable, lambda cron, zone: CronDataIntervalTimetable(cron, timezone=zone)])
def test_hours_without_a_run_are_those_that_the_schedule_would_have_made(made: Any) -> None:
    midnight = datetime(2026, 10, 23, tzinfo=UTC)
    hours = [midnight + number * HOUR for number in range(49)]
    assert of_schedule(made("0 * * * *", "UTC"), midnight, hours[48]) == list(zip(hours, hours[1:], strict=False))
    half = timedelta(minutes=30)
    in_india = of_schedule(made("0 * * * *", "Asia/Kolkata"), midnight, hours[3])
    assert in_india == [(hour + half, hour + half + HOUR) for hour in hours[:2]]
    days = of_schedule(made("0 0 * * *", "Europe/Berlin"), midnight, midnight + 4 * DAY)
    assert days == list(zip(BERLIN_DAYS[1:4], BERLIN_DAYS[2:5], strict=True))
    working = of_schedule(made("0 16-17 * * *", "UTC"), midnight, midnight + 42 * HOUR)
    assert working == [(hours[16], hours[17]), (hours[17], hours[40]), (hours[40], hours[41])]


@pytest.mark.parametrize("timetable", [DeltaDataIntervalTimetable(HOUR), CronTriggerTimetable("0 * * * *", timezone="UTC")])
def test_a_schedule_without_fixed_intervals_says_nothing_about_hours_without_a_run(timetable: Any) -> None:
    assert of_schedule(timetable, HOUR_START, HOUR_START + DAY) == []


def test_where_the_schedule_cannot_go_on_the_hours_before_are_known() -> None:
    hours = [datetime(2026, 4, 4, 12, tzinfo=UTC) + number * HOUR for number in range(10)]
    found = of_schedule(WindowTimetable("0 * * * *", "Australia/Lord_Howe"), hours[0], hours[9])
    assert found == [*zip(hours[:3], hours[1:4], strict=True), (hours[3], hours[3] + timedelta(minutes=30))]


NEXT = [HOUR_START + timedelta(hours=number) for number in range(1, 6)]
NOW = ASKED_AT + timedelta(minutes=1)


def hours(ledger: FakeLedger, context: dict[str, Any], limit: int = 84) -> list[datetime]:
    own = run_interval(context)
    beside = window_operator.Beside(ledger=ledger, log=object(), pipeline_name="access_log", own=own, now=NOW)  # type: ignore[arg-type]
    return beside.hours(context, limit)


def test_hours_whose_runs_wait_are_frozen_and_taken(ledger: FakeLedger) -> None:
    assert hours(ledger, run_context(waiting=NEXT)) == NEXT
    assert [part.start for part in ledger.frozen] == NEXT


def test_hours_that_were_loaded_since_are_left_to_be_adopted(ledger: FakeLedger) -> None:
    ledger.loaded_at = {NEXT[0]: ASKED_AT + timedelta(seconds=1), NEXT[1]: ASKED_AT - timedelta(days=1)}
    assert hours(ledger, run_context(waiting=NEXT)) == NEXT[1:]


def test_an_hour_that_another_run_is_loading_is_left_to_it(ledger: FakeLedger) -> None:
    ledger.taken = {NEXT[1], HOUR_START}
    assert hours(ledger, run_context(waiting=NEXT)) == [NEXT[0], *NEXT[2:]]


def test_an_hour_that_keeps_failing_goes_alone(ledger: FakeLedger) -> None:
    ledger.failing_hours = {NEXT[2]}
    assert hours(ledger, run_context(waiting=NEXT)) == [NEXT[0], NEXT[1], *NEXT[3:]]
    ledger.failing_hours = {HOUR_START}
    assert hours(ledger, run_context(waiting=NEXT)) == []


def test_an_hour_that_is_still_open_is_left_to_its_own_run(ledger: FakeLedger) -> None:
    ledger.refused = {NEXT[-1]: WindowNotClosed("not yet")}
    assert hours(ledger, run_context(waiting=NEXT)) == NEXT[:-1]


def test_a_retry_counts_from_its_runs_start() -> None:
    context = run_context(asked_at=NOW)
    context["dag_run"].start_date = ASKED_AT
    assert window_operator.beginning(context) == ASKED_AT
    context["dag_run"].start_date = None
    assert window_operator.beginning(context) == NOW
