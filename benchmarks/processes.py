"""Child processes under measurement: start, free ports, CPU and memory from /proc, an orderly end.

CPU seconds are user plus system time (fields 14 to 17 of /proc/PID/stat) of the process, of its living descendants and of the
children they have waited for: what the work cost the machine, which on a shared machine means more than how long it took.
A child dies with the thread that started it (PR_SET_PDEATHSIG), so an interrupted run leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from logbus.cli.processes import ReservedPorts
from logbus.errors import NotInTime
from logbus.waiting import PATIENCE_SECONDS, wait_until

POLL_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1
KTHREADD = "2"  # the parent of all kernel threads
_libc = ctypes.CDLL(None)
_reserved: list[ReservedPorts] = []


class Missing(Exception):
    """A program that this machine lacks; the text is the reason that a caller prints, or skips with."""


class StartFailed(Exception):
    """A process did not become ready; the text holds the tail of its output."""


def free_port() -> int:
    """A TCP port of loopback that no other program is given while this process lives: a server may bind it much later."""
    _reserved.append(ReservedPorts(1))
    return _reserved[-1].numbers[0]


def start(
    command: Sequence[str],
    *,
    log_path: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a child in its own session with its output in `log_path`; it dies with its starter."""
    with log_path.open("ab") as log:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
            preexec_fn=_die_with_starter,  # one system call, safe between fork and exec
        )


def stop(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, a grace period, SIGKILL; returns the exit status. Calling it again is harmless."""
    if process.poll() is None:
        process.terminate()
    try:
        return process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def pause(pid: int) -> None:
    """SIGSTOP. Returns when it has stopped: the signal reaches the threads of a process one after the other, and until then it
    may still answer."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(state == "T" for state in _thread_states(pid)), what=f"process {pid} to stop")


def _thread_states(pid: int) -> list[str]:
    return [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]


def wait_until_listening(port: int, process: subprocess.Popen[bytes], *, log_path: Path) -> None:
    """Returns once the port accepts connections; StartFailed with the log's tail if the process ends or time is up."""

    def accepts() -> bool:
        if process.poll() is not None:
            raise StartFailed(f"{_program(process)} ended with status {process.returncode}:\n{tail(log_path)}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(accepts, what=f"{_program(process)} on port {port}", poll_seconds=POLL_SECONDS)
    except NotInTime as late:
        raise StartFailed(f"{late}:\n{tail(log_path)}") from None


def tail(path: Path, lines: int = 20) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def run(
    command: Sequence[str],
    *,
    seconds_max: float,
    stdin: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end and captures its output. Like every child here it dies with its starter."""
    return subprocess.run(
        list(command),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
        cwd=cwd,
        env=None if env is None else dict(env),
        preexec_fn=_die_with_starter,
    )


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process and its descendants."""
    stats = _stats()
    ticks = sum(int(one) for member in _tree(pid, stats) for one in stats[member][11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def scheduled_seconds(pid: int) -> float:
    """How long the living threads of one process have run: precise to nanoseconds, while `cpu_seconds` has ticks of 10 ms."""
    nanoseconds = 0
    for task in Path("/proc", str(pid), "task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def kernel_cpu_seconds() -> float:
    """Seconds of the kernel's own threads, of the whole machine: they write back what no process has flushed."""
    ticks = sum(int(one) for fields in _stats().values() if fields[1] == KTHREADD for one in fields[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants."""
    stats = _stats()
    return sum(int(stats[member][21]) for member in _tree(pid, stats)) * os.sysconf("SC_PAGE_SIZE")


def disk_bytes(directory: Path) -> int:
    """The space that a directory's files occupy: sparse files count by their blocks."""
    return sum(_blocks(Path(folder, name)) for folder, _, names in os.walk(directory) for name in names) * 512


def _blocks(path: Path) -> int:
    try:
        return path.lstat().st_blocks
    except FileNotFoundError:  # just deleted
        return 0


def _stats() -> dict[int, list[str]]:
    """The fields of /proc/PID/stat after the program's name, for every process."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):  # just ended
                continue
    return found


def _tree(pid: int, stats: Mapping[int, Sequence[str]]) -> list[int]:
    """A process and its living descendants; ProcessLookupError if it is gone."""
    if pid not in stats:
        raise ProcessLookupError(f"process {pid} has ended")
    members, grown = [pid], 0
    while grown < len(members):
        members += [child for child, fields in stats.items() if int(fields[1]) == members[grown]]
        grown += 1
    return members


def _die_with_starter() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _program(process: subprocess.Popen[bytes]) -> str:
    return Path(process.args[0]).name if isinstance(process.args, list) else str(process.args)
