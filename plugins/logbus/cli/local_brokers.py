"""The brokers of a local stack: one, or several that share a ZooKeeper.

    HOME/broker       the log of a single one;  HOME/zookeeper, HOME/broker-1, HOME/broker-2 ..   those of a cluster
    HOME/security     certificates and users, if they are secured: see secure_home.py

What is acknowledged survives a power failure: all of them wait for the disk. In a cluster a topic has three replicas, or as many
as there are brokers, and accepts writes while two of them are in sync.

ZooKeeper runs from the jars that Spark includes, with nothing to download. One `ZooKeeperServer` is a directory and three ports;
several that are configured with each other form an ensemble. It is the real server, in the version that Spark itself uses; only
its limits are chosen for a machine that does other things too.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from logbus import errors, spark_submit, waiting
from logbus.cli import secure_home
from logbus.cli.processes import Program, StackError, SupervisedProcess, Supervisor, accepts_connections
from logbus.spark_submit import INSTALL, program

ANSWER_SECONDS_MAX = 5.0  # then it is asked again
REPLICAS = 3

# A local cluster ends as a whole: no broker remains to take over, and programs are killed after some ten seconds.
HAND_OVER_MS_MAX = 3_000


class LocalBrokers:
    """`count` brokers; `ports` are theirs, followed by ZooKeeper's if there are several. `security`: how they are secured."""

    def __init__(
        self,
        home: Path,
        *,
        count: int,
        environment: Mapping[str, str],
        ports: Sequence[int],
        say: waiting.Say = waiting.say_nothing,
        security: secure_home.SecureHome | None = None,
    ) -> None:
        self.home = home
        self._security = security
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
        host = (self._security and self._security.advertised_host) or HERE
        return ",".join(f"{secure_home.bracketed(host)}:{port}" for port in self._ports)

    @property
    def client_config(self) -> dict[str, str]:
        """Of the administrator, if there are users."""
        if self._security is None:
            return {"bootstrap.servers": self.bootstrap_servers}
        return self._security.client_config(secure_home.ADMIN)

    @property
    def zookeeper_connect(self) -> str | None:
        """None for one broker, which needs none."""
        return None if self._zookeeper_port is None else f"{HERE}:{self._zookeeper_port}"

    def start(self) -> None:
        """Starts all of them; returns when each accepts connections and lists all the others, and users may do their work."""
        errors.require("logbus_broker")
        if self._security is not None:
            self._security.prepare(self.bootstrap_servers)
        if self._zookeeper_port is not None:
            self._start_zookeeper(self._zookeeper_port)
        started = [self._brokers.start(program) for program in self.programs()]
        for port, process in zip(self._ports, started, strict=True):
            self._wait_for_port(port, process)
        if len(started) > 1:  # until then a topic of three replicas would be refused
            for port in self._ports:
                self._wait_for_brokers(port)
        if self._security is not None:
            self._security.grant()

    def programs(self) -> list[Program]:
        """How each broker is run."""
        if self.zookeeper_connect is None:
            return [self._program("broker", self._ports[0], {})]
        return [
            self._program(f"broker-{number}", port, self._of_cluster(number)) for number, port in enumerate(self._ports, start=1)
        ]

    def raise_if_ended(self) -> None:
        """For one broker; in a cluster, what has ended is started again by `keep_up`."""
        if self._zookeeper_port is None:
            self._brokers.raise_if_ended()

    def keep_up(self) -> None:
        """Starts again what has ended of a cluster: meanwhile the other brokers serve, and they need no ZooKeeper for that.
        `StackError` if a program has ended too often."""
        if self._zookeeper_port is not None:
            self._zookeeper.keep_up(self._say)
            self._brokers.keep_up(self._say)

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
        waiting.wait_until(lambda: mode(port) is not None, what=f"ZooKeeper at {HERE}:{port}", processes=[process], say=self._say)

    def _wait_for_port(self, port: int, process: SupervisedProcess) -> None:
        """A log of many segments is checked at start, which takes a while."""
        what = f"{process.program.name} at {HERE}:{port}"
        waiting.wait_until(lambda: accepts_connections(port), what=what, processes=[process], say=self._say)

    def _wait_for_brokers(self, port: int) -> None:
        """Waits until the broker at the port lists all of them."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({**self.client_config, "bootstrap.servers": f"{HERE}:{port}", "log_level": 0})
        waiting.wait_until(
            lambda: len(client.list_topics(timeout=ANSWER_SECONDS_MAX).brokers) == len(self._ports),
            what=f"a cluster of {len(self._ports)} brokers at {HERE}:{port}",
            not_yet=KafkaException,
            processes=[self._brokers, self._zookeeper],
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
            **({} if self._security is None else self._security.inter_broker_settings()),
        }

    def _program(self, name: str, port: int, settings: Mapping[str, str]) -> Program:
        overrides = {
            "listeners": f"PLAINTEXT://{HERE}:{port}",
            "log.dirs": str(self.home / name),
            "logbus.acks.all.waits.for.flush": "true",
            **({} if self._security is None else self._security.broker_settings(port, HERE)),
            **settings,
        }
        options = [word for key, value in overrides.items() for word in ("--override", f"{key}={value}")]
        return Program(
            name=name,
            command=[sys.executable, "-m", "logbus_broker", "serve", *options],
            environment=self._environment,
            directory=self._run_directory,
            working_directory=self.home,
        )


MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# Only what the server loads, not all of Spark: it starts faster with a shorter class path.
JARS = ("zookeeper-*", "slf4j-api-*", "log4j-*", "jcl-over-slf4j-*", "netty-*", "snappy-java-*", "metrics-core-*", "commons-io-*")
MAIN_JAR = "/zookeeper-3"
JVM_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=WARN")
HERE = "127.0.0.1"
TICK_MS = 1_000  # sessions last 2 to 20 of them
JOIN_TICKS = 20  # how long a server of an ensemble may take to find and follow its leader
LAG_TICKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperServer:
    """One server: clients connect to `port`; the other two ports are for the servers among themselves."""

    directory: Path
    port: int
    server_id: int = 1
    quorum_port: int = 0
    election_port: int = 0


def zookeeper_program(
    server: ZooKeeperServer,
    *,
    environment: Mapping[str, str],
    run_directory: Path,
    ensemble: Sequence[ZooKeeperServer] = (),
    tick_ms: int = TICK_MS,
    settings: Mapping[str, str] | None = None,
) -> Program:
    """Writes the server's configuration and returns how to run it. `ensemble` holds all servers, this one too; `settings` are
    further lines of its configuration."""
    data = server.directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    lines = {
        "dataDir": str(data),
        "clientPort": str(server.port),
        "clientPortAddress": HERE,
        "tickTime": str(tick_ms),
        "initLimit": str(JOIN_TICKS),
        "syncLimit": str(LAG_TICKS),
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr",
        **{f"server.{peer.server_id}": f"{HERE}:{peer.quorum_port}:{peer.election_port}" for peer in ensemble},
        **(settings or {}),
    }
    if ensemble:
        (data / "myid").write_text(f"{server.server_id}\n")
    configuration = server.directory / "zoo.cfg"
    configuration.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return Program(
        name=f"zookeeper-{server.server_id}",
        command=[java(environment), *JVM_OPTIONS, "-cp", class_path(environment), MAIN_CLASS, str(configuration)],
        environment=environment,
        directory=run_directory,
        working_directory=server.directory,
    )


def java(environment: Mapping[str, str]) -> str:
    """The same Java that Spark uses."""
    java_path = program(environment)
    if java_path is None or not Path(java_path).exists():
        raise StackError(f"ZooKeeper needs Java 17 or newer, and there is none: {INSTALL}")
    return java_path


def class_path(environment: Mapping[str, str]) -> str:
    """ZooKeeper's jars inside Spark's."""
    home = environment.get("SPARK_HOME") or spark_submit.pyspark_home()
    jars = Path(home) / "jars"
    jar_paths = [str(jar) for pattern in JARS for jar in sorted(jars.glob(f"{pattern}.jar"))]
    if not any(MAIN_JAR in jar for jar in jar_paths):
        raise StackError(f"{jars} has no ZooKeeper: install pyspark, or unset SPARK_HOME")
    return ":".join(jar_paths)


def mode(port: int) -> str | None:
    """The server's role: standalone, leader or follower; None while it serves no clients, for example without a quorum."""
    try:
        with socket.create_connection((HERE, port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode(errors="replace")
    except OSError:
        return None
    return next((line.removeprefix("Mode: ") for line in answer.splitlines() if line.startswith("Mode: ")), None)
