"""Three brokers and their ZooKeeper, ours and Apache Kafka's, measured as one server: it costs what its brokers cost.

Each cluster has its own ZooKeeper, from the same jars (those that Spark includes). It is not counted, because it is the same for
both. Apache Kafka is 3.9.1, the last release that runs on ZooKeeper.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from logbus.cli.local_brokers import ZooKeeperServer, zookeeper_program
from logbus.cli.processes import StackError
from logbus.waiting import wait_until

from benchmarks.costs.wire import Connection, Refused, metadata, metadata_frame
from benchmarks.peers.java import JvmTools
from benchmarks.peers.kafka import ApacheKafka
from benchmarks.peers.logbus import LogbusBroker
from benchmarks.peers.maven import Jars, java
from benchmarks.peers.server import Server
from benchmarks.processes import Missing

BROKERS = 3
LAST_KAFKA_WITH_ZOOKEEPER = "3.9.1"
KAFKA_JARS = Jars(
    name=f"kafka-{LAST_KAFKA_WITH_ZOOKEEPER}",
    artifacts=(f"org.apache.kafka:kafka_2.13:{LAST_KAFKA_WITH_ZOOKEEPER}", "org.slf4j:slf4j-simple:1.7.36"),
)
# For both: acks=all means two of three.
REPLICATED = {
    "default.replication.factor": str(BROKERS),
    "offsets.topic.replication.factor": str(BROKERS),
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
}


class ZooKeeper(Server):
    """One server on loopback; Missing if this machine has no Java or no pyspark."""

    name = "ZooKeeper"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._command: Sequence[str] = ()

    @property
    def connect(self) -> str:
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        super().prepare()
        server = ZooKeeperServer(directory=self.directory, port=self.port)
        try:
            program = zookeeper_program(server, environment=os.environ, run_directory=self.directory)
        except StackError as error:
            raise Missing(str(error)) from None
        self._command = program.command

    def command(self) -> list[str]:
        return list(self._command)


class ApacheKafkaOnZooKeeper(ApacheKafka):
    """One broker of a cluster, as Kafka ran for its first ten years."""

    name = f"Apache Kafka {LAST_KAFKA_WITH_ZOOKEEPER}"

    def __init__(self, directory: Path, *, settings: Mapping[str, str]) -> None:
        super().__init__(directory, settings=settings)
        self.tools = JvmTools(java=java(), jars=KAFKA_JARS.folder())

    def prepare(self) -> None:
        """Writes the properties; there is nothing to format."""
        Server.prepare(self)
        self._properties.write_text(self._server_properties())

    def _server_properties(self) -> str:
        lines = {"listeners": f"PLAINTEXT://{self.bootstrap}", "log.dirs": str(self.data), **self._settings}
        return "".join(f"{name}={value}\n" for name, value in lines.items())


class BrokerCluster:
    """The interface of a `Server`, for all brokers of a cluster together."""

    def __init__(self, zookeeper: ZooKeeper, brokers: Sequence[LogbusBroker | ApacheKafka]) -> None:
        self.zookeeper = zookeeper
        self.brokers = brokers
        self._stack = ExitStack()

    @classmethod
    def of(
        cls, kind: type[LogbusBroker | ApacheKafkaOnZooKeeper], directory: Path, *, settings: Mapping[str, str] | None = None
    ) -> BrokerCluster:
        """Brokers with ids from 1. `settings` are theirs, by Kafka's names."""
        zookeeper = ZooKeeper(directory / "zookeeper")
        common = {"zookeeper.connect": zookeeper.connect, **REPLICATED, **(settings or {})}
        numbers = map(str, range(1, BROKERS + 1))
        return cls(zookeeper, [kind(directory / number, settings={"broker.id": number, **common}) for number in numbers])

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.zookeeper)
            for broker in self.brokers:
                stack.enter_context(broker)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    @property
    def name(self) -> str:
        return f"{len(self.brokers)} brokers of {self.brokers[0].name}"

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def log_path(self) -> Path:
        """The log of a broker that has ended, if any, otherwise of the first one."""
        return next((broker.log_path for broker in self.brokers if not broker.alive), self.brokers[0].log_path)

    @property
    def alive(self) -> bool:
        return all(broker.alive for broker in self.brokers)

    def leader_of(self, topic: str) -> LogbusBroker | ApacheKafka:
        """The broker that leads its first partition."""
        (row,) = _described(self.brokers[0], topic).topics
        leader = next(partition.leader_id for partition in row.partitions if partition.partition_index == 0)
        return self.brokers[leader - 1]

    def wait_until_whole(self, *topics: str) -> None:
        """Waits until each broker knows all of them and these topics, and of every partition that all its replicas are in
        sync."""
        waited_for = partial(_sees_all, topics=frozenset(topics))
        wait_until(lambda: all(map(waited_for, self.brokers)), what="replicas in sync", not_yet=(Refused, OSError))

    def cpu_seconds_each(self) -> list[float]:
        return [broker.cpu_seconds() for broker in self.brokers]

    def cpu_seconds(self) -> float:
        return sum(self.cpu_seconds_each())

    def rss_bytes(self) -> int:
        return sum(broker.rss_bytes() for broker in self.brokers)

    def disk_bytes(self, part: str = ".") -> int:
        return sum(broker.disk_bytes(part) for broker in self.brokers)


def _described(broker: Server, *topics: str) -> Any:
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        return metadata(connection.ask(metadata_frame(*topics)))


def _sees_all(broker: Server, *, topics: frozenset[str]) -> bool:
    answer = _described(broker)
    if not topics <= {topic.name for topic in answer.topics}:
        return False
    partitions = [partition for topic in answer.topics for partition in topic.partitions]
    return len(answer.brokers) == BROKERS and all(
        partition.leader_id >= 0 and len(partition.isr_nodes) == len(partition.replica_nodes) for partition in partitions
    )
