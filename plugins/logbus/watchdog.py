"""A small process between an owner and a command it runs, so that nothing outlives the owner.

    python watchdog.py USER SIGNAL GRACE_SECONDS COMMAND...

The owner holds the other end of this process's standard input. When that end closes, because the owner closed it, ended or was
killed with SIGKILL, the watchdog ends the command and everything it ever started: SIGNAL to the command (PostgreSQL takes
SIGINT as "fast shutdown"; others SIGTERM), SIGKILL after the grace period. Owner and watchdog are linked by a pipe instead of
PR_SET_PDEATHSIG, which fires when the starting THREAD ends, and only on Linux. As a child subreaper (Linux) the watchdog inherits
orphans of the command however they detached, so a Spark driver whose JVM died is found too. On systems without subreapers the
process group is the fence.

USER is the account to run the command as, or `-` to keep ours: PostgreSQL refuses to run as root.

Runs as a plain script on a bare interpreter (-I -S): standard library only, starts in milliseconds, imports nothing of logbus.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# After SIGKILL a process gives its memory back, and what was swapped out takes its time; one stuck in the kernel never ends.
KILL_WAIT_SECONDS = 30.0


def identity(user: str | None) -> dict[str, Any]:
    """Popen arguments to run as the account alone: if root's group were kept, a folder closed to that group would stay shut."""
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}


def prctl(option: int, value: int) -> None:
    """Set a property of this process; does nothing on systems without prctl."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(ancestor_pid: int) -> list[int]:
    """Every living process below `ancestor_pid`, from /proc; zombies do not count."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The command's name is in parentheses and may itself contain spaces and parentheses.
            state, parent_pid = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent_pid), []).append(int(stat.parent.name))
    descendants: list[int] = []
    unvisited = [ancestor_pid]
    while unvisited:
        below = children.get(unvisited.pop(), [])
        descendants += below
        unvisited += below
    return descendants


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def reap() -> dict[int, int]:
    """Collect every child that has ended: process id to exit status as the shell counts it."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            code = os.waitstatus_to_exitcode(status)
            ended[pid] = code if code >= 0 else 128 - code
    return ended


class Watchdog:
    """The command, and whether it is still running."""

    def __init__(self, command: list[str], user: str | None, wakeup: int) -> None:
        self._wakeup = wakeup
        self._exit_code: int | None = None
        # A watchdog killed with SIGKILL takes its command with it; what the command started then has no fence.
        # The reference is kept for our whole life: a garbage-collected Popen would reap the command and lose its exit status.
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            close_fds=False,  # those that the owner has passed on are for the command
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # after the change of account, which would undo it
            **identity(user),
        )
        self._pid = self._child.pid

    def watch(self) -> None:
        """Return when the command ends, the owner's end of standard input closes, or a signal asks to end."""
        while self._exit_code is None and not self._wait(None):
            pass

    def end(self, number: signal.Signals, grace_seconds: float) -> int:
        """End whatever is left and return the command's exit status (143 where it had to be ended)."""
        asked_to_end = self._exit_code is None
        if asked_to_end:
            send(self._pid, number)
            self._wait_for(lambda: self._exit_code is not None, grace_seconds)
        for left, seconds in ((signal.SIGTERM, 1.0), (signal.SIGKILL, KILL_WAIT_SECONDS)):
            for pid in descendants(os.getpid()):
                send(pid, left)
            self._wait_for(lambda: not descendants(os.getpid()), seconds)
        return 128 + signal.SIGTERM if asked_to_end or self._exit_code is None else self._exit_code

    def _wait(self, seconds: float | None) -> bool:
        """Sleep until something happens; True where the watchdog is asked to end."""
        readable, _, _ = select.select([sys.stdin.fileno(), self._wakeup], [], [], seconds)
        signals = os.read(self._wakeup, 4096) if self._wakeup in readable else b""
        self._exit_code = reap().get(self._pid, self._exit_code)
        asked_by_signal = any(number != signal.SIGCHLD for number in signals)
        return sys.stdin.fileno() in readable or asked_by_signal

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            select.select([self._wakeup], [], [], 0.05)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup, 4096)
            self._exit_code = reap().get(self._pid, self._exit_code)


def main(user: str, ending: str, grace_seconds: str, *command: str) -> int:
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakeup, wakeup_write = os.pipe()
    for end in (wakeup, wakeup_write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakeup_write)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    watchdog = Watchdog(list(command), None if user == "-" else user, wakeup)
    watchdog.watch()
    return watchdog.end(signal.Signals[ending], float(grace_seconds))


def command_line(command: Sequence[str], *, user: str | None = None, ending: str = "SIGTERM", grace_seconds: float) -> list[str]:
    """The watchdog's own command. -I and -S: it needs only the standard library, and nothing from the program's environment
    (PYTHONPATH, a sitecustomize) may affect it."""
    return [sys.executable, "-I", "-S", __file__, user or "-", ending, str(grace_seconds), *command]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
