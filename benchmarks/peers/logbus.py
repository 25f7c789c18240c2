"""Our broker as a process, with the same handles as its peer: address, CPU seconds, memory, and the ways it may end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks import processes

START_SECONDS_MAX = 30.0
PROJECT = Path(__file__).parents[2]


class LogbusBroker:
    """`python -m broker serve` on a free port of loopback. `settings` are Kafka-named overrides."""

    def __init__(self, directory: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.log_path = directory / "broker.out"
        self.port = processes.free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def cpu_seconds(self) -> float:
        return processes.cpu_seconds(self.pid)

    def rss_bytes(self) -> int:
        return processes.rss_bytes(self.pid)

    def command(self) -> list[str]:
        """The command line, for those who expect it to fail."""
        settings = {"listeners": f"PLAINTEXT://{self.bootstrap}", "log.dirs": str(self.data), **self._settings}
        overrides = [part for name, value in settings.items() for part in ("--override", f"{name}={value}")]
        return [sys.executable, "-m", "broker", "serve", *overrides]

    def start(self) -> None:
        """Start on the same port and directory as before; returns when it accepts connections."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._process = processes.start(self.command(), log_path=self.log_path, cwd=PROJECT)
        processes.wait_until_listening(self.port, self._process, log_path=self.log_path, deadline_seconds=START_SECONDS_MAX)

    def stop(self) -> int:
        """An orderly end; the exit status."""
        if self._process is None:
            return 0
        status = processes.stop(self._process)
        self._process = None
        return status

    def kill9(self) -> None:
        """The end that nothing can prepare for."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process
