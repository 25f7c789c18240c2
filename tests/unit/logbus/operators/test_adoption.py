from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from logbus.errors import WindowNotClosed
from logbus.model import Pipeline
from logbus.operators.adoption import Beside, beginning, is_loaded_since_asked

from tests.support.airflow_context import ASKED_AT, HOUR_START, run_context
from tests.support.fake_ledger import FakeLedger

NEXT = [HOUR_START + timedelta(hours=number) for number in range(1, 6)]
NOW = ASKED_AT + timedelta(minutes=1)


def hours(ledger: FakeLedger, context: dict[str, Any], limit: int = 84) -> list[datetime]:
    return Beside(ledger=ledger, log=object(), pipeline_name="access_log", now=NOW).hours(context, limit)  # type: ignore[arg-type]


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


def test_only_a_load_that_began_after_the_asking_is_adopted(pipeline: Pipeline, ledger: FakeLedger) -> None:
    ledger.loaded_at = {HOUR_START: ASKED_AT}
    later, earlier = (run_context(asked_at=ASKED_AT + timedelta(seconds=gap)) for gap in (1, -1))
    assert not is_loaded_since_asked(ledger, pipeline, [HOUR_START], later)  # type: ignore[arg-type]
    assert is_loaded_since_asked(ledger, pipeline, [HOUR_START], earlier)  # type: ignore[arg-type]


def test_a_retry_counts_from_its_runs_start() -> None:
    context = run_context(asked_at=NOW)
    context["dag_run"].start_date = ASKED_AT
    assert beginning(context) == ASKED_AT
    context["dag_run"].start_date = None
    assert beginning(context) == NOW
