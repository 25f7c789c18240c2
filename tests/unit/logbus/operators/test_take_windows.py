from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from logbus.errors import UserError
from logbus.model import instant_text, parse_instant
from logbus.operators import take_windows
from logbus.operators.take_windows import CLOCK_SKEW, TakeWindowsOperator, windows_of_events

from tests.support.airflow_context import ASKED_AT
from tests.support.fake_ledger import FakeLedger

TEN, ELEVEN = "2015-05-17T10:00:00Z", "2015-05-17T11:00:00Z"


def of_trigger(start: str, came_at: datetime = ASKED_AT) -> SimpleNamespace:
    payload = {"watcher": "w", "pipeline": "p", "stage": "audited", "start": start}
    return SimpleNamespace(extra={"from_trigger": True, "payload": payload}, timestamp=came_at)


def of_task(*starts: str) -> SimpleNamespace:
    windows = [{"pipeline": "p", "start": start} for start in starts]
    return SimpleNamespace(extra={"pipeline": "p", "windows": windows}, timestamp=ASKED_AT)


def context(*events: Any) -> dict[str, Any]:
    return {"triggering_asset_events": {"asset": events}, "run_id": "r"}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch, ledger: FakeLedger) -> set[str]:
    """Windows that other runs have."""
    others: set[str] = set()

    def take(engine: object, consumer: str, name: str, starts: list[datetime], run_id: str, now: datetime) -> list[datetime]:
        return [start for start in starts if instant_text(start) not in others]

    monkeypatch.setattr(take_windows, "take", take)
    monkeypatch.setattr(take_windows, "told_since", lambda engine, watcher, since, now: [])
    return others


def test_windows_of_triggers_and_of_tasks_are_told_alike() -> None:
    told = windows_of_events([of_trigger(TEN), of_task(TEN, ELEVEN)])
    assert [instant_text(start) for start in told["p"]] == [TEN, TEN, ELEVEN]


def test_a_window_that_is_announced_twice_is_worked_on_once(taken: set[str]) -> None:
    operator = TakeWindowsOperator(task_id="windows", consumer="c")
    assert operator.execute(context(of_trigger(ELEVEN), of_trigger(TEN), of_trigger(TEN))) == [TEN, ELEVEN]


def test_what_another_run_has_taken_is_left_to_it(taken: set[str]) -> None:
    taken.add(TEN)
    assert TakeWindowsOperator(task_id="windows").execute(context(of_task(TEN, ELEVEN))) == [ELEVEN]
    taken.add(ELEVEN)
    with pytest.raises(AirflowSkipException):
        TakeWindowsOperator(task_id="windows").execute(context(of_task(TEN, ELEVEN)))


def test_an_event_that_airflow_left_to_the_next_run_is_taken_up_by_this_one(
    taken: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, datetime]] = []

    def told(engine: object, watcher: str, since: datetime, now: datetime) -> list[datetime]:
        asked.append((watcher, since))
        return [parse_instant(ELEVEN)]

    monkeypatch.setattr(take_windows, "told_since", told)
    events = (of_trigger(TEN, ASKED_AT + timedelta(hours=1)), of_trigger(TEN, ASKED_AT))
    assert TakeWindowsOperator(task_id="windows").execute(context(*events)) == [TEN, ELEVEN]
    assert asked == [("w", ASKED_AT - CLOCK_SKEW)]


def test_events_that_tell_of_no_window_are_a_clear_error(taken: set[str]) -> None:
    with pytest.raises(UserError, match="no event"):
        TakeWindowsOperator(task_id="windows").execute(context(SimpleNamespace(extra={}, timestamp=ASKED_AT)))
