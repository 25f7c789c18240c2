from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.hooks.broker import BrokerHook
from logbus.model import Pipeline
from logbus.operators import rewind_offsets
from logbus.operators.rewind_offsets import RewindOffsetsOperator

from tests.support.airflow_context import HOUR_START, run_context
from tests.support.fake_groups import FakeGroups
from tests.support.fake_ledger import FakeLedger
from tests.support.fake_log import FakeLog

FIRST_MS = int(HOUR_START.timestamp() * 1000)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, ledger: FakeLedger) -> FakeGroups:
    """A group at offset 12 of a topic with twenty records, a minute apart from the hour's start on."""
    groups, log = FakeGroups(), FakeLog()
    log.create("access_log")
    log.ids["access_log"] = "t"
    log.append("access_log", *(FIRST_MS + 60_000 * number for number in range(20)))
    groups.commit("logbus-access_log", {("access_log", 0): 12})

    @contextmanager
    def begin() -> Iterator[None]:
        yield

    monkeypatch.setattr(BrokerHook, "group_offsets", lambda hook: groups)
    monkeypatch.setattr(BrokerHook, "log_offsets", lambda hook: log)
    monkeypatch.setattr(FakeLedger, "engine", SimpleNamespace(begin=begin), raising=False)
    monkeypatch.setattr(rewind_offsets, "take_turn", lambda connection, group: None)
    return groups


def moved(pipeline: Pipeline, **arguments: Any) -> dict[str, Any]:
    result = RewindOffsetsOperator(task_id="rewind", pipeline=pipeline, **arguments).execute(run_context())
    moves: dict[str, Any] = result["moves"]
    return moves


def test_by_default_the_pipelines_group_goes_to_the_runs_window(pipeline: Pipeline, groups: FakeGroups) -> None:
    assert moved(pipeline) == {"0": [12, 5]}
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
def test_it_goes_where_the_command_would_go(
    pipeline: Pipeline, groups: FakeGroups, to: str, value: str | None, expected: int
) -> None:
    assert moved(pipeline, to=to, value=value) == {"0": [12, expected]}


@pytest.mark.parametrize(("to", "value"), [("offset", "x"), ("offset", None), ("datetime", "yesterday")])
def test_a_value_that_means_nothing_is_named(pipeline: Pipeline, groups: FakeGroups, to: str, value: str | None) -> None:
    with pytest.raises(UserError, match=f"cannot move a group to {to}"):
        moved(pipeline, to=to, value=value)


def test_a_target_that_is_none_is_refused_when_the_dag_is_parsed(pipeline: Pipeline) -> None:
    with pytest.raises(UserError, match="one of window, earliest"):
        RewindOffsetsOperator(task_id="rewind", pipeline=pipeline, to="yesterday")
