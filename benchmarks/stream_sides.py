"""Our stream and its peer: the same aggregate, requests by minute and host, of the same records in the same PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import psycopg
from logbus import expressions
from logbus.loads.engine import libpq_uri
from logbus.model import Pipeline, utc_now
from logbus.streams import stream_ledger
from logbus.streams.definition import define_stream

from benchmarks import processes
from benchmarks.ingest import Place, Timed, start, submit
from benchmarks.peers.maven import SPARK_KAFKA, spark_jars
from benchmarks.stream_data import COLUMNS
from benchmarks.structured_stream import create_tables

OFFSETS_MAX = 200_000  # in an epoch, or a micro-batch


class StreamSide(Protocol):
    """What aggregates a topic into a table of minutes and hosts."""

    table: ClassVar[str]

    def define(self, here: Place, topic: str) -> None:
        """Before anything is read."""

    def once(self, here: Place, topic: str) -> Timed:
        """Reads all that is there, in a session that runs already."""

    def run(self, here: Place, topic: str) -> subprocess.Popen[bytes]:
        """Reads on until it is stopped."""


@dataclass(frozen=True, slots=True)
class OurStream:
    trigger_seconds: float
    table: ClassVar[str] = "traffic"

    def define(self, here: Place, topic: str) -> None:
        pipeline = Pipeline(name=topic, topic=topic, table=f"{topic}_rows", parse="json", settings={"columns": COLUMNS})
        here.ledger.register(pipeline, here.log, utc_now())
        stream = define_stream(
            self.table,
            pipeline,
            keys=["host"],
            measures={"requests": expressions.count(), "bytes": expressions.sum_of("bytes")},
            event_time="at",
            window="1m",
            trigger=f"{self.trigger_seconds:g}s",
            max_offsets_per_trigger=OFFSETS_MAX,
        )
        stream_ledger.define(here.ledger.engine, stream, utc_now())

    def once(self, here: Place, topic: str) -> Timed:
        return submit(here, "stream", ["--stream", self.table, "--once"])

    def run(self, here: Place, topic: str) -> subprocess.Popen[bytes]:
        program = str(Path(sys.executable).with_name("logbus"))
        variables = {"LOGBUS_WAREHOUSE_URL": here.warehouse, "LOGBUS_BOOTSTRAP_SERVER": here.client["bootstrap.servers"]}
        return processes.start(
            [program, "stream", "run", self.table], log_path=here.directory / "run.out", env={**os.environ, **variables}
        )


@dataclass(frozen=True, slots=True)
class StructuredStream:
    trigger_seconds: float
    table: ClassVar[str] = "peer_traffic"

    def define(self, here: Place, topic: str) -> None:
        SPARK_KAFKA.folder()  # fetched before anything is timed
        with psycopg.connect(libpq_uri(here.warehouse)) as connection:
            create_tables(connection, self.table)

    def once(self, here: Place, topic: str) -> Timed:
        return submit(here, "structured", [self._ask(here, topic, None)], spark_jars(SPARK_KAFKA))

    def run(self, here: Place, topic: str) -> subprocess.Popen[bytes]:
        process, _ = start(here, "structured", [self._ask(here, topic, self.trigger_seconds)], spark_jars(SPARK_KAFKA))
        return process

    def _ask(self, here: Place, topic: str, trigger_seconds: float | None) -> str:
        ask: dict[str, Any] = {
            "bootstrap": here.client["bootstrap.servers"],
            "topic": topic,
            "table": self.table,
            "checkpoint": tempfile.mkdtemp(dir=here.directory),
            "offsets_max": OFFSETS_MAX,
            "trigger_seconds": trigger_seconds,
        }
        return json.dumps(ask)
