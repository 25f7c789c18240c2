"""Apache Kafka's jars and its command-line tools, run against any broker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from logbus.waiting import PATIENCE_SECONDS

from benchmarks import processes
from benchmarks.peers.maven import Jars, java

KAFKA_VERSION = "4.1.0"
KAFKA_JARS = Jars(
    name=f"kafka-{KAFKA_VERSION}",
    artifacts=(
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
        "org.slf4j:slf4j-simple:1.7.36",  # warnings to standard error instead of nowhere
    ),
)


# For what runs for seconds: Java's optimizing compiler costs such a process half of its CPU.
FAST_START = ("-XX:TieredStopAtLevel=1",)


class ToolFailed(Exception):
    """One of Kafka's command-line tools ended with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JvmTools:
    """Kafka's own command-line tools, run against any broker."""

    java: str
    jars: Path

    @classmethod
    def find(cls) -> JvmTools:
        """The tools of this machine, or Missing."""
        return cls(java=java(), jars=KAFKA_JARS.folder())

    def command(self, main_class: str, *arguments: str, compilers: Sequence[str] = FAST_START) -> list[str]:
        """The command line that runs one main class with Kafka on its class path."""
        options = ["-Xmx256m", "-XX:+UseSerialGC", *compilers, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return [self.java, *options, "-cp", f"{self.jars}/*", main_class, *arguments]

    def run(
        self,
        main_class: str,
        *arguments: str,
        stdin: str | None = None,
        seconds_max: float = PATIENCE_SECONDS,
        compilers: Sequence[str] = FAST_START,
    ) -> str:
        """The standard output of one run; ToolFailed with its error output if it fails."""
        command = self.command(main_class, *arguments, compilers=compilers)
        done = processes.run(command, stdin=stdin, seconds_max=seconds_max)
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
        config: Path | None = None,
    ) -> str:
        """ProducerPerformance as fast as it goes; its last line is the summary. A value with = in it must come by a file."""
        shape = [
            "--num-records",
            str(records),
            "--record-size",
            str(record_bytes),
            "--throughput",
            "-1",
        ]
        settings = ["--producer-props", f"bootstrap.servers={bootstrap}", *properties]
        settings += [] if config is None else ["--producer.config", str(config)]
        output = self.run(
            "org.apache.kafka.tools.ProducerPerformance",
            "--topic",
            topic,
            *shape,
            *settings,
            compilers=(),
        )
        return output.splitlines()[-1]


def producer_rate(summary: str) -> float:
    """Records per second, from `1000000 records sent, 312500.0 records/sec (59.60 MB/sec), ...`."""
    found = re.search(r"([\d.]+) records/sec", summary)
    if found is None:
        raise ToolFailed(f"ProducerPerformance said nothing about records/sec: {summary!r}")
    return float(found[1])
