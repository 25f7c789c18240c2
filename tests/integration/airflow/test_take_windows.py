from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from logbus.model import instant_text
from logbus.operators.spark_submit_window import CLOCK_SKEW, TakeWindowsOperator
from logbus.windows.handover import Stage, begin_watch, note_announced

from tests.support.airflow_context import ASKED_AT
from tests.support.ledgers import World, at

TEN, ELEVEN = instant_text(at(10)), instant_text(at(11))


@pytest.fixture(autouse=True)
def watched(world: World) -> World:
    """Hours 9 to 11, and a watcher that started before they were audited."""
    world.fill(9.5, 10.5, 11.5)
    begin_watch(world.ledger.engine, "w", "p", Stage.AUDITED, ASKED_AT - timedelta(days=1))
    for number in (9, 10, 11):
        world.freeze(number)
    return world


def announced(world: World, number: int, now: datetime) -> None:
    world.mark(number, loaded_attempt=1, audited_at=now)
    note_announced(world.ledger.engine, "w", [at(number)], now)


def of_trigger(start: str, came_at: datetime = ASKED_AT) -> SimpleNamespace:
    payload = {"watcher": "w", "pipeline": "p", "stage": "audited", "start": start}
    return SimpleNamespace(extra={"from_trigger": True, "payload": payload}, timestamp=came_at)


def of_task(*starts: str) -> SimpleNamespace:
    return SimpleNamespace(extra={"pipeline": "p", "starts": list(starts)}, timestamp=ASKED_AT)


def taken(*events: Any, run_id: str = "r") -> list[str]:
    operator = TakeWindowsOperator(task_id="windows", consumer="c")
    return operator.execute({"triggering_asset_events": {"asset": events}, "run_id": run_id})  # type: ignore[arg-type]


def test_a_window_that_is_announced_twice_is_worked_on_once() -> None:
    assert taken(of_trigger(ELEVEN), of_trigger(TEN), of_trigger(TEN)) == [TEN, ELEVEN]


def test_what_another_run_has_taken_is_left_to_it_and_a_rerun_gets_it_again() -> None:
    assert taken(of_task(TEN), run_id="another") == [TEN]
    assert taken(of_task(TEN, ELEVEN)) == [ELEVEN]
    with pytest.raises(AirflowSkipException):
        taken(of_task(TEN))
    assert taken(of_task(TEN, ELEVEN), run_id="another") == [TEN]


def test_an_event_that_airflow_left_to_the_next_run_is_taken_up_by_this_one(watched: World) -> None:
    announced(watched, 9, ASKED_AT - 2 * CLOCK_SKEW)
    announced(watched, 10, ASKED_AT)
    announced(watched, 11, ASKED_AT - CLOCK_SKEW / 2)
    assert taken(of_trigger(TEN, ASKED_AT + timedelta(hours=1)), of_trigger(TEN)) == [TEN, ELEVEN]
