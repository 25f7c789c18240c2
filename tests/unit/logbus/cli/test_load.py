"""Starting very many windows needs confirmation."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import click
import pytest
from logbus.cli import load as command
from logbus.errors import TooManyWindows
from logbus.model import Interval, Pipeline
from logbus.windows.catch_up import LoadPlan
from logbus.windows.missing import Gap, Missing

from tests.support.ledgers import at

QUESTION = "1001 windows are to be loaded, 1001 of them without any record. Begin?"
PIPELINE = Pipeline(name="p", topic="t", table="t", parse="lines")


def plan(hours: int) -> LoadPlan:
    gap = Gap(interval=Interval(at(0), at(hours)), missing=Missing.NOT_FROZEN, is_empty=True, count=hours)
    return LoadPlan(pipeline=PIPELINE, steps=(gap,))


def at_terminal(monkeypatch: pytest.MonkeyPatch, *, is_one: bool) -> list[str]:
    """The questions asked at the terminal."""
    asked: list[str] = []
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(closed=False, isatty=lambda: is_one))
    monkeypatch.setattr(click, "confirm", lambda text, **options: asked.append(text))
    return asked


@pytest.mark.parametrize(("hours", "questions"), [(1_000, []), (1_001, [QUESTION])])
def test_somebody_at_a_terminal_is_asked_before_more_than_a_thousand_windows(
    monkeypatch: pytest.MonkeyPatch, hours: int, questions: list[str]
) -> None:
    asked = at_terminal(monkeypatch, is_one=True)
    command.ask(plan(hours))
    assert asked == questions


@pytest.mark.parametrize("has_input", [True, False])
def test_a_script_has_to_say_so_beforehand(monkeypatch: pytest.MonkeyPatch, has_input: bool) -> None:
    at_terminal(monkeypatch, is_one=False)
    if not has_input:
        monkeypatch.setattr(sys, "stdin", None)  # as some service managers start it
    with pytest.raises(TooManyWindows, match="--yes begins them all, --since, --until and --limit choose some"):
        command.ask(plan(1_001))
