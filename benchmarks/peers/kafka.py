"""A real Apache Kafka on loopback: one node (KRaft, broker and controller in one JVM), free ports, the caller's directory.

    with ApacheKafka(tmp_path) as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap})

The JVM gets the flags of Kafka's own start script, so that comparisons with it are fair; tests, which run it for seconds, pass
`SMALL_FLAGS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from benchmarks import processes
from benchmarks.peers.java import FAST_START, KAFKA_VERSION, JvmTools
from benchmarks.peers.server import Server
from benchmarks.processes import Missing

__all__ = ["ApacheKafka", "JvmTools", "Missing"]

START_SCRIPT_FLAGS = (
    "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip
SMALL_FLAGS = ("-Xmx512m", "-XX:+UseSerialGC", *FAST_START, *START_SCRIPT_FLAGS[-2:])


class ApacheKafka(Server):
    """One broker process; `settings` are server.properties lines that override ours."""

    name = f"Apache Kafka {KAFKA_VERSION}"

    def __init__(
        self, directory: Path, *, settings: Mapping[str, str] | None = None, flags: Sequence[str] = START_SCRIPT_FLAGS
    ) -> None:
        super().__init__(directory)
        self.tools = JvmTools.find()
        self.log_path = directory / "kafka.out"
        self._controller_port = processes.free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._settings = dict(settings or {})
        self._flags = flags

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def command(self) -> list[str]:
        java, jars = self.tools.java, f"{self.tools.jars}/*"
        return [java, *self._flags, "-cp", jars, "kafka.Kafka", str(self._properties)]

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
