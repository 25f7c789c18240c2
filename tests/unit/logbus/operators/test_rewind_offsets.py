from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.model import Pipeline
from logbus.operators.rewind_offsets import RewindOffsetsOperator

from tests.support.airflow_context import HOUR_START, run_context
from tests.support.fake_groups import FakeGroups
from tests.support.fake_hooks import offline
from tests.support.fake_ledger import FakeLedger
from tests.support.fake_log import FakeLog


@pytest.fixture
def groups() -> FakeGroups:
    """A group committed at offset 12."""
    made = FakeGroups()
    made.commit("logbus-access_log", {("access_log", 0): 12})
    return made


@pytest.fixture
def moved(pipeline: Pipeline, ledger: FakeLedger, log: FakeLog, groups: FakeGroups) -> Callable[..., Any]:
    """Runs the operator; returns each partition's old and new offset."""
    return lambda **arguments: offline(
        RewindOffsetsOperator(task_id="rewind", pipeline=pipeline, **arguments), ledger, log, groups
    ).execute(run_context())["moves"]


def test_by_default_the_pipelines_group_goes_to_the_runs_window(moved: Callable[..., Any], groups: FakeGroups) -> None:
    assert moved() == {"0": [12, 5]}
    assert groups.committed("logbus-access_log") == {("access_log", 0): 5}


@pytest.mark.parametrize(
    ("to", "value", "expected"),
    [
        ("earliest", None, 0),
        ("latest", None, 20),
        ("offset", "7", 7),
        ("shift", "-2", 10),
        ("datetime", (HOUR_START + timedelta(minutes=3)).isoformat(), 3),
    ],
)
def test_it_goes_where_the_command_would_go(moved: Callable[..., Any], to: str, value: str | None, expected: int) -> None:
    assert moved(to=to, value=value) == {"0": [12, expected]}


@pytest.mark.parametrize(("to", "value"), [("offset", "x"), ("offset", None), ("datetime", "yesterday")])
def test_a_value_that_means_nothing_is_named(moved: Callable[..., Any], to: str, value: str | None) -> None:
    with pytest.raises(UserError, match=f"cannot move a group to {to}"):
        moved(to=to, value=value)


def test_a_target_that_is_none_is_refused_when_the_dag_is_parsed(pipeline: Pipeline) -> None:
    with pytest.raises(UserError, match="one of window, earliest"):
        RewindOffsetsOperator(task_id="rewind", pipeline=pipeline, to="yesterday")
