"""What `logbus doctor` reports (`Finding`), what its checks examine (`Machine`), and how all of them run in time."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from logbus import errors, waiting

# spark-submit starts a JVM, Airflow imports itself: seconds each, and a hundred times that on a machine that swaps.
PROGRAM_SECONDS_MAX = 240.0
CHECK_SECONDS_MAX = 300.0  # two programs one after the other, or a server that answers late
NOTHING_MORE: Mapping[str, str] = MappingProxyType({})


class Severity(StrEnum):
    """`ERROR` needs action; `WARNING` may resolve itself; `NOTE` is good to know; `OK` was checked and is fine."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found, and what to type about it."""

    severity: Severity
    subject: str
    message: str
    advice: str

    def summary(self) -> dict[str, str]:
        """As JSON-ready values."""
        values = {"severity": self.severity, "subject": self.subject, "message": self.message, "advice": self.advice}
        return {name: str(value) for name, value in values.items()}


def error(subject: str, message: str, advice: str) -> Finding:
    return Finding(severity=Severity.ERROR, subject=subject, message=message, advice=advice)


def warning(subject: str, message: str, advice: str) -> Finding:
    return Finding(severity=Severity.WARNING, subject=subject, message=message, advice=advice)


def note(subject: str, message: str, advice: str) -> Finding:
    return Finding(severity=Severity.NOTE, subject=subject, message=message, advice=advice)


def ok(subject: str, message: str) -> Finding:
    return Finding(severity=Severity.OK, subject=subject, message=message, advice="")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutput:
    """A program's output, of stdout and stderr, and its exit status."""

    text: str
    status: int


class ProgramStillRunning(errors.LogbusError):
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
class Machine:
    """The machine as a check sees it; a test passes its own."""

    clock: Callable[[], datetime]
    client_config: Mapping[str, Any] = field(default_factory=dict)
    warehouse_url: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    home: Path = field(default_factory=Path.home)
    run: RunProgram = run_program
    which: Callable[[str], str | None] = shutil.which


Check = Callable[[Machine], Iterator[Finding]]


def run_checks(
    checks: Mapping[str, Check], machine: Machine, seconds_max: float = CHECK_SECONDS_MAX, say: waiting.Say = waiting.logged
) -> list[Finding]:
    """All findings in the order of the checks. A check that does not end in time is itself a finding, and is not waited for."""
    findings_by_check: dict[str, list[Finding]] = {}
    threads = {
        name: threading.Thread(
            target=_note, args=(findings_by_check, name, check, machine, say), name=f"check {name}", daemon=True
        )
        for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + seconds_max
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        findings_by_check.setdefault(name, [unknown(name, f"no answer within {seconds_max:.0f} s")])
    return [finding for name in checks for finding in findings_by_check[name]]


def _note(findings_by_check: dict[str, list[Finding]], name: str, check: Check, machine: Machine, say: waiting.Say) -> None:
    findings: list[Finding] = []
    try:
        with waiting.announced(f"the check of {name}", say):
            findings.extend(check(machine))
    except ProgramStillRunning as problem:
        findings.append(unknown(name, str(problem)))
    except errors.LogbusError as problem:
        findings.append(error(name, str(problem), "fix that first, then check again"))
    except Exception as problem:  # one failing check must not hide the others
        findings.append(error(name, f"the check itself crashed: {type(problem).__name__}: {problem}", "please report it"))
    findings_by_check.setdefault(name, findings)


def unknown(name: str, message: str) -> Finding:
    """Slow is not wrong."""
    return warning(name, f"not known yet: {message}", f"logbus doctor --only {name}, when the machine is less busy")
