"""What the commands print and refuse; what a plan finds is tested with a real ledger."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result
from logbus.cli import load as command
from logbus.cli import main
from logbus.loading import Load, Loader
from logbus.model import Pipeline
from logbus.status.replay import ReplayPlan, ReplayWindow

from tests.support.fake_ledger import FakeLedger, window

HOURS = [datetime(2015, 5, 17, 10, tzinfo=UTC) + timedelta(hours=number) for number in range(3)]


LOST, SOUND, BUSY = (
    ReplayWindow(window=window(HOURS[0], attempt=1), lost=("access_log-0 [5, 9)",)),
    ReplayWindow(window=window(HOURS[1], attempt=1)),
    ReplayWindow(window=window(HOURS[2]), busy="attempt 2 by run x"),
)


@pytest.fixture
def windows() -> list[ReplayWindow]:
    """The windows of the plan."""
    return [LOST, SOUND, BUSY]


@pytest.fixture
def reloaded(monkeypatch: pytest.MonkeyPatch, windows: list[ReplayWindow]) -> list[Any]:
    """What the loader was asked to load."""
    asked: list[Any] = []

    def plan(*words: Any, **how: Any) -> ReplayPlan:
        return ReplayPlan(pipeline="access_log", windows=tuple(windows), notes=("a note",))

    monkeypatch.setattr(command.replay, "plan", plan)
    ledger = FakeLedger()
    ledger.registered.append(Pipeline(name="access_log", topic="access_log", table="t", parse="lines"))
    monkeypatch.setattr(command.options, "open_ledger", lambda url: ledger)

    def reload(self: Loader, load: Load, starts: Any) -> list[Any]:
        asked.append((load.pipeline, starts, *(["accepted"] if load.accept_other_records else [])))
        return []

    monkeypatch.setattr(Loader, "reload", reload)
    return asked


def replay(*words: str) -> Result:
    return CliRunner().invoke(
        main, ["replay", *words, "--pipeline", "access_log", "--since", "2015-05-17", "--warehouse", "postgresql://h/d"]
    )


def test_a_plan_shows_what_can_be_loaded_again_and_loads_nothing(reloaded: list[Any]) -> None:
    shown = replay("plan").stdout
    assert "2 windows, 20 records, 9 rows to be replaced; 1 window lost" in shown
    assert "a note" in shown
    assert reloaded == []


def test_a_plan_can_be_read_by_a_program(reloaded: list[Any]) -> None:
    plan = json.loads(replay("plan", "--json").stdout)
    assert [(one["start"], one["retained"], one["busy"]) for one in plan["windows"]] == [
        ("2015-05-17T10:00:00Z", False, None),
        ("2015-05-17T11:00:00Z", True, None),
        ("2015-05-17T12:00:00Z", True, "attempt 2 by run x"),
    ]


def test_a_run_refuses_what_is_lost_or_busy_and_loads_the_rest_when_told_so(reloaded: list[Any]) -> None:
    assert "error: 1 of 3 windows cannot be loaded again" in replay("run").stderr
    assert "error: another run is working on 1 of these windows" in replay("run", "--skip-lost").stderr
    assert reloaded == []
    assert replay("run", "--skip-lost", "--supersede").exit_code == 0
    assert reloaded == [("access_log", HOURS[1:])]


def test_a_run_refuses_windows_of_which_the_log_holds_other_records_unless_they_are_accepted(
    reloaded: list[Any], windows: list[ReplayWindow]
) -> None:
    windows[:] = [replace(SOUND, is_read=True, differs="3 of 10 records gone (compaction?)")]
    assert "other records: 3 of 10 records gone (compaction?)" in replay("plan").stdout
    assert "1 window with other records now" in replay("plan").stdout
    refused = replay("run")
    assert refused.exit_code != 0
    assert "error: the log now holds other records for 1 of 1 windows" in refused.stderr
    assert replay("run", "--accept-other-records").exit_code == 0
    assert reloaded == [("access_log", [HOURS[1]], "accepted")]
