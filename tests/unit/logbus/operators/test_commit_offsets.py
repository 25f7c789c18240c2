from __future__ import annotations

from typing import Any

import pytest
from logbus.model import Pipeline
from logbus.operators.commit_offsets import CommitOffsetsOperator

from tests.support.airflow_context import run_context
from tests.support.fake_groups import FakeGroups
from tests.support.fake_hooks import offline
from tests.support.fake_ledger import FakeLedger
from tests.support.fake_log import FakeLog


@pytest.fixture
def groups() -> FakeGroups:
    return FakeGroups()


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
