"""What exactness costs a load, compared to the barest Spark job and to Airflow's own way of reading Kafka.

Two million events of 200 bytes in four partitions, one hour: loaded by our application, by the barest job and by what is usually
written (Spark's Kafka source, from_json, write.jdbc) in turns, each in a Spark session that is started before the clock; loaded
again; the same events as Avro; a quarter of them, to see how memory grows.
84 small hours: shipped, then frozen, loaded and audited in one application, its start included. A tenth through the Kafka
provider's ConsumeFromTopicOperator.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from logbus import spark_submit
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loading import Load, Loader
from logbus.loads.audit import audit_window
from logbus.loads.commit_checks import freeze_schemas
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import connect, libpq_uri
from logbus.loads.ledger import Ledger
from logbus.loads.sinks import sink_for
from logbus.model import FrozenWindow, Interval, Pipeline, utc_now
from logbus.shipper.ship import ship
from rich.console import Console
from sqlalchemy import text

from benchmarks import processes
from benchmarks.figures import Figure, Target, figure
from benchmarks.ingest_data import AVRO_SCHEMA, COLUMNS, STARTED, as_avro, events, produce_events, write_events
from benchmarks.loads import Scale
from benchmarks.peers.logbus import LogbusBroker
from benchmarks.peers.maven import POSTGRES_JDBC, SPARK_KAFKA, spark_jars
from benchmarks.timed_load import PREFIX

EVENTS = 2_000_000
PARTITIONS = 4
SMALL_HOURS = 84
SMALL_LINES = 84_000
OPERATOR_SHARE = 10
AVRO_TOPIC = "events_avro"
NO_REGISTRY = "http://127.0.0.1:1"  # its schema is frozen already
LOAD_SECONDS_MAX = 600.0
RSS_PERIOD_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One job in a running session: its seconds, those of its commits, and the CPU time and the most memory of driver, JVM and
    workers."""

    seconds: float
    commit_seconds: Sequence[float]
    cpu_seconds: float
    rss_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a benchmark reads and writes."""

    directory: Path
    client: Mapping[str, str]
    warehouse: str
    log: Topics

    @property
    def ledger(self) -> Ledger:
        return Ledger(connect(self.warehouse))


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as scratch:
        directory = Path(scratch)
        with LogbusBroker(directory / "broker") as broker, EmbeddedPostgres(directory / "pg") as server:
            client = {"bootstrap.servers": broker.bootstrap}
            log = Topics(Client(client))

            def place(name: str) -> Place:
                return Place(directory=directory, client=client, warehouse=server.create_database(name), log=log)

            return [*large_window(place, console, scale), *small_hours(place("small"), console, scale)]


def large_window(place: Any, console: Console, scale: Scale) -> list[Figure]:
    """One hour of everything, and of a quarter."""
    count = scale.records(EVENTS)
    first = place("quarter")
    for topic, size in (("events", count), ("quarter", count // 4)):
        produce_events(first.client, topic, events(size, hours=1), PARTITIONS)
    produce_events(first.client, AVRO_TOPIC, events(count, hours=1), PARTITIONS, as_avro)
    quarter, _ = load_ours(first, "quarter", count // 4)
    ours, again, avro, barest, usual, audits, checksums = [], [], [], [], [], [], []
    for number in range(scale.rounds):
        here = place(f"round_{number}")

        def load_by_us(here: Place = here) -> None:
            loaded, reloaded = load_ours(here, "events", count, rerun=True)
            ours.append(loaded)
            again.append(reloaded)

        def load_by_barest_job(here: Place = here) -> None:
            barest.append(load_plainly(here, "barest", "events", count))

        for load in (load_by_us, load_by_barest_job) if number % 2 == 0 else (load_by_barest_job, load_by_us):
            settle(here, scale)
            load()
        settle(here, scale)
        avro.append(load_ours(here, AVRO_TOPIC, count)[0])
        usual += load_usually(here, "events", count, console)
        audits.append(audit_seconds(here, "events"))
        checksums.append(checksum_seconds(here, "events"))
        seconds = {"ours": ours[-1].seconds, "again": again[-1].seconds, "barest": barest[-1].seconds}
        console.print(f"round {number + 1}: {', '.join(f'{name} {value:.1f} s' for name, value in seconds.items())}")
    operator = operator_rate(place("operator"), "events", count // OPERATOR_SHARE, console)
    return large_figures(count, quarter, ours, again, avro, barest, usual, audits, checksums, operator)


def settle(place: Place, scale: Scale) -> None:
    """Before a load that is compared: neither the warehouse nor the machine has anything to write back."""
    engine = connect(place.warehouse)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("checkpoint"))
    engine.dispose()
    scale.settle()


def large_figures(
    count: int,
    quarter: Timed,
    ours: Sequence[Timed],
    again: Sequence[Timed],
    avro: Sequence[Timed],
    barest: Sequence[Timed],
    usual: Sequence[Timed],
    audits: Sequence[float],
    checksums: Sequence[float],
    operator: Sequence[float],
) -> list[Figure]:
    name = f"{count // 1000} k events, one hour"
    rates = [count / one.seconds for one in ours]
    return [
        figure(f"{name}: load", "rows/s", ours=rates, target=Target(ours_min=120_000)),
        loads_beside(f"{name}: load", ours, barest, against="barest job"),
        figure(
            f"{name}: load, CPU of driver, JVM and workers",
            "s",
            ours=[one.cpu_seconds for one in ours],
            peer=[one.cpu_seconds for one in barest],
            target=Target(ratio_max=1.15),
            against="barest job",
        ),
        loads_beside(f"{name}: loaded again", again, ours, against="first load"),
        loads_beside(f"{name}: load of Avro", avro, ours, against="the same as JSON"),
        figure(f"{name}: load of Avro", "rows/s", ours=[count / one.seconds for one in avro], target=Target(ours_min=100_000)),
        figure(f"{name}: commit", "s", ours=slowest_commits(ours), target=Target(ours_max=1)),
        figure(f"{name}: commit, loaded again", "s", ours=slowest_commits(again), target=Target(ours_max=1)),
        figure(f"{name}: audit", "s", ours=audits),
        figure(f"{name}: checksum of the values, in each load and in each audit", "s", ours=checksums),
        figure(
            f"{name}: load", "rows/s", ours=rates, peer=operator, target=Target(ratio_min=10), against="ConsumeFromTopicOperator"
        ),
        figure(
            f"{name}: load",
            "rows/s",
            ours=rates,
            peer=[count / one.seconds for one in usual],
            target=Target(ratio_min=1.5),
            against="Spark's Kafka source, from_json, write.jdbc",
        ),
        figure(
            "memory of driver and workers, four times the window",
            "MiB",
            ours=[one.rss_mib for one in ours],
            peer=[quarter.rss_mib],
            target=Target(ratio_max=1.2),
            against="a quarter",
        ),
    ]


def loads_beside(title: str, ours: Sequence[Timed], others: Sequence[Timed], *, against: str) -> Figure:
    """What a load may cost more than another one of the same records."""
    seconds, peer = ([one.seconds for one in timed] for timed in (ours, others))
    return figure(title, "s", ours=seconds, peer=peer, target=Target(ratio_max=1.15), against=against)


def slowest_commits(loads: Sequence[Timed]) -> list[float]:
    return [max(one.commit_seconds) for one in loads]


def small_hours(place: Place, console: Console, scale: Scale) -> list[Figure]:
    """A backlog of quiet hours, from the file of lines to the last audit."""
    lines = max(SMALL_HOURS, scale.records(SMALL_LINES))
    log_file = place.directory / "small.json"
    write_events(log_file, lines, SMALL_HOURS)
    report = ship(
        [log_file],
        topic="small",
        client_config=dict(place.client),
        state_path=place.directory / "state.json",
        partitions=2,
        accept_times=True,
    )
    register(place, "small")
    loader = Loader(warehouse_url=place.warehouse, client_config=place.client, now=utc_now, say=lambda line: None)
    started = time.monotonic()
    reports = loader.load(Load(pipeline="small"))
    seconds = time.monotonic() - started
    if len(reports) != SMALL_HOURS or not all(one.ok for one in reports):
        raise RuntimeError(f"{sum(one.ok for one in reports)} of {len(reports)} windows are exact, {SMALL_HOURS} were expected")
    console.print(f"{SMALL_HOURS} small hours: {seconds:.1f} s")
    return [
        figure(
            f"{SMALL_HOURS} hours of {lines // SMALL_HOURS} events: freeze, load, audit",
            "s",
            ours=[seconds],
            target=Target(ours_max=5),
        ),
        figure("lines shipped", "lines/s", ours=[report.lines / report.seconds]),
    ]


def register(place: Place, topic: str) -> None:
    parse, settings = ("avro", {"registry": NO_REGISTRY}) if topic == AVRO_TOPIC else ("json", {"columns": COLUMNS})
    pipeline = Pipeline(name=topic, topic=topic, table=topic, parse=parse, lateness=timedelta(minutes=5), settings=settings)
    place.ledger.register(pipeline, place.log, utc_now())
    if topic == AVRO_TOPIC:
        with place.ledger.engine.begin() as connection:
            freeze_schemas(connection, pipeline, {AVRO_SCHEMA.reference: AVRO_SCHEMA}, utc_now())


def load_ours(place: Place, topic: str, count: int, *, rerun: bool = False) -> tuple[Timed, Timed]:
    """The first load and, if `rerun`, a second one (otherwise the first again); the rows of each are counted."""
    register(place, topic)
    window = place.ledger.freeze_or_get(topic, Interval.hour(STARTED), place.log, utc_now())
    first = load_window(place, window, count)
    return first, load_window(place, window, count) if rerun else first


def load_window(place: Place, window: FrozenWindow, count: int) -> Timed:
    attempts = place.ledger.begin_attempts(window.pipeline, [window.interval.start], "benchmark", 1, utc_now())
    timed = submit(place, "ours", spark_submit.application_arguments(window.pipeline, attempts))
    require_rows(place, window.pipeline, count)
    return timed


def audit_seconds(place: Place, topic: str) -> float:
    started = time.monotonic()
    report = audit_window(place.ledger.engine, place.log, topic, STARTED, utc_now(), sink_for)
    assert report.ok, report.problems
    return time.monotonic() - started


def checksum_seconds(place: Place, topic: str) -> float:
    """The time of the checksum alone, which is also part of the load's sealing and of the audit."""
    engine = place.ledger.engine
    sink, window = sink_for(place.ledger.pipeline(topic), engine), place.ledger.window(topic, STARTED)
    started = time.monotonic()
    report = sink.compare_values(window)
    seconds = time.monotonic() - started
    if report.problems or report.notes:
        raise RuntimeError(f"the checksum was not compared: {report}")
    return seconds


