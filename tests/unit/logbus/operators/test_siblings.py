from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st
from logbus.model import Interval
from logbus.operators.siblings import asked_at, those_waiting, waiting_intervals

from tests.support.airflow_context import ASKED_AT, HOUR_START, run_context, task_instance_id

DATES = [HOUR_START + timedelta(hours=number) for number in range(84)]


def test_the_id_of_a_task_instance_tells_when_it_was_asked_for() -> None:
    assert asked_at(SimpleNamespace(id=task_instance_id(ASKED_AT))) == ASKED_AT
    assert asked_at(SimpleNamespace(id=str(task_instance_id(ASKED_AT)))) == ASKED_AT


def test_an_id_without_a_time_tells_nothing() -> None:
    assert asked_at(SimpleNamespace(id=uuid4())) is None


def test_the_hours_ahead_come_before_those_behind() -> None:
    around = [HOUR_START + timedelta(hours=number) for number in (-2, -1, 1, 2)]
    own = Interval.hour(HOUR_START)
    found = [interval.start for interval in waiting_intervals(run_context(waiting=around), own, reach=5)]
    assert found == [around[2], around[3], around[1], around[0]]


def test_our_own_run_is_not_beside_us_and_the_reach_is_kept() -> None:
    around = [HOUR_START, HOUR_START + timedelta(hours=1), HOUR_START + timedelta(hours=2)]
    found = list(waiting_intervals(run_context(waiting=around), Interval.hour(HOUR_START), reach=1))
    assert found == [Interval.hour(around[1])]


def test_nobody_waiting_costs_one_question() -> None:
    questions = []

    def count(dates: Sequence[datetime]) -> int:
        questions.append(len(dates))
        return 0

    assert list(those_waiting(DATES, count)) == []
    assert questions == [84]


@given(st.sets(st.sampled_from(DATES)))
def test_whoever_waits_is_found_by_halving(waiting: set[datetime]) -> None:
    found = list(those_waiting(DATES, lambda dates: len(waiting.intersection(dates))))
    assert found == sorted(waiting)
