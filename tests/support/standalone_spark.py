"""A standalone Spark for tests: a master and workers as processes of this machine, on free ports."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from logbus import spark_submit
from logbus.cli.processes import Program, Supervisor
from logbus.waiting import wait_until

DAEMONS = "org.apache.spark.deploy"
SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@dataclass(frozen=True)
class StandaloneSpark:
    """The master's address for applications, its log, and the directories in which workers start executors."""

    url: str
    log: Path
    works: list[Path]

    @property
    def rest_address(self) -> str:
        """Of the interface that submits and kills drivers."""
        (port,) = re.findall(r"Started REST server .* with port (\d+)", self.log.read_text())
        return f"127.0.0.1:{port}"


@contextmanager
def standalone_spark(directory: Path, *, workers: int) -> Iterator[StandaloneSpark]:
    """Each worker has a core and half a gigabyte for executors."""
    supervisor = Supervisor()
    home = spark_submit.pyspark_home()
    rest = "-Dspark.master.rest.enabled=true -Dspark.master.rest.port=0"
    environment = {
        **os.environ,
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": f"{SMALL} {rest}",
        "SPARK_DAEMON_MEMORY": "192m",
    }

    def start(name: str, *words: str) -> Path:
        command = [f"{home}/bin/spark-class", *words]
        program = Program(
            name=name, command=command, environment=environment, directory=directory / "run", working_directory=directory
        )
        supervisor.start(program)
        return program.log_path

    on_free_ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    try:
        log = start("master", f"{DAEMONS}.master.Master", *on_free_ports)
        wait_until(lambda: "New state: ALIVE" in log.read_text(), what="Spark's master", processes=supervisor.processes)
        (url,) = re.findall(r"Starting Spark master at (spark://\S+)", log.read_text())
        works = [directory / f"worker-{number}" for number in range(1, workers + 1)]
        for work in works:
            size = ("--cores", "1", "--memory", "512m", "--work-dir", str(work))
            start(work.name, f"{DAEMONS}.worker.Worker", *on_free_ports, *size, url)
        wait_until(
            lambda: log.read_text().count("Registering worker") == workers,
            what="Spark's workers",
            processes=supervisor.processes,
        )
        yield StandaloneSpark(url=url, log=log, works=works)
    finally:
        supervisor.end()