def load_plainly(place: Place, side: str, topic: str, count: int, conf: Mapping[str, str] | None = None) -> Timed:
    """Creates the plain table with our table's columns, then runs the job of this side."""
    system = "_topic text, _partition integer, _offset bigint, _timestamp timestamptz, _key bytea, _window_start timestamptz"
    make_table(place, side, system)
    ends = place.log.end_offsets(topic, range(PARTITIONS), "read_uncommitted")
    ask = {"bootstrap": place.client["bootstrap.servers"], "topic": topic, "table": side, "columns": COLUMNS, "ends": ends}
    timed = submit(place, side, [json.dumps({**ask, "window_start_us": int(STARTED.timestamp()) * 1_000_000})], conf)
    require_rows(place, side, count)
    return timed


def load_usually(place: Place, topic: str, count: int, console: Console) -> list[Timed]:
    """By what Spark brings with it; none if its connectors cannot be fetched, with the reason on the console."""
    try:
        conf = spark_jars(SPARK_KAFKA, POSTGRES_JDBC)
    except processes.Missing as reason:
        console.print(str(reason), style="yellow", markup=False)
        return []
    return [load_plainly(place, "usual", topic, count, conf)]


def make_table(place: Place, name: str, system: str) -> None:
    columns = ", ".join(f"{column} {kind}" for column, kind in COLUMNS.items())
    with connect(place.warehouse).begin() as connection:
        connection.execute(text(f"create table {name} ({system}, {columns})"))


