"""Our broker as a process, with the same handles as its peers, and the ways it may end."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.server import Server


class LogbusBroker(Server):
    """`python -m broker serve` on a free port of loopback. `settings` are Kafka-named overrides."""

    name = "logbus"
    start_seconds_max = 30.0
    cwd = Path(__file__).parents[2]

    def __init__(self, directory: Path, *, settings: Mapping[str, str] | None = None, open_files: int | None = None) -> None:
        super().__init__(directory)
        self.log_path = directory / "broker.out"
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.settings = dict(settings or {})
        self._open_files = open_files  # a limit that the broker cannot lift; None leaves the machine's

    def command(self) -> list[str]:
        """The command line, for those who expect it to fail."""
        settings = {"listeners": f"PLAINTEXT://{self.bootstrap}", "log.dirs": str(self.data), **self.settings}
        overrides = [part for name, value in settings.items() for part in ("--override", f"{name}={value}")]
        limit = [] if self._open_files is None else ["prlimit", f"--nofile={self._open_files}:{self._open_files}"]
        return [*limit, sys.executable, "-m", "broker", "serve", *overrides]

    def kill9(self) -> None:
        """The end that nothing can prepare for."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()
