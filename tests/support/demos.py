"""Demos for tests that need the whole platform: one that was run as a command and has ended, and its data, started again."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from logbus.cli.stack import LocalStack
from logbus.model import FrozenWindow

LINES, HOURS = 600, 4
END = datetime(2015, 5, 21, tzinfo=UTC)  # of the log
OTHER_ADDRESS = "127.0.0.2"  # of this machine, by which another one reaches the second demo's broker
LINEAGE = "lineage.jsonl"  # in the second demo's home: an event of OpenLineage in each line
DEMO_SECONDS_MAX = 3_600.0  # a minute's work; with forty other busy processes on two cores it took 1,542 s


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
    """The same home, started again. `windows` are the demo's hours, of which it has loaded `reloaded` twice."""

    stack: LocalStack
    windows: tuple[FrozenWindow, ...]
    reloaded: FrozenWindow


def run_demo(log: Path, report: Path, home: Path) -> FirstDemo:
    """Run `logbus demo` to its end, as a user would; with TLS, users and ACLs."""
    command = [
        sys.executable,
        "-m",
        "logbus",
        "demo",
        "--secure",
        "--log",
        str(log),
        "--report",
        str(report),
        "--home",
        str(home),
    ]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEMO_SECONDS_MAX
    )
    assert report.exists(), done.stdout
    return FirstDemo(
        home=home,
        log=log,
        exit_code=done.returncode,
        output=done.stdout,
        report=json.loads(report.read_text()),
        survivors=processes_of(home),
    )


def processes_of(home: Path) -> list[str]:
    """Command lines of the processes that mention this home."""
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [" ".join(words) for words in found if any(str(home) in word for word in words)]
