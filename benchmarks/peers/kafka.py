"""A real Apache Kafka on loopback: one node (KRaft, broker and controller in one JVM), free ports, the caller's directory.

    with ApacheKafka(tmp_path) as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap})

The JVM gets the flags of Kafka's own start script, so that comparisons with it are fair.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from benchmarks import processes
from benchmarks.peers.java import KAFKA_VERSION, JvmTools
from benchmarks.peers.server import Server
from benchmarks.processes import Missing

__all__ = ["ApacheKafka", "JvmTools", "Missing"]

_START_SCRIPT_FLAGS = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip


class ApacheKafka(Server):
    """One broker process; `settings` are server.properties lines that override ours."""

    name = f"Apache Kafka {KAFKA_VERSION}"

    def __init__(self, directory: Path, *, settings: Mapping[str, str] | None = None, heap: str = "1G") -> None:
        super().__init__(directory)
        self.tools = JvmTools.find()
        self.log_path = directory / "kafka.out"
        self._controller_port = processes.free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._settings = dict(settings or {})
        self._heap = heap

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def command(self) -> list[str]:
        flags = [f"-Xmx{self._heap}", f"-Xms{self._heap}", *_START_SCRIPT_FLAGS]
        return [self.tools.java, *flags, "-cp", f"{self.tools.jars}/*", "kafka.Kafka", str(self._properties)]

    def prepare(self) -> None:
        """Writes the properties and formats the directory, the first time."""
        super().prepare()
        if not self._properties.exists():
            self._properties.write_text("".join(f"{name}={value}\n" for name, value in self.server_properties().items()))
            self.tools.run("kafka.tools.StorageTool", "format", "-t", uuid4().hex[:22], "-c", str(self._properties))

    def server_properties(self) -> dict[str, str]:
        controller = f"127.0.0.1:{self._controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._settings,
        }
