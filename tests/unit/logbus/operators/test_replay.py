from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from logbus.errors import UserError
from logbus.model import Pipeline
from logbus.operators import load_window
from logbus.operators import replay as operators
from logbus.operators.replay import ReplayOperator
from logbus.status.replay import ReplayPlan, ReplayWindow, Span

from tests.support.airflow_context import HOUR_START, run_context
from tests.support.fake_ledger import FakeLedger, window

HOURS = [HOUR_START + timedelta(hours=number) for number in range(3)]


class FakePlan:
    """Keeps the span that was asked for; the window of the second hour may be lost."""

    def __init__(self, lost: tuple[str, ...] = ()) -> None:
        self.lost = lost
        self.asked: list[tuple[Span, str]] = []

    def __call__(self, ledger: object, log: object, name: str, span: Span, now: datetime, run_id: str) -> ReplayPlan:
        self.asked.append((span, run_id))
        windows = [ReplayWindow(window=window(hour, attempt=1), lost=self.lost if hour == HOURS[1] else ()) for hour in HOURS]
        return ReplayPlan(pipeline=name, windows=tuple(windows))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, ledger: FakeLedger) -> list[Any]:
    """What was handed to the load, which is tested by itself."""
    starts: list[Any] = []
    monkeypatch.setattr(
        load_window.LoadWindowOperator, "execute", lambda self, context: starts.append(self.windows) or {"read": 0}
    )
    return starts


def replayed(monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline, plan: FakePlan, **arguments: Any) -> dict[str, Any]:
    monkeypatch.setattr(operators.replay, "plan", plan)
    result: dict[str, Any] = ReplayOperator(task_id="replay", pipeline=pipeline, **arguments).execute(run_context())
    return result


def test_it_loads_the_windows_of_the_span(monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline, loaded: list[Any]) -> None:
    plan = FakePlan()
    result = replayed(monkeypatch, pipeline, plan, since="2015-05-17T10:00:00Z", until="None")
    assert result == {"read": 0, "starts": loaded[0]}
    assert plan.asked == [(Span(since=HOUR_START), "manual__1")]
    assert loaded == [["2015-05-17T10:00:00Z", "2015-05-17T11:00:00Z", "2015-05-17T12:00:00Z"]]


def test_it_loads_the_windows_that_are_named(monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline, loaded: list[Any]) -> None:
    plan = FakePlan()
    replayed(monkeypatch, pipeline, plan, windows=["2015-05-17T10:00:00Z"])
    assert plan.asked[0][0] == Span(starts=(HOUR_START,))


def test_a_lost_window_fails_it_at_once_or_is_left_out(
    monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline, loaded: list[Any]
) -> None:
    plan = FakePlan(lost=("access_log-0 [0, 9)",))
    with pytest.raises(AirflowFailException, match="access_log-0"):
        replayed(monkeypatch, pipeline, plan, since="2015-05-17T10:00:00Z")
    assert loaded == []
    replayed(monkeypatch, pipeline, plan, since="2015-05-17T10:00:00Z", skip_lost=True)
    assert loaded == [["2015-05-17T10:00:00Z", "2015-05-17T12:00:00Z"]]


def test_without_a_span_it_never_takes_the_runs_own_window(
    monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline, loaded: list[Any]
) -> None:
    with pytest.raises(UserError, match="say which windows"):
        replayed(monkeypatch, pipeline, FakePlan())
