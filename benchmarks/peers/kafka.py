"""A real Apache Kafka on loopback: one node (KRaft, broker and controller in one JVM), free ports, a directory of the caller's.

    with ApacheKafka(tmp_path) as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap})

The JVM gets the flags of Kafka's own start script, so that measurements beside it are fair.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from benchmarks import processes
from benchmarks.peers.java import JvmTools
from benchmarks.processes import Missing

__all__ = ["ApacheKafka", "JvmTools", "Missing"]

START_SECONDS_MAX = 90.0
_START_SCRIPT_FLAGS = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip


class ApacheKafka:
    """One broker process; `settings` are server.properties lines that win over ours."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: dict[str, str] | None = None,
        heap: str = "1G",
    ) -> None:
        self.tools = JvmTools.find()
        self.directory = directory
        self.port, self._controller_port = processes.free_port(), processes.free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._settings = settings or {}
        self._heap = heap
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("Apache Kafka is not running")
        return self._process.pid

    def cpu_seconds(self) -> float:
        return processes.cpu_seconds(self.pid)

    def rss_bytes(self) -> int:
        return processes.rss_bytes(self.pid)

    def start(self) -> None:
        """Format the directory the first time, start, return when it accepts connections and serves."""
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        if not properties.exists():
            properties.write_text(self._server_properties())
            self.tools.run(
                "kafka.tools.StorageTool",
                "format",
                "-t",
                uuid4().hex[:22],
                "-c",
                str(properties),
            )
        log_path = self.directory / "kafka.out"
        flags = [f"-Xmx{self._heap}", f"-Xms{self._heap}", *_START_SCRIPT_FLAGS]
        command = [
            self.tools.java,
            *flags,
            "-cp",
            f"{self.tools.jars}/*",
            "kafka.Kafka",
            str(properties),
        ]
        self._process = processes.start(command, log_path=log_path)
        processes.wait_until_listening(
            self.port,
            self._process,
            log_path=log_path,
            deadline_seconds=START_SECONDS_MAX,
        )

    def stop(self) -> None:
        if self._process is not None:
            processes.stop(self._process)
            self._process = None

    def _server_properties(self) -> str:
        address, controller = (
            f"127.0.0.1:{self.port}",
            f"127.0.0.1:{self._controller_port}",
        )
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._settings,
        }
        return "".join(f"{name}={value}\n" for name, value in lines.items())
