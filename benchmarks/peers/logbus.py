"""Our broker as a process, with the same interface as its peers, and the ways it can end."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from logbus.cli.processes import ReservedPorts
from logbus.waiting import PATIENCE_SECONDS

from benchmarks import processes
from benchmarks.peers.server import Server

_API_VERSIONS = b"\0\0\0\x0a" + b"\0\x12" + b"\0\0" + b"\0\0\0\0" + b"\xff\xff"  # version 0, no client id


class LogbusBroker(Server):
    """`python -m logbus_broker serve` on a loopback port that stays reserved while it is down: otherwise the kernel could give
    the port to a client that keeps reconnecting, for its own end of a connection. `settings` are overrides by Kafka's names."""

    name = "logbus"
    cwd = Path(__file__).parents[2]

    def __init__(self, directory: Path, *, settings: Mapping[str, str] | None = None, open_files: int | None = None) -> None:
        super().__init__(directory)
        self._reserved = ReservedPorts(1)
        (self.port,) = self._reserved.numbers
        self.log_path = directory / "broker.out"
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.settings = dict(settings or {})
        self._open_files = open_files  # a limit that the broker cannot raise; None keeps the machine's

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        self.release()

    def release(self) -> None:
        """Releases its port: any program may use it from now on."""
        self._reserved.release()

    def command(self) -> list[str]:
        """The command line, for tests that expect it to fail."""
        settings = {"listeners": f"PLAINTEXT://{self.bootstrap}", "log.dirs": str(self.data), **self.settings}
        overrides = [part for name, value in settings.items() for part in ("--override", f"{name}={value}")]
        limit = [] if self._open_files is None else ["prlimit", f"--nofile={self._open_files}:{self._open_files}"]
        return [*limit, sys.executable, "-m", "logbus_broker", "serve", *overrides]

    def start(self) -> None:
        """Starts on the same port and directory as before; returns once it answers: the port is bound earlier, before the data
        directory is opened and the signals are handled."""
        self.prepare()
        self.launch()
        self.wait_until_answering()

    def wait_until_answering(self) -> None:
        """Returns once it answers a request; StartFailed if it ends first. The port must be bound, or be bound soon."""
        processes.wait_until_listening(self.port, self._running(), log_path=self.log_path)
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS) as asking:
            try:
                asking.sendall(_API_VERSIONS)
                answered = asking.recv(4) != b""
            except ConnectionError:
                answered = False
        if not answered:
            raise processes.StartFailed(f"the broker ended:\n{processes.tail(self.log_path)}")

    def restart(self) -> None:
        self.stop()
        self.start()
