from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from logbus.model import FrozenWindow, Pipeline
from logbus.operators.redrive import RedriveOperator
from logbus.warehouse import redrive
from logbus.warehouse.redrive import Redriven

from tests.support.airflow_context import HOUR_START, run_context
from tests.support.fake_ledger import FakeLedger


class FakeRedrive:
    """Says what it was asked; every second dead letter parses."""

    asked: list[tuple[str, datetime]] = []

    def __init__(self, **values: Any) -> None:
        self.values = values

    def plan(self, window: FrozenWindow) -> Redriven:
        return self.answer("plan", window)

    def run(self, window: FrozenWindow) -> Redriven:
        return self.answer("run", window)

    def answer(self, what: str, window: FrozenWindow) -> Redriven:
        self.asked.append((what, window.interval.start))
        return Redriven(start=window.interval.start, tried=4, loaded=2, errors={"NotUtf8": 2})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, datetime]]:
    monkeypatch.setattr(redrive, "Redrive", FakeRedrive)
    monkeypatch.setattr(FakeRedrive, "asked", [])
    return FakeRedrive.asked


@pytest.mark.parametrize(("dry_run", "what"), [(False, "run"), (True, "plan")])
def test_it_redrives_the_runs_own_window_with_the_parser_of_the_dag(
    dry_run: bool, what: str, pipeline: Pipeline, ledger: FakeLedger, asked: list[tuple[str, datetime]]
) -> None:
    result = RedriveOperator(task_id="redrive", pipeline=pipeline, dry_run=dry_run).execute(run_context())
    assert ledger.registered == [pipeline]
    assert asked == [(what, HOUR_START)]
    assert (result["tried"], result["loaded"], result["dead_lettered"]) == (4, 2, 2)
    assert result["windows"][0]["errors"] == {"NotUtf8": 2}


def test_it_redrives_the_windows_it_is_given(pipeline: Pipeline, ledger: FakeLedger, asked: list[tuple[str, datetime]]) -> None:
    windows = ["2015-05-17T10:00:00Z", "2015-05-17T12:00:00Z"]
    result = RedriveOperator(task_id="redrive", pipeline=pipeline, windows=windows).execute(run_context())
    assert [window["start"] for window in result["windows"]] == windows
    assert result["tried"] == 8


def test_a_pipeline_that_is_only_named_keeps_its_parser(
    pipeline: Pipeline, ledger: FakeLedger, asked: list[tuple[str, datetime]]
) -> None:
    ledger.registered.append(pipeline)
    RedriveOperator(task_id="redrive", pipeline="access_log").execute(run_context())
    assert ledger.registered == [pipeline]
    assert asked == [("run", HOUR_START)]
