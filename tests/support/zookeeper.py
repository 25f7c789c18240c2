"""A real ZooKeeper for tests: one server, or an ensemble whose servers can be killed, stopped and started again.

In a conftest.py: `from tests.support.zookeeper import zookeeper  # noqa: F401`
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from logbus import watchdog
from logbus.cli.local_brokers import ZooKeeperServer, mode, zookeeper_program
from logbus.cli.processes import ReservedPorts, SupervisedProcess, running_watchdog
from logbus.waiting import wait_until

from benchmarks import processes
from benchmarks.peers.authority import Authority

TICK_MS = 200
MEMORY = Path("/dev/shm")  # a stalled disk would delay all sessions
# A test does not need its data to survive a crash of the machine, nor 64 MiB for each log file.
SETTINGS = {"forceSync": "no", "preAllocSize": "1024", "maxSessionTimeout": "120000"}


class RunningServer:
    """One server process; when it is started again, it has what it had stored."""

    def __init__(
        self, server: ZooKeeperServer, ensemble: Sequence[ZooKeeperServer], tick_ms: int, settings: Mapping[str, str]
    ) -> None:
        self.port = server.port
        self._data = server.directory / "data"
        self._program = zookeeper_program(
            server, environment=os.environ, run_directory=server.directory, ensemble=ensemble, tick_ms=tick_ms, settings=settings
        )
        self._process: SupervisedProcess | None = None

    def start(self) -> None:
        self._process = SupervisedProcess(self._program)

    def wait_until_serving(self) -> None:
        assert self._process is not None
        wait_until(lambda: mode(self.port) is not None, what="ZooKeeper", processes=[self._process])

    def kill(self) -> None:
        """kill -9. Its data stays."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.end()
            self._process = None

    def wipe(self) -> None:
        """Delete all its data."""
        shutil.rmtree(self._data)
        self._data.mkdir()

    def back_up(self, place: Path) -> None:
        """Copy its data, while it is dead."""
        shutil.copytree(self._data, place)

    def restore(self, place: Path) -> None:
        """Have the data of a copy instead of its own, while it is dead."""
        shutil.rmtree(self._data)
        shutil.copytree(place, self._data)

    def ensure_serving(self) -> None:
        """Undo a kill or a pause, and wait until it serves."""
        if self._process is None:
            self.start()
        else:
            self.resume()
        self.wait_until_serving()

    def pause(self) -> None:
        """SIGSTOP."""
        for pid in self._pids():
            processes.pause(pid)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _pids(self) -> list[int]:
        watchdog_pid = running_watchdog(self._program.pid_path)
        return [] if watchdog_pid is None else watchdog.descendants(watchdog_pid)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids():
            watchdog.send(pid, number)


class RunningZooKeeper:
    """`servers` servers; a context manager. With an authority, the only server also listens at `tls_port`, for clients whose
    certificate the authority has signed."""

    def __init__(self, servers: int = 1, tick_ms: int = TICK_MS, authority: Authority | None = None) -> None:
        self._directory = tempfile.TemporaryDirectory(
            prefix="logbus-zookeeper-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None, ignore_cleanup_errors=True
        )
        self._ports = ReservedPorts(3 * servers + 1)
        numbers = iter(self._ports.numbers)
        each = [
            ZooKeeperServer(
                directory=Path(self._directory.name) / str(number),
                server_id=number,
                port=next(numbers),
                quorum_port=next(numbers),
                election_port=next(numbers),
            )
            for number in range(1, servers + 1)
        ]
        self.authority = authority
        self.tls_port = next(numbers)
        settings = SETTINGS
        if authority is not None:
            settings = SETTINGS | {
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "secureClientPort": str(self.tls_port),
                "ssl.keyStore.location": str(authority.issue("zookeeper")),
                "ssl.trustStore.location": str(authority.certificate),
            }
        self.servers = [RunningServer(server, each if servers > 1 else (), tick_ms, settings) for server in each]

    def __enter__(self) -> Self:
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_until_serving()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for server in self.servers:
            server.kill()
        self._ports.release()
        self._directory.cleanup()

    def leader(self) -> RunningServer:
        """The leader of the ensemble."""
        return next(server for server in self.servers if mode(server.port) == "leader")

    @property
    def port(self) -> int:
        """The port of the only server."""
        (server,) = self.servers
        return server.port

    @property
    def connect(self) -> str:
        """All servers, in the form of `zookeeper.connect`."""
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[RunningZooKeeper]:
    """One server for all tests that do not disturb it, each in its own chroot."""
    with RunningZooKeeper() as running:
        yield running
