"""The brokers of a local stack: one, or several that share a ZooKeeper.

    HOME/broker       the log of a single one;  HOME/zookeeper, HOME/broker-1, HOME/broker-2 ..   those of a cluster

What is acknowledged survives a power failure: all of them wait for the disk. In a cluster a topic has three replicas, or as many
as there are brokers, and accepts writes while two of them are in sync.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from logbus.local.processes import Program, SupervisedProcess, Supervisor, accepts_connections
from logbus.local.zookeeper import HERE, ZooKeeperServer, mode, zookeeper_program
from logbus.waiting import Say, say_nothing, wait_until

ANSWER_SECONDS_MAX = 5.0  # then it is asked again
REPLICAS = 3

# A local cluster ends as a whole: no broker remains to take over, and programs are killed after some ten seconds.
HAND_OVER_MS_MAX = 3_000


class LocalBrokers:
    """`count` brokers; `ports` are theirs, followed by ZooKeeper's if there are several."""

    def __init__(
        self, home: Path, *, count: int, environment: Mapping[str, str], ports: Sequence[int], say: Say = say_nothing
    ) -> None:
        self.home = home
        self._say = say
        self._run_directory = home / "run"
        self._environment = environment
        self._ports = ports[:count]
        self._zookeeper_port = ports[count] if count > 1 else None
        self._brokers = Supervisor()
        self._zookeeper = Supervisor()

    @staticmethod
    def ports_needed(count: int) -> int:
        """How many ports `count` brokers need."""
        return count if count == 1 else count + 1

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HERE}:{port}" for port in self._ports)

    @property
    def zookeeper_connect(self) -> str | None:
        """None for one broker, which needs none."""
        return None if self._zookeeper_port is None else f"{HERE}:{self._zookeeper_port}"

    def start(self) -> None:
        """Starts all of them; returns when each accepts connections and lists all the others."""
        if self._zookeeper_port is not None:
            self._start_zookeeper(self._zookeeper_port)
        started = [self._brokers.start(program) for program in self.programs()]
        for port, process in zip(self._ports, started, strict=True):
            self._wait_for_port(port, process)
        if len(started) > 1:  # until then a topic of three replicas would be refused
            for port in self._ports:
                self._wait_for_brokers(port)

    def programs(self) -> list[Program]:
        """How each broker is run."""
        if self.zookeeper_connect is None:
            return [self._program("broker", self._ports[0], {})]
        return [
            self._program(f"broker-{number}", port, self._of_cluster(number)) for number, port in enumerate(self._ports, start=1)
        ]

    def raise_if_ended(self) -> None:
        self._brokers.raise_if_ended()
        self._zookeeper.raise_if_ended()

    def report(self) -> str:
        return "\n".join(filter(None, [self._zookeeper.report(), self._brokers.report()]))

    def stop(self) -> None:
        """Ends the brokers first: they deregister from ZooKeeper."""
        self._brokers.end()
        self._zookeeper.end()

    def _start_zookeeper(self, port: int) -> None:
        server = ZooKeeperServer(directory=self.home / "zookeeper", port=port)
        program = zookeeper_program(server, environment=self._environment, run_directory=self._run_directory)
        process = self._zookeeper.start(program)
        wait_until(lambda: mode(port) is not None, what=f"ZooKeeper at {HERE}:{port}", processes=[process], say=self._say)

    def _wait_for_port(self, port: int, process: SupervisedProcess) -> None:
        """A log of many segments is checked at start, which takes a while."""
        what = f"{process.program.name} at {HERE}:{port}"
        wait_until(lambda: accepts_connections(port), what=what, processes=[process], say=self._say)

    def _wait_for_brokers(self, port: int) -> None:
        """Waits until the broker at the port lists all of them."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": f"{HERE}:{port}", "log_level": 0})
        wait_until(
            lambda: len(client.list_topics(timeout=ANSWER_SECONDS_MAX).brokers) == len(self._ports),
            what=f"a cluster of {len(self._ports)} brokers at {HERE}:{port}",
            not_yet=KafkaException,
            processes=[self],
            say=self._say,
        )

    def _of_cluster(self, number: int) -> Mapping[str, str]:
        replicas = min(REPLICAS, len(self._ports))
        return {
            "broker.id": str(number),
            "zookeeper.connect": f"{self.zookeeper_connect}",
            "default.replication.factor": str(replicas),
            "offsets.topic.replication.factor": str(replicas),
            "min.insync.replicas": "2",
            "logbus.controlled.shutdown.max.ms": str(HAND_OVER_MS_MAX),
        }

    def _program(self, name: str, port: int, settings: Mapping[str, str]) -> Program:
        overrides = {
            "listeners": f"PLAINTEXT://{HERE}:{port}",
            "log.dirs": str(self.home / name),
            "logbus.acks.all.waits.for.flush": "true",
            **settings,
        }
        options = [word for key, value in overrides.items() for word in ("--override", f"{key}={value}")]
        return Program(
            name=name,
            command=[sys.executable, "-m", "broker", "serve", *options],
            environment=self._environment,
            directory=self._run_directory,
            working_directory=self.home,
        )
