"""What all measured servers have in common: a process, a port on loopback, a directory, and what they cost."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from benchmarks import processes


class Server(ABC):
    """One server on a free port of 127.0.0.1. Everything it writes is in `directory`; its data in `data`."""

    name: str
    cwd: ClassVar[Path | None] = None

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.log_path = directory / "server.out"
        self.port = processes.free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @abstractmethod
    def command(self) -> list[str]:
        """The command line of the process."""

    def environment(self) -> Mapping[str, str] | None:
        """Its environment; None for ours."""
        return None

    def prepare(self) -> None:
        """Writes what must be on disk before the first start; harmless before later ones."""
        self.directory.mkdir(parents=True, exist_ok=True)

    def launch(self) -> None:
        """Starts the process and returns at once; the directory must be prepared."""
        self._process = processes.start(self.command(), log_path=self.log_path, env=self.environment(), cwd=self.cwd)

    def start(self) -> None:
        """Starts on the same port and directory as before; returns once it accepts connections."""
        self.prepare()
        self.launch()
        processes.wait_until_listening(self.port, self._running(), log_path=self.log_path)

    def stop(self) -> int:
        """Ends it in an orderly way; returns the exit status."""
        if self._process is None:
            return 0
        status = processes.stop(self._process)
        self._process = None
        return status

    def kill9(self) -> None:
        """Ends it without a chance to prepare."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

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

    def disk_bytes(self, part: str = ".") -> int:
        return processes.disk_bytes(self.data / part)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process
