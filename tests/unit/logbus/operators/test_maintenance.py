from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from logbus.errors import RetentionOverdue
from logbus.hooks.warehouse import WarehouseHook
from logbus.operators import maintenance as operators
from logbus.operators.maintenance import MaintainOperator, RetentionOperator
from logbus.status.retention_plan import Deletion, RetentionPolicy, TopicPlan
from logbus.status.retention_run import RetentionReport
from logbus.task_context import is_true

from tests.support.airflow_context import run_context
from tests.support.retention import policy


@pytest.mark.parametrize(("rendered", "pipelines"), [("clicks", ["clicks"]), ("clicks,orders", ["clicks", "orders"]), (None, [])])
def test_pipelines_may_be_text_as_a_template_renders_it(
    monkeypatch: pytest.MonkeyPatch, rendered: str | None, pipelines: list[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(WarehouseHook, "get_engine", lambda self: None)
    monkeypatch.setattr(operators, "maintain", lambda engine, upkeep, names: asked.append(names) or {})
    operator = MaintainOperator(task_id="maintain", pipelines="{{ params.pipelines }}")
    operator.render_template_fields({"params": {"pipelines": rendered}})
    operator.execute(run_context())
    assert asked == [pipelines]


NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)


class FakeRetention:
    """Records its calls; the real one is tested with a real ledger."""

    def __init__(self, alarms: Sequence[str] = ()) -> None:
        self.asked: list[Any] = []
        self.alarms = tuple(alarms)
        self.store = SimpleNamespace(set_policy=lambda policy, now: self.asked.append(("set", policy, now)))

    def plan(self, now: datetime, topics: Sequence[str] | None = None) -> RetentionReport:
        self.asked.append(("plan", now, topics))
        return self.report()

    def run(self, now: datetime, run_id: str, topics: Sequence[str] | None = None) -> RetentionReport:
        self.asked.append(("run", now, run_id, topics))
        return self.report()

    def report(self) -> RetentionReport:
        gone = Deletion(topic="t", topic_id="i", partition=0, start_offset=0, end_offset=7, reason="old")
        return RetentionReport(plans=(TopicPlan(policy=policy(), deletions=(gone,)),), alarms=self.alarms, number=1)


def operator(fake: FakeRetention, **arguments: Any) -> RetentionOperator:
    made = RetentionOperator(task_id="retention", now=lambda: NOW, **arguments)
    made.retention = fake  # type: ignore[assignment]
    return made


def test_it_runs_over_all_managed_topics_and_returns_the_report() -> None:
    fake = FakeRetention()
    summary = operator(fake).execute(run_context())
    assert fake.asked == [("run", NOW, "manual__1", None)]
    assert summary["records"] == 7


@pytest.mark.parametrize("dry_run", [True, "True", "true"])
def test_a_dry_run_only_plans_and_leaves_policies_alone(dry_run: bool | str) -> None:
    fake = FakeRetention()
    operator(fake, topics=["t"], dry_run=dry_run, policies=[policy()]).execute(run_context())
    assert fake.asked == [("plan", NOW, ["t"])]


@pytest.mark.parametrize(
    ("rendered", "topics"), [("orders", ["orders"]), ("orders,payments", ["orders", "payments"]), (None, None)]
)
def test_topics_may_be_text_as_a_template_renders_it(rendered: str | None, topics: list[str] | None) -> None:
    fake = FakeRetention()
    made = operator(fake, topics="{{ params.topics }}", dry_run=True)
    made.render_template_fields({"params": {"topics": rendered}})
    made.execute(run_context())
    assert fake.asked == [("plan", NOW, topics)]


def test_policies_in_code_are_set_before_the_run() -> None:
    fake, wanted = FakeRetention(), RetentionPolicy(topic="t", retain_bytes=5)
    operator(fake, policies=[wanted]).execute(run_context())
    assert [what for what, *_ in fake.asked] == ["set", "run"]
    assert fake.asked[0][1] == wanted


def test_an_alarm_fails_the_task_after_the_run() -> None:
    fake = FakeRetention(alarms=["pipeline p has held back 3 records"])
    with pytest.raises(RetentionOverdue, match="held back 3 records"):
        operator(fake).execute(run_context())
    assert fake.asked[0][0] == "run"


@pytest.mark.parametrize(
    ("value", "meant"), [(False, False), ("False", False), ("", False), ("None", False), (" Yes ", True), ("1", True)]
)
def test_a_parameter_is_true_in_the_words_that_people_use(value: bool | str, meant: bool) -> None:
    assert is_true(value) is meant
