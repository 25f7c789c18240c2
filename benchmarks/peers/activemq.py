"""A real ActiveMQ Classic on loopback, from Maven: OpenWire, KahaDB on disk, default settings, the heap of its start script."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.maven import Jars, java
from benchmarks.peers.server import Server

ACTIVEMQ_VERSION = "6.1.6"
ACTIVEMQ_JARS = Jars(
    name=f"activemq-{ACTIVEMQ_VERSION}",
    artifacts=(
        f"org.apache.activemq:activemq-broker:{ACTIVEMQ_VERSION}",
        f"org.apache.activemq:activemq-kahadb-store:{ACTIVEMQ_VERSION}",
        f"org.apache.activemq:activemq-console:{ACTIVEMQ_VERSION}",
        "org.slf4j:slf4j-simple:2.0.16",
    ),
)
_START_SCRIPT_FLAGS = ("-Xms64M", "-Xmx1G", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


class ActiveMq(Server):
    """One broker with a persistent store; without JMX, which would only cost CPU and memory."""

    name = f"ActiveMQ {ACTIVEMQ_VERSION}"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._java, self._class_path = java(), ACTIVEMQ_JARS.class_path()

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        settings = f"persistent=true&useJmx=false&brokerName=peer&dataDirectory={self.data}"
        home = [f"-Dactivemq.home={self.directory}", f"-Dactivemq.base={self.directory}"]
        main = ["org.apache.activemq.console.command.ShellCommand", "start", f"broker:({self.address})?{settings}"]
        return [self._java, *_START_SCRIPT_FLAGS, *home, "-cp", self._class_path, *main]
