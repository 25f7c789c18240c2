"""What the commands print; what managed retention decides and does is tested in logbus/retention and integration/ledger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result
from logbus.cli import main
from logbus.cli import retention as command
from logbus.kafka.client import Client
from logbus.status.retention_plan import plan_topic
from logbus.status.retention_run import RetentionReport

from tests.support.retention import at, chain, hourly, policy, state

LONG_NAME = "orders-of-all-shops-in-all-countries-that-anybody-has-ever-thought-of-delivering-to"


class FakeRetention:
    """Window 6 of 20 is not loaded; what is older than 24 hours may be deleted."""

    ran = False
    is_managing = True

    def plan(self, now: datetime, topics: Sequence[str] | None = None) -> RetentionReport:
        if not self.is_managing:
            return RetentionReport(plans=(), alarms=())
        windows = [hourly(number, loaded=number != 6) for number in range(20)]
        limit = replace(policy(max_hold=timedelta(hours=2)), topic=LONG_NAME)
        plan = plan_topic(limit, state(), [chain(windows)], (), at(34))
        return RetentionReport(plans=(plan,), alarms=plan.alarms)

    def run(self, now: datetime, run_id: str, topics: Sequence[str] | None = None) -> RetentionReport:
        self.ran = True
        return self.plan(now, topics)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRetention:
    made = FakeRetention()
    monkeypatch.setattr(command, "open_retention", lambda *words: made)
    return made


def retention(*words: str) -> Result:
    return CliRunner().invoke(main, ["retention", *words, "--warehouse", "postgresql://h/d"])


def test_a_plan_shows_what_goes_what_is_held_back_and_what_is_no_longer_replayable(fake: FakeRetention) -> None:
    result = retention("plan")
    assert result.stdout.splitlines()[0] == f"{LONG_NAME}: keeps 24 hours; 60 records go", "in a pipe nothing is folded"
    assert "partition 0 held back at offset 60 for 3 hours by pipeline p" in result.stdout
    assert "no longer replayable: 6 windows, 600 bytes: p@2026-11-01T00:00:00Z" in result.stdout
    assert "nothing was deleted" in result.stderr
    assert not fake.ran


@pytest.mark.parametrize("words", [("plan",), ("run",), ("run", "--dry-run"), ("run", "--execute")])
def test_an_alarm_is_said_last_and_ends_with_status_5(fake: FakeRetention, words: tuple[str, ...]) -> None:
    result = retention(*words)
    assert result.exit_code == 5
    assert f"error: topic {LONG_NAME}: pipeline p has held back 40 records for 3 hours" in result.stderr
    assert fake.ran == ("--execute" in words)


def test_a_report_can_be_read_by_a_program(fake: FakeRetention) -> None:
    report: dict[str, Any] = json.loads(retention("plan", "--json").stdout)
    assert report["records"] == 60
    assert len(report["topics"][0]["no_longer_replayable"]) == 6


@pytest.mark.parametrize("words", [("plan",), ("run",), ("run", "--execute")])
@pytest.mark.parametrize("form", ["table", "json"])
def test_without_a_managed_topic_nothing_is_to_be_done_and_nothing_has_failed(
    fake: FakeRetention, words: tuple[str, ...], form: str
) -> None:
    fake.is_managing = False
    result = retention(*words, "-o", form)
    assert result.exit_code == 0
    assert "no topic is managed: `logbus retention adopt TOPIC`" in result.stderr
    assert result.stdout == "" if form == "table" else json.loads(result.stdout)["topics"] == []


def test_a_policy_can_be_given_while_the_broker_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    command.require_topic("web", Client({"bootstrap.servers": "127.0.0.1:1"}, timeout_seconds=0.1))
    assert "note: not checked whether the topic exists: the broker at 127.0.0.1:1" in capsys.readouterr().err
