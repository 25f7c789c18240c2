"""What exactness costs a load: our job against the barest Spark job over the same records, and how fast a log is shipped.

84 hours of JSON lines go through `ship` into our broker. Then, in turns: freeze, load, prove and audit all 84 windows in one
application; and the barest job that copies the same offsets into a plain table with the same columns. Both are timed from the
start of spark-submit to its end, ours with the freezing before and the audits behind it; and their CPU time, which a busy machine
moves less, without that of the PostgreSQL server.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from logbus import spark_submit
from logbus.collector.ship import ship
from logbus.loading import Load, Loader
from logbus.warehouse.embedded import EmbeddedPostgres
from logbus.warehouse.engine import connect, libpq_uri
from logbus.windows.ledger import Ledger
from logbus.windows.log_offsets import LogOffsets
from logbus.windows.migrations import create_ledger
from logbus.windows.model import AuditReport, Pipeline
from rich.console import Console
from sqlalchemy import text

from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import Scale
from benchmarks.peers.logbus import LogbusBroker

ROUNDS = 2
HOURS = 84
RECORDS = 252_000
PARTITIONS = 2
TOPIC = "events"
STARTED = datetime(2015, 5, 17, 10, tzinfo=UTC)
COLUMNS = {"ts": "bigint", "host": "text", "path": "text", "status": "integer", "bytes": "bigint", "agent": "text"}
AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/42.0.2311.135 Safari/537.36"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What one load took."""

    seconds: float
    cpu_seconds: float

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s ({self.cpu_seconds:.1f} s CPU)"


def measured(load: Callable[[], None]) -> Effort:
    """Run a load; its time, and the CPU time of this process and of all it waited for."""
    started, used = time.monotonic(), _cpu_seconds()
    load()
    return Effort(seconds=time.monotonic() - started, cpu_seconds=_cpu_seconds() - used)


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as scratch:
        directory = Path(scratch)
        log = directory / "events.json"
        write_events(log)
        with LogbusBroker(directory / "broker") as broker, EmbeddedPostgres(directory / "pg") as server:
            client = {"bootstrap.servers": broker.bootstrap}
            report = ship([log], topic=TOPIC, client_config=client, state_path=directory / "state.json", partitions=PARTITIONS)
            ours: list[Effort] = []
            barest: list[Effort] = []
            for number in range(min(ROUNDS, scale.rounds)):
                warehouse = server.create_database(f"round_{number}")
                ours.append(load_ours(warehouse, client))
                barest.append(load_barest(warehouse, client))
                console.print(f"round {number + 1}: ours {ours[-1]}, the barest job {barest[-1]}")
    name = f"{RECORDS // 1000} k records in {HOURS} windows"
    wall = [one.seconds for one in ours], [one.seconds for one in barest]
    cpu = [one.cpu_seconds for one in ours], [one.cpu_seconds for one in barest]
    asked = Target(ratio_max=2.0)
    return (
        figure(f"{name}: load", "s", ours=wall[0], peer=wall[1], target=asked, against="barest job"),
        figure(f"{name}: CPU of the load", "s", ours=cpu[0], peer=cpu[1], target=asked, against="barest job"),
        figure("lines shipped", "lines/s", ours=[report.lines / report.seconds]),
    )


def write_events(path: Path) -> None:
    """JSON lines of about 220 bytes, evenly over the hours."""
    chance = Random(2011)
    start_ms, step_ms = int(STARTED.timestamp() * 1000), HOURS * 3_600_000 // RECORDS
    with path.open("w") as file:
        for number in range(RECORDS):
            event = {
                "ts": start_ms + number * step_ms,
                "host": f"10.0.{int(chance.random() * 40)}.{int(chance.random() * 250)}",
                "path": f"/articles/{int(chance.random() * 5000)}",
                "status": 200,
                "bytes": int(chance.random() * 60_000),
                "agent": AGENT,
            }
            file.write(json.dumps(event) + "\n")


def load_ours(warehouse: str, client: dict[str, Any]) -> Effort:
    """Register, then freeze, load and audit. Every window must be exact."""
    engine = connect(warehouse)
    create_ledger(engine)
    pipeline = Pipeline(
        name="events", topic=TOPIC, table="events", parse="json", lateness=timedelta(minutes=5), settings={"columns": COLUMNS}
    )
    Ledger(engine).register(pipeline, LogOffsets(client), datetime.now(UTC))
    loader = Loader(warehouse_url=warehouse, client_config=client, now=lambda: datetime.now(UTC), say=lambda line: None)
    reports: list[AuditReport] = []
    effort = measured(lambda: reports.extend(loader.load(Load(pipeline="events"))))
    if len(reports) != HOURS or not all(report.ok for report in reports):
        raise RuntimeError(f"{sum(report.ok for report in reports)} of {len(reports)} windows are exact, {HOURS} were expected")
    require_rows(warehouse, "events")
    return effort


def load_barest(warehouse: str, client: dict[str, Any]) -> Effort:
    """Make the plain table, then run the job."""
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    with connect(warehouse).begin() as connection:
        connection.execute(text(f"CREATE TABLE barest (_partition integer, _offset bigint, {columns})"))
    ends = LogOffsets(client).end_offsets(TOPIC, range(PARTITIONS), "read_uncommitted")
    ask = {"bootstrap": client["bootstrap.servers"], "topic": TOPIC, "table": "barest", "columns": COLUMNS}
    ask |= {"uri": libpq_uri(warehouse), "ends": ends}
    settings = [word for name, value in spark_submit.conf().items() for word in ("--conf", f"{name}={value}")]
    options = ["--master", spark_submit.LOCAL_MASTER, "--driver-memory", spark_submit.LOCAL_DRIVER_MEMORY]
    job = Path(__file__).with_name("barest_load.py")
    command = [spark_submit.spark_submit_binary(), *options, *settings, str(job), json.dumps(ask)]
    environment = {**os.environ, **spark_submit.environment(warehouse, client)}
    effort = measured(lambda: submit(command, environment))
    require_rows(warehouse, "barest")
    return effort


def submit(command: Sequence[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the barest job ended with {done.returncode}:\n{done.stderr[-3000:]}")


def require_rows(warehouse: str, table: str) -> None:
    with connect(warehouse).connect() as connection:
        found = connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
    if found != RECORDS:
        raise RuntimeError(f"{table} holds {found} rows instead of {RECORDS}")
