"""Computing a stream: its driver is submitted to Spark, watched, and ended.

`run` goes on until it is interrupted, `once` ends when everything is committed that the topic held when it began. Either takes
the stream over from a driver that runs already, which then can no longer commit.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import psutil

from logbus import errors, spark_submit, waiting

DRIVER_PREFIX = "LOGBUS_DRIVER "  # the driver's first line: its process id
PROGRAM = "stream.py"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def arguments(stream_name: str, run_id: str, *, once: bool) -> list[str]:
    """The program's."""
    return ["--stream", stream_name, *(["--once"] if once else []), "--run-id", run_id]


def program_path() -> str:
    return str(spark_submit.application_path().with_name(PROGRAM))


@dataclass(kw_only=True)
class StreamSubmission:
    """One run of the driver. `remote`: a server of Spark Connect, instead of a master."""

    warehouse_url: str = field(repr=False)
    client_config: Mapping[str, Any] = field(repr=False)
    say: waiting.Say
    master: str = spark_submit.LOCAL_MASTER
    remote: str | None = None
    run_id: str = "command line"
    driver_pid: int | None = field(default=None, init=False)
    is_asked_to_stop: bool = field(default=False, init=False)
    last_error: str = field(default="", init=False)

    def run(self, stream_name: str) -> None:
        """Until SIGTERM or Ctrl-C: the first lets the driver commit the epoch that it is at, the second ends it at once."""
        with self._passing_signals_on():
            self._submit(stream_name, once=False)

    def once(self, stream_name: str) -> None:
        self._submit(stream_name, once=True)

    def command(self, stream_name: str, *, once: bool) -> Sequence[str]:
        spark_submit.require_spark(self.remote)
        program = [program_path(), *arguments(stream_name, self.run_id, once=once)]
        is_remote = self.remote is not None
        return spark_submit.submission(program, f"logbus stream {stream_name}", master=self.master, is_remote=is_remote)

    def _submit(self, stream_name: str, *, once: bool) -> None:
        command = self.command(stream_name, once=once)
        environment = spark_submit.environment(self.warehouse_url, self.client_config)
        if self.remote is not None:
            environment[spark_submit.REMOTE_VARIABLE] = self.remote
        status = spark_submit.run_spark(command, {**spark_submit.launcher_environment(os.environ), **environment}, self._hear)
        if status != 0:
            reason = self.last_error or f"it ended with code {status}; its output above says why"
            raise errors.LoadFailed(f"the driver of stream {stream_name} has failed: {reason}")

    def _hear(self, line: str) -> None:
        if line.startswith(DRIVER_PREFIX):
            self.driver_pid = int(line.removeprefix(DRIVER_PREFIX))
        elif line.startswith("error: "):
            self.last_error = line.removeprefix("error: ")
        else:
            self.say(line)

    @contextmanager
    def _passing_signals_on(self) -> Iterator[None]:
        """To the driver alone: the JVM would end at once, in the middle of an epoch."""

        def pass_on(number: int, frame: FrameType | None) -> None:
            if self.driver_pid is None or self.is_asked_to_stop or not has_started(self.driver_pid):
                raise KeyboardInterrupt
            self.is_asked_to_stop = True
            self.say("stopping after this epoch; once more ends it at once")
            with suppress(ProcessLookupError):
                os.kill(self.driver_pid, signal.SIGTERM)

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = {number: signal.signal(number, pass_on) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)


def has_started(pid: int) -> bool:
    """Whether we have started the process: a cluster may run the driver on another machine, whose numbers mean others here."""
    with suppress(psutil.Error):
        return os.getpid() in (parent.pid for parent in psutil.Process(pid).parents())
    return False
