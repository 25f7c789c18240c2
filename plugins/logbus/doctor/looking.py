"""What checks examine, and how all of them run in parallel within a deadline."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from logbus.errors import LogbusError
from logbus.status.checkup import Finding, error, warning
from logbus.waiting import Say, announced, logged

# spark-submit starts a JVM, Airflow imports itself: seconds each, and a hundred times that on a machine that swaps.
PROGRAM_SECONDS_MAX = 240.0
CHECK_SECONDS_MAX = 300.0  # two programs one after the other, or a server that answers late
NOTHING_MORE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutput:
    """A program's output, of stdout and stderr, and its exit status."""

    text: str
    status: int


class ProgramStillRunning(LogbusError):
    """A program has not ended in time. What it would have said is unknown: that is no fault of what it looks at."""


class RunProgram(Protocol):
    """Runs a command; `more` is added to our own environment."""

    def __call__(self, command: Sequence[str], more: Mapping[str, str] = NOTHING_MORE) -> ProgramOutput: ...


def run_program(command: Sequence[str], more: Mapping[str, str] = NOTHING_MORE) -> ProgramOutput:
    """Runs it without input and without a terminal; `ProgramStillRunning` if it was ended at the time limit."""
    try:
        done = subprocess.run(
            list(command),
            env={**os.environ, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROGRAM_SECONDS_MAX,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise ProgramStillRunning(f"{command[0]} has not ended within {PROGRAM_SECONDS_MAX:.0f} s") from None
    except OSError as problem:
        return ProgramOutput(text=str(problem.strerror), status=127)
    return ProgramOutput(text=done.stdout, status=done.returncode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The machine as a check sees it; a test passes its own."""

    clock: Callable[[], datetime]
    client_config: Mapping[str, Any] = field(default_factory=dict)
    warehouse_url: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    home: Path = field(default_factory=Path.home)
    run: RunProgram = run_program
    which: Callable[[str], str | None] = shutil.which


Check = Callable[[Surroundings], Iterator[Finding]]


def look(
    checks: Mapping[str, Check], around: Surroundings, seconds_max: float = CHECK_SECONDS_MAX, say: Say = logged
) -> list[Finding]:
    """All findings in the order of the checks. A check that does not end in time is itself a finding, and is not waited for."""
    found: dict[str, list[Finding]] = {}
    threads = {
        name: threading.Thread(target=_note, args=(found, name, check, around, say), name=f"check {name}", daemon=True)
        for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + seconds_max
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        found.setdefault(name, [late(name, f"no answer within {seconds_max:.0f} s")])
    return [finding for name in checks for finding in found[name]]


def _note(found: dict[str, list[Finding]], name: str, check: Check, around: Surroundings, say: Say) -> None:
    findings: list[Finding] = []
    try:
        with announced(f"the check of {name}", say):
            findings.extend(check(around))
    except ProgramStillRunning as problem:
        findings.append(late(name, str(problem)))
    except LogbusError as problem:
        findings.append(error(name, str(problem), "fix that first, then check again"))
    except Exception as problem:  # one failing check must not hide the others
        findings.append(error(name, f"the check itself failed: {type(problem).__name__}: {problem}", "please report it"))
    found.setdefault(name, findings)


def late(name: str, message: str) -> Finding:
    """Slow is not wrong."""
    return warning(name, f"not known yet: {message}", f"logbus doctor --only {name}, when the machine is less busy")
