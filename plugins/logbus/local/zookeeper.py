"""A ZooKeeper on this machine, from the jars that Spark includes: for local clusters and tests, with nothing to download.

One `ZooKeeperServer` is a directory and three ports; several that are configured with each other form an ensemble. It is the real
server, in the version that Spark itself uses; only its limits are chosen for a machine that does other things too.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from logbus.java import INSTALL, program
from logbus.local.processes import Program, StackError
from logbus.spark_submit import pyspark_home

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
    found = program(environment)
    if found is None or not Path(found).exists():
        raise StackError(f"ZooKeeper needs Java 17 or newer, and there is none: {INSTALL}")
    return found


def class_path(environment: Mapping[str, str]) -> str:
    """ZooKeeper's jars inside Spark's."""
    home = environment.get("SPARK_HOME") or pyspark_home()
    jars = Path(home) / "jars"
    found = [str(jar) for pattern in JARS for jar in sorted(jars.glob(f"{pattern}.jar"))]
    if not any(MAIN_JAR in jar for jar in found):
        raise StackError(f"there is no ZooKeeper in {jars}: install pyspark, or unset SPARK_HOME")
    return ":".join(found)


def mode(port: int) -> str | None:
    """The server's role: standalone, leader or follower; None while it serves no clients, for example without a quorum."""
    try:
        with socket.create_connection((HERE, port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode(errors="replace")
    except OSError:
        return None
    return next((line.removeprefix("Mode: ") for line in answer.splitlines() if line.startswith("Mode: ")), None)
