"""What checks look at, and all of them run beside each other within a deadline."""

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
from typing import Any

from logbus.errors import LogbusError
from logbus.status.checkup import Finding, error

PROGRAM_SECONDS_MAX = 60.0  # spark-submit starts a JVM, Airflow imports itself: seconds each, more on a busy machine
CHECK_SECONDS_MAX = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutput:
    """What a program said, on both its outputs, and its exit status; status None where it did not end in time."""

    text: str
    status: int | None


Run = Callable[[Sequence[str]], ProgramOutput]


def run_program(command: Sequence[str]) -> ProgramOutput:
    """Runs it without input and without a terminal, for so long at the most."""
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROGRAM_SECONDS_MAX,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return ProgramOutput(text=f"no end within {PROGRAM_SECONDS_MAX:.0f} s", status=None)
    except OSError as problem:
        return ProgramOutput(text=str(problem.strerror), status=127)
    return ProgramOutput(text=done.stdout, status=done.returncode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The machine as a check sees it; a test gives its own."""

    clock: Callable[[], datetime]
    client_config: Mapping[str, Any] = field(default_factory=dict)
    warehouse_url: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    home: Path = field(default_factory=Path.home)
    run: Run = run_program
    which: Callable[[str], str | None] = shutil.which


Check = Callable[[Surroundings], Iterator[Finding]]


def look(checks: Mapping[str, Check], around: Surroundings, seconds_max: float = CHECK_SECONDS_MAX) -> list[Finding]:
    """All findings in the order of the checks. One that does not end in time is a finding itself, and is not waited for."""
    found: dict[str, list[Finding]] = {}
    threads = {
        name: threading.Thread(target=_note, args=(found, name, check, around), name=f"check {name}", daemon=True)
        for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + seconds_max
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        found.setdefault(name, [late(name, seconds_max)])
    return [finding for name in checks for finding in found[name]]


def _note(found: dict[str, list[Finding]], name: str, check: Check, around: Surroundings) -> None:
    findings: list[Finding] = []
    try:
        findings.extend(check(around))
    except LogbusError as problem:
        findings.append(error(name, str(problem), "mend that first, then look again"))
    except Exception as problem:  # a check that fails is no reason to say nothing of the others
        findings.append(error(name, f"the check itself failed: {type(problem).__name__}: {problem}", "please report it"))
    found.setdefault(name, findings)


def late(name: str, seconds_max: float) -> Finding:
    return error(name, f"no answer within {seconds_max:.0f} s", f"logbus doctor --only {name}, when the machine is less busy")
