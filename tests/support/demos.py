"""Demos for the tests that need the whole platform: one that was run as a command and has ended, one that is still up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from logbus.local.demo import DemoResult
from logbus.local.stack import LocalStack

LINES, HOURS = 600, 4


@dataclass(frozen=True, kw_only=True)
class FirstDemo:
    """A demo that was run as a command and has ended."""

    home: Path
    log: Path
    exit_code: int
    output: str
    report: dict[str, Any]
    survivors: list[str]


@dataclass(frozen=True, kw_only=True)
class SecondDemo:
    """A demo in the same place that is still up."""

    stack: LocalStack
    result: DemoResult


def processes_of(home: Path) -> list[str]:
    """Command lines of the processes that have to do with this place."""
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [" ".join(words) for words in found if any(str(home) in word for word in words)]
