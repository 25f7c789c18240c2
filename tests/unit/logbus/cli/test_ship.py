"""A shipper that follows: what it reports once, and what it treats as a rotation in progress."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from logbus.cli import ship
from logbus.cli.ship import following, summary, warnings
from logbus.errors import LogGone, UndatedLog
from logbus.shipper.ship import ShipReport

NOTHING_TO_SEND = "nothing to send: what the files hold was sent before, or they are empty"

COUNTS = ("lines", "bytes", "skipped", "undated", "undated_before_any", "undated_by_file", "ahead", "zoneless", "recovered")
NOTHING = ShipReport(files=1, seconds=1.0, **dict.fromkeys(COUNTS, 0))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship, "FOLLOW_SECONDS", 0.0)


class Runs:
    """Fakes runs: keeps the file names each was given, and returns reports or raises errors."""

    def __init__(self, *outcomes: ShipReport | Exception) -> None:
        self.left = list(outcomes)
        self.named: list[list[str]] = []

    def __call__(self, there: Sequence[Path]) -> ShipReport:
        self.named.append([path.name for path in there])
        outcome = self.left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @property
    def stopped(self) -> Callable[[], bool]:
        return lambda: not self.left


def test_a_file_that_is_renamed_while_it_is_looked_at_is_looked_at_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "app.log"
    log.touch()
    runs = Runs(LogGone(f"{log} was renamed"), replace(NOTHING, lines=3))
    assert [report.lines for report in following([log], runs, runs.stopped)] == [3]
    assert capsys.readouterr().err == ""


def test_a_new_file_that_begins_with_a_banner_does_not_end_a_shipper_that_follows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, number = tmp_path / "app.log", itertools.count(1)
    log.touch()

    def run(there: Sequence[Path]) -> ShipReport:
        log.write_text("x" * next(number))  # written to again after each look
        return runs(there)

    runs = Runs(replace(NOTHING, lines=1), UndatedLog("no time"), UndatedLog("no time"), replace(NOTHING, lines=2))
    assert [report.lines for report in following([log], run, runs.stopped)] == [1, 2]
    assert capsys.readouterr().err == "warning: no time; trying again when more is written\n"
    with pytest.raises(UndatedLog):
        next(iter(following([log], Runs(UndatedLog("no time")), lambda: False)))


def test_a_file_that_is_not_there_yet_is_said_once_and_holds_up_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, later = tmp_path / "app.log", tmp_path / "later.log"
    log.touch()
    runs = Runs(replace(NOTHING, lines=1), replace(NOTHING, lines=2))
    for report in following([log, later], runs, runs.stopped):
        later.touch()
        assert report.lines in (1, 2)
    assert runs.named == [["app.log"], ["app.log", "later.log"]]
    assert capsys.readouterr().err == f"waiting for {later}, which does not exist yet\n"


@pytest.mark.parametrize(
    ("report", "is_interrupted", "said"),
    [
        (NOTHING, False, True),
        (NOTHING, True, False),  # lines may be left
        (replace(NOTHING, unfinished=1), False, False),
        (replace(NOTHING, waiting=1), False, False),
        (replace(NOTHING, lines=1), False, False),
    ],
)
def test_that_there_is_nothing_to_send_is_said_only_if_that_is_so(report: ShipReport, is_interrupted: bool, said: bool) -> None:
    assert (NOTHING_TO_SEND in summary("app", "broker:9092", report, 900_000, is_interrupted=is_interrupted)) == said


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (replace(NOTHING, lines=10, undated=8, ahead=8), ["8 lines carry a time more than an hour ahead of now"]),
        (replace(NOTHING, lines=10, undated=8), ["8 of 10 lines have no time that is understood"]),
        (replace(NOTHING, lines=10, undated=2), []),
        (
            replace(NOTHING, lines=10, months_away=2, months_away_day="2015-01-01"),
            ["2 lines with a time months away from those of the other lines of their file, the first on 2015-01-01"],
        ),
        (
            replace(NOTHING, lines=10, zoneless=8, undated=2, ahead=2),
            ["8 lines carry a time without a zone", "2 lines carry a time more"],
        ),
    ],
)
def test_each_cause_of_a_wrong_hour_is_warned_of_by_itself(report: ShipReport, said: list[str]) -> None:
    found = list(warnings(report))
    assert [one[: len(start)] for one, start in zip(found, said, strict=True)] == said
