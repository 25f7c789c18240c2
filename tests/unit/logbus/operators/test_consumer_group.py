from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.model import Pipeline
from logbus.operators.topic import CommitOffsetsOperator, RewindOffsetsOperator

from tests.support.airflow_context import HOUR_START, run_context
from tests.support.fake_groups import FakeGroups
from tests.support.fake_hooks import offline
from tests.support.fake_ledger import FakeLedger
from tests.support.fake_log import FakeLog


@pytest.fixture
def operator(pipeline: Pipeline, ledger: FakeLedger, log: FakeLog, groups: FakeGroups) -> Any:
    return lambda group=None: offline(
        CommitOffsetsOperator(task_id="commit", pipeline=pipeline, group=group), ledger, log, groups
    )


@pytest.mark.parametrize(("group", "expected"), [(None, "logbus-access_log"), ("dashboards", "dashboards")])
def test_it_commits_the_runs_window_to_the_group_and_says_what_it_did(
    operator: Any, groups: FakeGroups, group: str | None, expected: str
) -> None:
    done = operator(group).execute(run_context())
    assert groups.committed(expected) == {("access_log", 0): 15}
    assert done == {"group": expected, "topic": "access_log", "committed": {"0": 15}, "ahead": {}}


def test_a_group_that_is_ahead_stays_there(operator: Any, groups: FakeGroups) -> None:
    groups.commit("logbus-access_log", {("access_log", 0): 18})
    done = operator().execute(run_context())
    assert groups.committed("logbus-access_log") == {("access_log", 0): 18}
    assert (done["committed"], done["ahead"]) == ({}, {"0": 18})


@pytest.fixture
def moved(pipeline: Pipeline, ledger: FakeLedger, log: FakeLog, groups: FakeGroups) -> Callable[..., Any]:
    """Runs the operator for a group that is at offset 12; returns each partition's old and new offset."""
    groups.commit("logbus-access_log", {("access_log", 0): 12})
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
