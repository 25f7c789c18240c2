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


def test_a_thousand_windows_are_begun_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = at_terminal(monkeypatch, is_one=True)
    command.ask(plan(1_000))
    assert asked == []


def test_for_more_somebody_at_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = at_terminal(monkeypatch, is_one=True)
    command.ask(plan(1_001))
    assert asked == ["1001 windows are to be loaded, 1001 of them without any record. Begin?"]


def test_a_script_has_to_say_so_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    at_terminal(monkeypatch, is_one=False)
    with pytest.raises(TooManyWindows, match="--yes begins them all, --since, --until and --limit choose some"):
        command.ask(plan(1_001))


def test_who_has_no_standard_input_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    at_terminal(monkeypatch, is_one=True)
    monkeypatch.setattr(sys, "stdin", None)  # as some service managers start it
    with pytest.raises(TooManyWindows):
        command.ask(plan(1_001))