def submit(place: Place, side: str, arguments: Sequence[str], conf: Mapping[str, str] | None = None) -> Timed:
    """Runs spark-submit and samples its memory until it ends."""
    process, out = start(place, side, arguments, conf)
    try:
        rss_bytes = watched(process.pid, process.poll)
    finally:
        status = processes.stop(process)
    lines = [line for line in out.read_text().splitlines() if line.startswith(PREFIX)]
    if status != 0 or not lines:
        raise RuntimeError(f"the job {side} ended with {status}:\n{processes.tail(out)}")
    return Timed(**json.loads(lines[-1].removeprefix(PREFIX)), rss_mib=rss_bytes / 2**20)


def start(
    place: Place, side: str, arguments: Sequence[str], conf: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], Path]:
    """spark-submit, and where its output goes. `conf`: settings of this side's own."""
    settings = [word for key, value in {**spark_submit.conf(), **(conf or {})}.items() for word in ("--conf", f"{key}={value}")]
    options = ["--master", spark_submit.LOCAL_MASTER, "--driver-memory", spark_submit.LOCAL_DRIVER_MEMORY]
    program = str(Path(__file__).with_name("timed_load.py"))
    variables = {**spark_submit.environment(place.warehouse, place.client), "LOGBUS_BENCH_URI": libpq_uri(place.warehouse)}
    variables["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parents[1]}"  # for this package
    out = place.directory / f"{side}.out"
    out.unlink(missing_ok=True)
    command = [spark_submit.spark_submit_binary(), *options, *settings, program, side, *arguments]
    return processes.start(command, log_path=out, env={**os.environ, **variables}), out


def watched(pid: int, ended: Any) -> int:
    """The most memory that a process and its descendants held until it ended."""
    most, deadline = 0, time.monotonic() + LOAD_SECONDS_MAX
    pause = threading.Event()
    while ended() is None and time.monotonic() < deadline:
        try:
            most = max(most, processes.rss_bytes(pid))
        except ProcessLookupError:
            break
        pause.wait(RSS_PERIOD_SECONDS)
    return most


def operator_rate(place: Place, topic: str, count: int, console: Console) -> list[float]:
    """Rows per second through Airflow's provider; none if it fails, with the reason on the console."""
    make_table(place, "consumed", "_partition integer, _offset bigint")
    extra = {**place.client, "group.id": "benchmark", "enable.auto.commit": "false", "auto.offset.reset": "earliest"}
    environment = {
        **os.environ,
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": extra}),
        "LOGBUS_BENCH_URL": connect(place.warehouse).url.render_as_string(hide_password=False),
    }
    done = processes.run(
        [sys.executable, "-m", "benchmarks.peers.consume_operator", topic, "consumed", str(count)],
        env=environment,
        seconds_max=LOAD_SECONDS_MAX,
    )
    seconds = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("SECONDS ")]
    if done.returncode != 0 or not seconds:
        console.print(f"the operator failed: {done.stdout[-500:]}", style="yellow", markup=False)
        return []
    require_rows(place, "consumed", count)
    return [count / seconds[0]]


def require_rows(place: Place, table: str, count: int) -> None:
    with connect(place.warehouse).connect() as connection:
        found = connection.execute(text(f"select count(*) from {table}")).scalar_one()
    if found != count:
        raise RuntimeError(f"{table} holds {found} rows instead of {count}")
