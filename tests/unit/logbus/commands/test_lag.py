"""What the command prints; what lag is is tested beside it."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from logbus.cli import main
from logbus.commands import lag as command
from logbus.status.lag import Lag

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
BEHIND = Lag(
    pipeline="a",
    topic="t",
    records_behind={0: 30, 1: 5},
    hours_behind=3,
    hours_empty=2,
    oldest_hour=NOW - timedelta(hours=4.5),
    records_open=7,
    expires_at=NOW + timedelta(days=2),
    expires_by="retention.ms",
)
LAGS = {"a": BEHIND, "b": Lag(pipeline="b", topic="t", records_behind={}, problem="the topic was made again")}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pipelines, one of them with a problem."""
    engine = SimpleNamespace(connect=nullcontext)
    ledger = SimpleNamespace(engine=engine, pipelines=lambda: [SimpleNamespace(name=name) for name in LAGS])
    monkeypatch.setattr(command.options, "open_ledger", lambda url: ledger)
    monkeypatch.setattr(command.options, "clock", lambda: NOW)
    monkeypatch.setattr(command, "elsewhere_notes", lambda connection, names: [])
    monkeypatch.setattr(command, "lag_of", lambda engine, log, name, now, measure: LAGS[name])


def lag(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["lag", *words, "--warehouse", "postgresql://h/d"])


def test_all_pipelines_are_shown_and_problems_said(known: None) -> None:
    result = lag()
    row = next(line for line in result.stdout.splitlines() if line.startswith("a "))
    cells = re.split("  +", row)
    assert cells == [
        "a",
        "t",
        "3",
        "2",
        "2026-11-21T08:00:00Z",
        "4:30:00",
        "35",
        "-",
        "7",
        "0",
        "in 2 days 0 h by retention.ms",
    ]
    assert "b: the topic was made again" in result.stderr


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("--pipeline", "a"), 0),
        (("--pipeline", "a", "--fail-above", "3"), 0),
        (("--pipeline", "a", "--fail-above", "2"), 5),
        (("--pipeline", "b", "--fail-above", "1000"), 5),  # nobody knows how far it is behind
        (("--pipeline", "a", "--fail-above", "1d"), 0),
        ((), 0),
        (("--pipeline", "b"), 3),  # nothing could be said at all
    ],
)
def test_a_script_may_ask_whether_a_pipeline_is_too_far_behind(known: None, words: tuple[str, ...], status: int) -> None:
    result = lag(*words)
    assert result.exit_code == status
    assert ("more than" in result.stderr) == (status == 5)


def test_a_program_gets_numbers_and_nulls_never_guesses(known: None) -> None:
    (found,) = json.loads(lag("--pipeline", "a", "--json").stdout)
    assert (found["hours_behind"], found["age_seconds"], found["records_behind"]) == (3, 16_200.0, 35)
    assert (found["seconds_until_expiry"], found["bytes_behind"]) == (172_800.0, None)


@pytest.mark.parametrize(
    ("at", "by", "text"),
    [
        (None, None, "-"),
        (None, "retention.bytes", "by retention.bytes, time unknown"),
        (NOW, "retention.ms", "any moment by retention.ms"),
    ],
)
def test_when_records_would_be_taken_is_told_as_it_is_known(at: datetime | None, by: str | None, text: str) -> None:
    assert command.taken_text(Lag(pipeline="a", topic="t", records_behind={}, expires_at=at, expires_by=by), NOW) == text


def test_that_there_is_no_pipeline_is_said(known: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "LAGS", {})
    assert "no pipeline is registered: `logbus pipeline register` makes one" in lag().stderr
    assert json.loads(lag("--json").stdout) == []


@pytest.mark.parametrize(
    ("span", "shown"),
    [
        (None, "-"),
        (timedelta(hours=4.5), "4:30:00"),
        (timedelta(days=1, hours=2, minutes=59), "1 day 2 h"),
        (timedelta(days=4204, hours=22.5), "4,204 days 22 h"),
    ],
)
def test_an_age_is_as_exact_as_somebody_needs_it(span: timedelta | None, shown: str) -> None:
    assert command.span_text(span) == shown
