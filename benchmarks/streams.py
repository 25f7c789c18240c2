"""A stream against plain Structured Streaming with the Kafka connector (`structured_stream.py`): the same aggregate of the same
records into the same PostgreSQL, with as much memory, in the same run.

A backlog: a million requests of three hours in four partitions, in turns, each in a session that is started before the clock;
all tables must hold the same in the end. Then a steady load on each side: how old is the oldest record that nobody can read yet,
asked four times a second, and how much memory its processes hold in the first and in the last quarter of that time. At last
4,000 records that come at once, to a stream that has nothing else to do and looks every tenth of a second.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count as numbers
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import libpq_uri
from logbus.waiting import PATIENCE_SECONDS, wait_until
from rich.console import Console

from benchmarks import processes
from benchmarks.figures import Figure, Target, figure
from benchmarks.ingest import Place, Timed
from benchmarks.ingest_data import produce_events
from benchmarks.loads import Scale
from benchmarks.peers.logbus import LogbusBroker
from benchmarks.sides import OURS
from benchmarks.stream_data import SteadyProducer, requests
from benchmarks.stream_sides import OurStream, StreamSide, StructuredStream
from benchmarks.turns import compare, in_turns

PEER = "plain Structured Streaming"
RECORDS, PARTITIONS, HOURS = 1_000_000, 4, 3
RATE, TRIGGER_SECONDS = 10_000, 2.0
BURST, BURSTS, BURST_TRIGGER_SECONDS, BETWEEN_BURSTS_SECONDS = 4_000, 10, 0.1, 2.0
WARM_UP_SECONDS = 30.0
SAMPLE_SECONDS, SEND_SECONDS = 0.25, 0.02
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """What a steady load shows: ages in seconds, memory in MiB, how many cores were at work."""

    ages: Sequence[float]
    memory: Sequence[float]
    cores: float

    @property
    def age_p99(self) -> float:
        return quantiles(self.ages, n=100)[-1]

    @property
    def memory_at_first(self) -> float:
        return max(self.memory[: len(self.memory) // 4])

    @property
    def memory_at_last(self) -> float:
        return max(self.memory[-len(self.memory) // 4 :])

    def __str__(self) -> str:
        ages = f"age {median(self.ages):.2f} s, p99 {self.age_p99:.2f} s"
        return f"{ages}; {self.memory_at_first:.0f} MiB, then {self.memory_at_last:.0f} MiB; {self.cores:.2f} cores"


@dataclass(slots=True, kw_only=True)
class RunningStream:
    """A process that reads a topic, to which records are sent, and the table that it makes of them."""

    producer: SteadyProducer
    process: subprocess.Popen[bytes]
    connection: psycopg.Connection[Any]
    table: str

    def visible(self) -> int:
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.table}: the stream ended with {self.process.returncode}")
        return visible(self.connection, self.table)

    def steady(self, seconds: float) -> Steady:
        """What the steady load shows in so long."""
        ages, memory, cpu_before = [], [], processes.cpu_seconds(self.process.pid)
        end, sample = time.monotonic() + seconds, 0.0
        while (now := time.monotonic()) < end:
            self.producer.send_due()
            if now >= sample:
                sample = now + SAMPLE_SECONDS
                ages.append(self.producer.age(self.visible()))
                memory.append(processes.rss_bytes(self.process.pid) / MIB)
            time.sleep(SEND_SECONDS)
        cores = (processes.cpu_seconds(self.process.pid) - cpu_before) / seconds
        return Steady(ages=ages, memory=memory, cores=cores)

    def burst(self) -> float:
        """The seconds until records that are sent at once can be read."""
        self.producer.send(BURST)
        self.producer.flush()
        began = time.monotonic()
        wait_until(lambda: self.visible() >= self.producer.count, what=f"all records in {self.table}", poll_seconds=SEND_SECONDS)
        return time.monotonic() - began


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as scratch:
        directory = Path(scratch)
        with LogbusBroker(directory / "broker") as broker, EmbeddedPostgres(directory / "pg") as server:
            client = {"bootstrap.servers": broker.bootstrap}
            log, serial = Topics(Client(client)), numbers()

            def place() -> Place:
                warehouse = server.create_database(f"place_{next(serial)}")
                return Place(directory=directory, client=client, warehouse=warehouse, log=log)

            return [*backlog(place, console, scale), *steady(place, console, scale), bursts(place, console, scale)]


def entrants(once: Callable[[StreamSide, int], Any], trigger_seconds: float) -> dict[str, Callable[[int], Any]]:
    return {OURS: partial(once, OurStream(trigger_seconds)), PEER: partial(once, StructuredStream(trigger_seconds))}


def backlog(place: Callable[[], Place], console: Console, scale: Scale) -> list[Figure]:
    topic, count, digests = "backlog", scale.records(RECORDS), set[str]()
    produce_events(place().client, topic, requests(count, HOURS), PARTITIONS)

    def once(side: StreamSide, number: int) -> Timed:
        here = place()
        side.define(here, topic)
        timed = side.once(here, topic)
        with connected(here) as connection:
            digests.add(digest(connection, side.table))
            if visible(connection, side.table) != count or len(digests) != 1:
                raise RuntimeError(f"{side.table} does not hold what {count} records add up to")
        return timed

    measured = in_turns("backlog", entrants(once, TRIGGER_SECONDS), rounds=scale.rounds, console=console, prepare=scale.settle)
    name, pair = f"a backlog of {count // 1000} k records", (measured[OURS], measured[PEER])
    return [
        compare(name, "records/s", lambda one: count / one.seconds, pair, against=PEER, target=Target(ratio_min=0.9)),
        compare(f"{name}: CPU of its processes", "s/million", lambda one: one.cpu_seconds * 1e6 / count, pair, against=PEER),
    ]


def steady(place: Callable[[], Place], console: Console, scale: Scale) -> list[Figure]:
    def once(side: StreamSide, number: int) -> Steady:
        with running(place(), side, f"steady-{side.table}") as stream:
            stream.steady(WARM_UP_SECONDS)
            return stream.steady(scale.steady_seconds)

    measured = in_turns("steady load", entrants(once, TRIGGER_SECONDS), rounds=1, console=console, prepare=scale.settle)
    pair, ours = (measured[OURS], measured[PEER]), measured[OURS].rounds
    rate = f"{RATE:,} records a second, every {TRIGGER_SECONDS:g} s"
    return [
        compare(f"{rate}: age, p99", "s", lambda one: one.age_p99, pair, against=PEER, target=Target(ours_max=5)),
        compare(f"{rate}: age, median", "s", lambda one: median(one.ages), pair, against=PEER),
        compare(f"{rate}: CPU of its processes", "cores", lambda one: one.cores, pair, against=PEER),
        compare(f"{rate}: memory", "MiB", lambda one: one.memory_at_last, pair, against=PEER),
        figure(
            f"{rate}: memory, after {scale.steady_seconds:,.0f} s",
            "MiB",
            ours=[one.memory_at_last for one in ours],
            peer=[one.memory_at_first for one in ours],
            target=Target(ratio_max=1.1),
            against="logbus, its first quarter",
        ),
    ]


def bursts(place: Callable[[], Place], console: Console, scale: Scale) -> Figure:
    def once(side: StreamSide, number: int) -> float:
        with running(place(), side, f"bursts-{side.table}") as stream:
            seconds = []
            for _ in range(BURSTS + 1):
                time.sleep(BETWEEN_BURSTS_SECONDS)
                seconds.append(stream.burst())
            return median(seconds[1:])  # the first one warms it

    measured = in_turns("bursts", entrants(once, BURST_TRIGGER_SECONDS), rounds=1, console=console, prepare=scale.settle)
    pair = measured[OURS], measured[PEER]
    return compare(
        f"{BURST:,} records at once, until they can be read", "s", float, pair, against=PEER, target=Target(ours_max=1.5)
    )


@contextmanager
def running(here: Place, side: StreamSide, topic: str) -> Iterator[RunningStream]:
    """From when it has read its first records on."""
    client = AdminClient(dict(here.client))  # kept in a variable: a client that is garbage-collected drops its requests
    client.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(PATIENCE_SECONDS)
    side.define(here, topic)
    producer, process = SteadyProducer(here.client, topic, RATE), side.run(here, topic)
    try:
        with connected(here) as connection:
            stream = RunningStream(producer=producer, process=process, connection=connection, table=side.table)
            stream.burst()
            yield stream
            producer.flush()
    finally:
        processes.stop(process)


def connected(here: Place) -> psycopg.Connection[Any]:
    return psycopg.connect(libpq_uri(here.warehouse), autocommit=True)


def visible(connection: psycopg.Connection[Any], table: str) -> int:
    """How many records its rows stand for."""
    (count,) = connection.execute(f"select coalesce(sum(requests), 0) from {table}").fetchone() or (0,)
    return int(count)


def digest(connection: psycopg.Connection[Any], table: str) -> str:
    """The same text for the same rows."""
    row = "(window_start at time zone 'UTC', host, requests, bytes::bigint)"
    query = f"select md5(string_agg({row}::text, ',' order by window_start, host)) from {table}"
    (text,) = connection.execute(query).fetchone() or ("",)
    return str(text)
