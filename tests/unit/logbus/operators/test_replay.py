from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from logbus.errors import UserError
from logbus.model import Pipeline
from logbus.operators import replay as operators
from logbus.operators.replay import ReplayOperator
from logbus.status.replay import ReplayPlan, ReplayWindow, Span

from tests.support.airflow_context import HOUR_START, run_context
from tests.support.fake_hooks import offline
from tests.support.fake_ledger import FakeLedger, window
from tests.support.fake_submit import Submitted

HOURS = [HOUR_START + timedelta(hours=number) for number in range(3)]
Replayed = Callable[..., dict[str, Any]]


class FakePlan:
    """Keeps the span it was called with; the window of the second hour may be lost."""

    def __init__(self, lost: tuple[str, ...] = ()) -> None:
        self.lost = lost
        self.asked: list[tuple[Span, str]] = []

    def __call__(self, ledger: object, log: object, name: str, span: Span, now: datetime, run_id: str) -> ReplayPlan:
        self.asked.append((span, run_id))
        windows = [ReplayWindow(window=window(hour, attempt=1), lost=self.lost if hour == HOURS[1] else ()) for hour in HOURS]
        return ReplayPlan(pipeline=name, windows=tuple(windows))


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline, ledger: FakeLedger, submitted: Submitted) -> Replayed:
    """Runs the operator with a plan; the application it starts loads the attempts begun in the ledger."""

    def run(plan: FakePlan, **arguments: Any) -> dict[str, Any]:
        monkeypatch.setattr(operators.replay, "plan", plan)
        result: dict[str, Any] = offline(ReplayOperator(task_id="replay", pipeline=pipeline, **arguments), ledger).execute(
            run_context()
        )
        return result

    return run


def loaded(ledger: FakeLedger) -> list[list[datetime]]:
    return [starts for starts, _, _ in ledger.begun]


def test_it_loads_the_windows_of_the_span(replayed: Replayed, ledger: FakeLedger) -> None:
    plan = FakePlan()
    result = replayed(plan, since="2015-05-17T10:00:00Z", until="None")
    assert (result["read"], result["starts"]) == (30, ["2015-05-17T10:00:00Z", "2015-05-17T11:00:00Z", "2015-05-17T12:00:00Z"])
    assert plan.asked == [(Span(since=HOUR_START), "manual__1")]
    assert loaded(ledger) == [HOURS]


def test_it_loads_the_windows_that_are_named(replayed: Replayed, ledger: FakeLedger) -> None:
    plan = FakePlan()
    replayed(plan, windows=["2015-05-17T10:00:00Z"])
    assert plan.asked[0][0] == Span(starts=(HOUR_START,))


def test_a_lost_window_fails_it_at_once_or_is_left_out(replayed: Replayed, ledger: FakeLedger) -> None:
    plan = FakePlan(lost=("access_log-0 [0, 9)",))
    with pytest.raises(AirflowFailException, match="access_log-0"):
        replayed(plan, since="2015-05-17T10:00:00Z")
    assert loaded(ledger) == []
    replayed(plan, since="2015-05-17T10:00:00Z", skip_lost=True)
    assert loaded(ledger) == [[HOURS[0], HOURS[2]]]


def test_without_a_span_it_never_takes_the_runs_own_window(replayed: Replayed, ledger: FakeLedger) -> None:
    with pytest.raises(UserError, match="say which windows"):
        replayed(FakePlan())
