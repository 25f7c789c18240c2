"""Child processes that cannot outlive us: each runs under a watchdog (watchdog.py) that ends it when our end of a pipe closes.

A `SupervisedProcess` has a name, a log file and a process id file. Its watchdog leads its own session, so Ctrl-C in the terminal
reaches only us and we choose the order. The process id file names the watchdog and the moment it started: process ids are
reused, the pair is not. It lets a later run in the same place find what a killed run left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from logbus import errors, waiting, watchdog

GRACE_SECONDS = 10.0  # Airflow's components and the broker end within two or three seconds when they are asked to
LOG_TAIL_BYTES = 16_384
LOG_TAIL_LINES = 15
# A program that ends again and again has a reason, such as a full disk, which no start removes.
STARTS_MAX, STARTS_SECONDS = 5, 600.0


class StackError(errors.LogbusError):
    """A part of the local stack did not start or has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run: `directory` holds its log and its process id file, both named after it."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    working_directory: Path
    grace_seconds: float = GRACE_SECONDS

    @property
    def log_path(self) -> Path:
        return self.directory / f"{self.name}.log"

    @property
    def pid_path(self) -> Path:
        return self.directory / f"{self.name}.pid"


class SupervisedProcess:
    """A running program and its watchdog."""

    def __init__(self, program: Program) -> None:
        self.program = program
        program.directory.mkdir(parents=True, exist_ok=True)
        with program.log_path.open("ab") as log:
            self._watchdog = subprocess.Popen(
                watchdog.command_line(program.command, grace_seconds=program.grace_seconds),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(program.environment),
                cwd=program.working_directory,
                start_new_session=True,
            )
        # After the start, so a kill between the two leaves a watchdog without a file. It ends anyway, because its pipe is closed.
        program.pid_path.write_text(f"{self._watchdog.pid} {started_at(self._watchdog.pid)}\n")

    @property
    def exit_code(self) -> int | None:
        """None while the program runs."""
        return self._watchdog.poll()

    def raise_if_ended(self) -> None:
        if self.exit_code is not None:
            raise StackError(
                f"{self.program.name} ended with status {self.exit_code}; the end of {self.program.log_path}:\n{self.log_tail()}"
            )

    def report(self) -> str:
        return f"{self.program.name} is alive; the end of {self.program.log_path}:\n{self.log_tail()}"

    def log_tail(self) -> str:
        return log_tail(self.program.log_path)

    def ask_to_end(self) -> None:
        """Ask the program to end and return at once, so that several can end at the same time."""
        if self._watchdog.stdin is not None and not self._watchdog.stdin.closed:
            self._watchdog.stdin.close()

    def wait(self, timeout_seconds: float) -> int:
        """The exit status of a program that ends on its own."""
        try:
            return self._watchdog.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise errors.NotInTime(f"{self.program.name} still runs after {timeout_seconds:.0f} s\n{self.report()}") from None

    def end(self) -> None:
        """End the program and everything it started, and wait until they have ended."""
        self.ask_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(self.program.grace_seconds + watchdog.KILL_WAIT_SECONDS + 1.0)
        self.program.pid_path.unlink(missing_ok=True)


