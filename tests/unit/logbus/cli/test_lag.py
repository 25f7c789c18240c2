"""What the command prints; how lag is computed is tested in tests/unit/logbus/status."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from logbus.cli import monitoring
from logbus.errors import LogbusError, exit_code_of
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
UNKNOWN = Lag(pipeline="b", topic="t", records_behind={}, problem="the topic was recreated")


def test_all_pipelines_are_shown_and_problems_said(capsys: pytest.CaptureFixture[str]) -> None:
    monitoring.show([BEHIND, UNKNOWN], NOW, as_json=False)
    said = capsys.readouterr()
    row = next(line for line in said.out.splitlines() if line.startswith("a "))
    cells = re.split("  +", row)
    assert cells == [
        *["a", "t", "3", "2", "2026-11-21T08:00:00Z", "4:30:00", "35", "-", "7", "0"],
        "in 2 days 0 h by retention.ms",
    ]
    assert said.err == "b: the topic was recreated\n"


@pytest.mark.parametrize(
    ("lags", "hours_max", "status"),
    [
        ([BEHIND], None, 0),
        ([BEHIND], 3, 0),
        ([BEHIND], 2, 5),
        ([UNKNOWN], 1000, 5),  # how far it is behind is unknown
        ([BEHIND, UNKNOWN], None, 0),
        ([UNKNOWN], None, 3),  # no lag is known at all
        ([], None, 0),
    ],
)
def test_a_script_may_ask_whether_a_pipeline_is_too_far_behind(lags: list[Lag], hours_max: float | None, status: int) -> None:
    try:
        monitoring.check(lags, hours_max)
    except LogbusError as error:
        assert (exit_code_of(error), "more than" in str(error)) == (status, status == 5)
    else:
        assert status == 0


def test_a_program_gets_numbers_and_nulls_never_guesses(capsys: pytest.CaptureFixture[str]) -> None:
    monitoring.show([BEHIND], NOW, as_json=True)
    (found,) = json.loads(capsys.readouterr().out)
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
    assert monitoring.taken_text(Lag(pipeline="a", topic="t", records_behind={}, expires_at=at, expires_by=by), NOW) == text


def test_that_there_is_no_pipeline_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    monitoring.show([], NOW, as_json=True)
    said = capsys.readouterr()
    assert json.loads(said.out) == []
    assert "no pipeline is registered: `logbus pipeline register` registers one" in said.err


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
    assert monitoring.span_text(span) == shown
