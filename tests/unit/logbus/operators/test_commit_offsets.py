from __future__ import annotations

from typing import Any

import pytest
from logbus.hooks.broker import BrokerHook
from logbus.model import Pipeline
from logbus.operators import commit_offsets
from logbus.operators.commit_offsets import CommitOffsetsOperator
from logbus.status.group_checkpoint import Checkpoint

from tests.support.airflow_context import HOUR_START, run_context
from tests.support.fake_ledger import FakeLedger


@pytest.mark.parametrize(("group", "expected"), [(None, "logbus-access_log"), ("dashboards", "dashboards")])
def test_it_commits_the_runs_window_to_the_group_and_says_what_it_did(
    monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline, ledger: FakeLedger, group: str | None, expected: str
) -> None:
    asked: list[Any] = []

    def commit_ends(engine: object, groups: object, log: object, name: str, windows: Any) -> Checkpoint:
        asked.append((name, [window.interval.start for window in windows]))
        return Checkpoint(group=name, topic="access_log", committed={0: 15}, ahead={1: 99})

    monkeypatch.setattr(commit_offsets, "commit_ends", commit_ends)
    monkeypatch.setattr(BrokerHook, "group_offsets", lambda hook: object())
    monkeypatch.setattr(FakeLedger, "engine", object(), raising=False)
    done = CommitOffsetsOperator(task_id="commit", pipeline=pipeline, group=group).execute(run_context())
    assert asked == [(expected, [HOUR_START])]
    assert done == {"group": expected, "topic": "access_log", "committed": {"0": 15}, "ahead": {"1": 99}}
