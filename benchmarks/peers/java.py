"""Apache Kafka's jars and its command-line tools, fetched by Maven into the user's cache on first use.

Nothing of it lies in the repository. A jar folder appears by rename only when complete, so two runs that fetch at the
same time cannot see half of one. What this machine lacks (java, mvn, a way to the repository) raises `Missing`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import Missing

KAFKA_VERSION = "4.1.0"
FETCH_SECONDS_MAX = 600
TOOL_SECONDS_MAX = 300
_DEPENDENCIES = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    (
        "org.slf4j",
        "slf4j-simple",
        "1.7.36",
    ),  # warnings to standard error instead of nowhere
)


class ToolFailed(Exception):
    """A command-line tool of Kafka's ended with an error."""


def java() -> str:
    """The java executable, or Missing."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if found is None:
        raise Missing("no `java` on PATH: install a Java runtime, version 17 or newer, or set JAVA_HOME")
    return found


def kafka_jars() -> Path:
    """The folder with Apache Kafka and all it needs; fetches it once."""
    folder = _cache() / f"kafka-{KAFKA_VERSION}" / "jars"
    if not folder.is_dir():
        _fetch(folder)
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "logbus"


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing(f"no `mvn` on PATH to fetch Apache Kafka {KAFKA_VERSION}: install Maven, or put its jars into {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        pom = Path(scratch, "pom.xml")
        pom.write_text(_pom())
        command = [
            maven,
            "-q",
            "-B",
            "-f",
            str(pom),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={scratch}/jars",
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            raise Missing(f"mvn could not fetch Apache Kafka {KAFKA_VERSION}: {done.stdout[-500:].strip()}")
        if not folder.is_dir():
            Path(scratch, "jars").rename(folder)


def _pom() -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
        for group, artifact, version in _DEPENDENCIES
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>logbus</groupId>'
        "<artifactId>kafka-peer</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JvmTools:
    """Kafka's own command-line tools, run on any broker's address."""

    java: str
    jars: Path

    @classmethod
    def find(cls) -> JvmTools:
        """The tools of this machine, or Missing."""
        return cls(java=java(), jars=kafka_jars())

    def command(self, main_class: str, *arguments: str, heap: str = "256m") -> list[str]:
        """The command line that runs one main class with Kafka on its class path."""
        options = [
            f"-Xmx{heap}",
            "-XX:+UseSerialGC",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        ]
        return [self.java, *options, "-cp", f"{self.jars}/*", main_class, *arguments]

    def run(
        self,
        main_class: str,
        *arguments: str,
        stdin: str | None = None,
        seconds_max: float = TOOL_SECONDS_MAX,
    ) -> str:
        """Standard output of one run; ToolFailed with what it said when it fails."""
        command = self.command(main_class, *arguments)
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds_max,
            check=False,
        )
        if done.returncode != 0:
            raise ToolFailed(f"{main_class} {' '.join(arguments)}: status {done.returncode}\n{done.stderr[-2000:]}")
        return done.stdout

    def topics(self, bootstrap: str, *arguments: str) -> str:
        return self.run(
            "org.apache.kafka.tools.TopicCommand",
            "--bootstrap-server",
            bootstrap,
            *arguments,
        )

    def end_offsets(self, bootstrap: str, topic: str, *, time: str = "latest") -> dict[int, int]:
        """GetOffsetShell: the offset of each partition at `time` (earliest, latest or milliseconds)."""
        listing = self.run(
            "org.apache.kafka.tools.GetOffsetShell",
            "--bootstrap-server",
            bootstrap,
            "--topic",
            topic,
            "--time",
            time,
        )
        rows = [line.rsplit(":", 2) for line in listing.split()]
        return {int(partition): int(offset) for _, partition, offset in rows}

    def console_produce(self, bootstrap: str, topic: str, lines: Sequence[str], *properties: str) -> None:
        """ConsoleProducer: each line a record; `properties` are producer settings as name=value."""
        settings = [part for one in properties for part in ("--producer-property", one)]
        tool = "org.apache.kafka.tools.ConsoleProducer"
        self.run(
            tool,
            "--bootstrap-server",
            bootstrap,
            "--topic",
            topic,
            *settings,
            stdin="\n".join(lines) + "\n",
        )

    def console_consume(self, bootstrap: str, topic: str, *, partition: int, count: int) -> list[str]:
        """ConsoleConsumer by assignment, from the first offset."""
        wanted = [
            "--partition",
            str(partition),
            "--offset",
            "earliest",
            "--max-messages",
            str(count),
        ]
        tool = "org.apache.kafka.tools.consumer.ConsoleConsumer"
        output = self.run(
            tool,
            "--bootstrap-server",
            bootstrap,
            "--topic",
            topic,
            *wanted,
            "--timeout-ms",
            "30000",
        )
        return output.splitlines()

    def producer_performance(
        self,
        bootstrap: str,
        topic: str,
        *,
        records: int,
        record_bytes: int,
        properties: Sequence[str] = (),
    ) -> str:
        """ProducerPerformance as fast as it goes; its last line is the summary."""
        shape = [
            "--num-records",
            str(records),
            "--record-size",
            str(record_bytes),
            "--throughput",
            "-1",
        ]
        settings = ["--producer-props", f"bootstrap.servers={bootstrap}", *properties]
        output = self.run(
            "org.apache.kafka.tools.ProducerPerformance",
            "--topic",
            topic,
            *shape,
            *settings,
        )
        return output.splitlines()[-1]
