"""A Spark driver that stays between loads, so that only the first of them waits for Spark to start.

It is the program of every load, `load_windows.py`, submitted with `--stay PATH`: it answers at a socket there, one load after the
other, of any pipeline, and ends once nothing has come for `idle_seconds`. A request is a line: the arguments that the program
would have got. The answer is lines, too: `ACCEPTED`, what the program would print, and `ENDED` with the status of its exit.

What a load may do is decided by its attempts, as ever: the driver only verifies them, and whoever is no longer current is refused
at the commit. So a driver that was left alone, or asked twice, can do no harm, and one that ends costs a start. It ends at once
if the connection of the load that it is doing is closed, since then nobody waits for it any more; and after a load that failed,
because what is broken may be its Spark.

Sockets lie in a directory that only their user can enter. Their name is made of all that a driver was started with, credentials
included, and of our own code: a load never gets to a driver with other rights, or of another version.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from logbus import errors, spark_submit, waiting

ACCEPTED, ENDED = "LOGBUS_ACCEPTED", "LOGBUS_ENDED"
LOG_TAIL_LINES = 20
KEY_CHARACTERS = 16
PATH_BYTES_MAX = 90  # Linux takes 107, macOS 103; the driver's listener has ten more at first

Line = Callable[[str], None]


@dataclass(kw_only=True)
class ResidentDriver:
    """The driver for loads that are submitted by this command and environment. `command` makes spark-submit's command of the
    program's own arguments."""

    command: Callable[[Sequence[str]], Sequence[str]]
    environment: Mapping[str, str]
    idle_seconds: float
    directory: Path = field(default_factory=lambda: private_directory())
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)  # if this object has started it
    _connection: socket.socket | None = field(default=None, init=False)

    @cached_property
    def path(self) -> Path:
        """Of its socket; its lock and its log lie beside it."""
        started_with = [list(self.command([])), sorted(self.environment.items()), self.idle_seconds, newest_code()]
        key = hashlib.sha256(json.dumps(started_with).encode()).hexdigest()[:KEY_CHARACTERS]
        path = self.directory / f"{key}.sock"
        if len(os.fsencode(path)) > PATH_BYTES_MAX:
            raise errors.UserError(
                f"a socket's path may have {PATH_BYTES_MAX} bytes, and {path} has more: set TMPDIR to a place with a shorter name"
            )
        return path

    def load(self, arguments: Sequence[str], say: Line) -> bool:
        """Has these attempts loaded, by the driver that is there or by a new one; False if that is doing another load right now.
        `LoadFailed` if the driver reports a failure, or ends. What Spark or a parser has printed meanwhile is said at the end."""
        with self._turn() as is_ours:
            if not is_ours:
                return False
            printed_before = self._log_path.stat().st_size if self._log_path.exists() else 0
            # In a variable of the object, too: `abandon` comes from a signal's handler.
            self._connection = self._ask(arguments)
            if self._connection is None:
                printed_before = 0
                self._connection = self._ask_when_started(arguments, say)
            try:
                with self._connection.makefile(encoding="utf-8", errors="replace") as lines:
                    self._follow(lines, say)
            finally:
                self._connection.close()
                self._connection = None
                self._say_printed(printed_before, say)
        return True

    def start(self) -> None:
        """Submits the program before there is anything to load. It belongs to a session of its own, since it may outlive us, and
        has none of our streams."""
        stay = ["--stay", str(self.path), "--idle-seconds", f"{self.idle_seconds:g}"]
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(stay),
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self, say: Line) -> None:
        """Ends the driver, if this object has started it."""
        if self._process is not None:
            spark_submit.end_group(self._process, say)

    def abandon(self) -> None:
        """Ends the load of this object, and with it the driver that does it. It may then still write to the attempts' own tables
        for a moment; end the attempts before or after."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        elif self._process is not None and self._process.poll() is None:  # it has taken nothing yet
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def _log_path(self) -> Path:
        return self.path.with_suffix(".log")

    @contextlib.contextmanager
    def _turn(self) -> Iterator[bool]:
        """Whether it is ours. The lock ends with this process, however that ends."""
        with self.path.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _ask(self, arguments: Sequence[str]) -> socket.socket | None:
        """The connection, if a driver is there and has taken the request: one that was about to end has not."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self.path))
            connection.sendall(json.dumps(list(arguments)).encode() + b"\n")
            if read_line(connection) == ACCEPTED:
                return connection
        except OSError:
            pass
        connection.close()
        return None

    def _ask_when_started(self, arguments: Sequence[str], say: Line) -> socket.socket:
        is_first = self._process is not None  # it was started before there was anything to load
        if not is_first:
            self.start()

        def asked() -> socket.socket | None:
            nonlocal is_first
            assert self._process is not None, "it was started"
            if (status := self._process.poll()) is None:
                return self._ask(arguments)
            if not is_first:
                raise errors.LoadFailed(
                    f"the Spark application ended with code {status} before it was there; {tail(self._log_path)}"
                )
            is_first = False  # it has ended since: nothing came for too long, or a load failed
            self.start()
            return None

        try:
            return waiting.wait_until(asked, what=f"the Spark driver (its log: {self._log_path})", poll_seconds=0.05, say=say)
        except BaseException:
            self.abandon()
            raise

    def _follow(self, lines: Iterator[str], say: Line) -> None:
        errors_said: list[str] = []
        for line in (each.rstrip("\n") for each in lines):
            if line.startswith(ENDED):
                if (status := int(line.removeprefix(ENDED))) != 0:
                    why = "; ".join(errors_said) or "its log above says why"
                    raise errors.LoadFailed(f"the Spark application failed with code {status}: {why}")
                return
            if line.startswith("error: "):
                errors_said.append(line.removeprefix("error: "))
            if not line.startswith(spark_submit.RESULT_PREFIX):
                say(line)
        raise errors.LoadFailed(f"the Spark driver ended in the middle of the load; {tail(self._log_path)}")

    def _say_printed(self, begin: int, say: Line) -> None:
        with contextlib.suppress(OSError), self._log_path.open("rb") as log:  # somebody may have tidied up
            log.seek(begin)
            for printed in log:
                line = printed.decode(errors="replace").rstrip()
                if not line.startswith(spark_submit.OF_JAVA):
                    say(line)


def private_directory() -> Path:
    """Where sockets lie: nobody else can enter it, and so nobody else can ask a driver, or pass for one."""
    directory = Path(tempfile.gettempdir()) / f"logbus-drivers-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise errors.UserError(
            f"{directory} has to be a directory that only user {os.getuid()} can enter: remove it, or set TMPDIR to another place"
        )
    return directory


def newest_code() -> float:
    """When our own code was changed last."""
    roots = (Path(__file__).parent, spark_submit.application_path().parent)
    return max(path.stat().st_mtime for root in roots for path in root.rglob("*.py"))


def read_line(connection: socket.socket) -> str:
    """Byte by byte, so that what follows is left for others; empty at the end."""
    line = b""
    while (byte := connection.recv(1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def tail(log_path: Path) -> str:
    lines = log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:] if log_path.exists() else []
    return "\n".join([f"the end of {log_path}:", *lines])