class Supervisor:
    """All running programs of one stack. Safe to use from several threads: once `end` has begun, no more programs start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ending = False
        self._started_again: dict[str, list[float]] = {}  # when, by the program's name
        self.processes: list[SupervisedProcess] = []

    def start(self, program: Program) -> SupervisedProcess:
        with self._lock:
            if self._ending:
                raise StackError(f"{program.name} is not started: the stack is being ended")
            process = SupervisedProcess(program)
            self.processes.append(process)
            return process

    def keep_up(self, say: waiting.Say) -> None:
        """Starts each program again that has ended; `StackError` once one has ended too often."""
        with self._lock:
            for index, ended in enumerate(self.processes):
                if ended.exit_code is None or self._ending:
                    continue
                name, now = ended.program.name, time.monotonic()
                starts = [at for at in self._started_again.get(name, ()) if now - at < STARTS_SECONDS]
                if len(starts) >= STARTS_MAX:
                    ended.raise_if_ended()
                self._started_again[name] = [*starts, now]
                say(f"{name} ended with status {ended.exit_code} and is started again; its log: {ended.program.log_path}")
                ended.end()
                self.processes[index] = SupervisedProcess(ended.program)

    def run(self, program: Program, timeout_seconds: float) -> None:
        """Run a program that ends on its own, to its end; anything but success is an error."""
        process = self.start(program)
        exit_code = process.wait(timeout_seconds)
        self.processes.remove(process)
        process.end()
        if exit_code != 0:
            process.raise_if_ended()

    def raise_if_ended(self) -> None:
        if self._ending:
            raise StackError("the stack is being ended")
        for process in list(self.processes):
            process.raise_if_ended()

    def report(self) -> str:
        return "\n".join(process.report() for process in list(self.processes))

    def end(self) -> None:
        """End all of them at the same time: the slowest decides how long it takes."""
        with self._lock:
            self._ending = True
        for process in self.processes:
            process.ask_to_end()
        for process in self.processes:
            process.end()
        self.processes.clear()


def end_leftovers(directory: Path, timeout_seconds: float = GRACE_SECONDS + 2 * watchdog.KILL_WAIT_SECONDS) -> list[str]:
    """End what a killed run left behind in `directory`, by its process id files; returns the names of what still ran.

    Usually nothing does: the watchdogs notice their owner's death and are at most still ending.
    """
    leftovers = [(path, pid) for path in sorted(directory.glob("*.pid")) if (pid := running_watchdog(path)) is not None]
    for _, pid in leftovers:
        watchdog.send(pid, signal.SIGTERM)
    for path, pid in leftovers:
        waiting.wait_until(
            lambda path=path: running_watchdog(path) is None,  # type: ignore[misc]
            what=f"the end of process {pid} of a former run ({path.stem})",
            timeout_seconds=timeout_seconds,
            remedy=f"to go on: kill -9 {pid}, and start again",
        )
    for path in directory.glob("*.pid"):
        path.unlink(missing_ok=True)
    return [path.stem for path, _ in leftovers]


def running_watchdog(pid_path: Path) -> int | None:
    """The process id in the file, if the same process that it was written for is still alive."""
    try:
        pid_text, start = pid_path.read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid_text) if started_at(int(pid_text)) == start else None


def started_at(pid: int) -> str | None:
    """When the process started, in the kernel's own ticks; None if there is no such process (or only its zombie)."""
    try:
        # After the last parenthesis, because a program's name may contain parentheses; the start is field 22, the twentieth
        # from there.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    return "unknown"  # a system without /proc: the process id alone must suffice


def log_tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"


class ReservedPorts:
    """Free ports of 127.0.0.1, kept from other programs until `release`; preferred ones are used in their places if free.

    A server may start half a minute after its port was chosen; until then another stack could choose the same port and be
    mistaken for ours. So each port stays bound, without listening, by a socket with SO_REUSEADDR: our server, which sets that too
    as servers do, can bind and listen, while a program that looks for any free port finds this one taken.
    """

    def __init__(self, count: int, preferred: Sequence[int] = ()) -> None:
        self._sockets: list[socket.socket] = []
        self.numbers: list[int] = []
        for port in [*preferred, *([0] * count)][:count]:
            sockets = reserve(port) or reserve(0)
            self._sockets += sockets
            self.numbers.append(int(sockets[0].getsockname()[1]))

    def __enter__(self) -> ReservedPorts:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        for reserved in self._sockets:
            reserved.close()


def reserve(port: int) -> list[socket.socket]:
    """Sockets that hold the wanted port (the bound one first), any port for 0; none if it is taken.

    A wanted port is bound with SO_REUSEADDR, despite connections of a former run that the kernel still remembers. Two
    reservations could then share it; a name in Linux's abstract namespace prevents that, and is released however we end.
    """
    bound = socket.socket()
    if port == 0:
        bound.bind(("127.0.0.1", 0))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now: before the bind it could share another's port
        return [bound]
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0logbus-port-{port}")
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
    except OSError:
        claim.close()
        bound.close()
        return []
    return [bound, claim]


def holder_of(port: int) -> str:
    """Which process listens on a port of this machine, as far as we may see: another user's process shows no name."""
    import psutil

    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid is not None:
                with contextlib.suppress(psutil.Error):
                    return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return "another program"


def accepts_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
