"""What waiting clients cost (the paper's stateless broker and its blocking iterator): 500 connections that send nothing and
1,000 more with a fetch that waits on an idle topic.

Memory is resident memory before and after they connect. At the end a record goes to the idle topic, and every one of the thousand
must get it, which proves that they waited all the time. Apache Kafka gets the same crowd and is idle at the same time.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from logbus_broker.node import raise_open_files_limit
from rich.console import Console

from benchmarks.costs.lines import BATCH_RECORDS, batches_of, log_lines
from benchmarks.costs.load import ROUNDS_PER_ROUND, cpu_per_million, create_topic, produce_all
from benchmarks.costs.wire import Connection, Refused, check_produced, fetch_frame, fetched, produce_frame, versions_frame
from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import Scale
from benchmarks.peers.kafka import ApacheKafka
from benchmarks.peers.logbus import LogbusBroker
from benchmarks.peers.server import Server
from benchmarks.processes import scheduled_seconds
from benchmarks.sides import KAFKA, OURS
from benchmarks.turns import FAILURES, in_one_line

SILENT, WAITING = 500, 1_000
IDLE_SECONDS = 10.0
SETTLED_SECONDS = 2.0  # after the crowd has connected
RECORDS = 500_000
WARM_UP_REQUESTS = 4_000
MEMORY_MIB_MAX = 80  # the bound for the crowd in the broker's own tests
WAIT_MS = 600_000  # longer than the whole measurement
MIB, KIB = 1 << 20, 1 << 10
QUIET_TOPIC, BUSY_TOPIC = "quiet", "busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """A server that gets no requests: its memory, and its CPU for IDLE_SECONDS."""

    rss_bytes: int
    cpu_seconds: float


def figures(directory: Path, scale: Scale, console: Console) -> Iterator[Figure]:
    raise_open_files_limit()
    batches = batches_of(log_lines(5_000, seed=1), now_ms=time.time_ns() // 1_000_000)
    with ExitStack() as stack:
        ours = stack.enter_context(LogbusBroker(directory / "logbus"))
        kafka, reason = _kafka(directory / "kafka", stack)
        servers: dict[str, LogbusBroker | ApacheKafka] = {OURS: ours} | ({KAFKA: kafka} if kafka else {})
        for server in servers.values():
            _prepare(server, batches, requests=scale.records(WARM_UP_REQUESTS))
        console.print("waiting: idle seconds alone, then with the crowd ...")
        seconds = max(IDLE_SECONDS * scale.share, 1.0)
        alone = observe(servers, seconds)
        with crowds(servers) as waiting:
            crowded = observe(servers, seconds)
            for name, server in servers.items():
                check_all_waited(server.bootstrap, waiting[name])
        yield from idle_figures(alone, crowded, seconds, reason)
        if kafka:
            kafka.stop()
        yield _beside(ours, batches, scale, console)


def _kafka(directory: Path, stack: ExitStack) -> tuple[ApacheKafka | None, str]:
    """Apache Kafka, or why it is missing."""
    try:
        return stack.enter_context(ApacheKafka(directory)), ""
    except FAILURES as error:
        return None, in_one_line(error)


def _prepare(server: LogbusBroker | ApacheKafka, batches: Sequence[bytes], *, requests: int) -> None:
    """Creates both topics, and does enough work that neither memory nor compiled code changes any further."""
    for topic in (QUIET_TOPIC, BUSY_TOPIC):
        create_topic(server.bootstrap, topic)
    produce_all(server.bootstrap, BUSY_TOPIC, batches, requests=requests)


def observe(servers: Mapping[str, Server], seconds: float) -> dict[str, Idle]:
    """Observes all servers at the same time, because they do nothing."""
    time.sleep(min(SETTLED_SECONDS, seconds))
    before = {name: scheduled_seconds(server.pid) for name, server in servers.items()}
    time.sleep(seconds)
    return {
        name: Idle(rss_bytes=server.rss_bytes(), cpu_seconds=scheduled_seconds(server.pid) - before[name])
        for name, server in servers.items()
    }


@contextmanager
def crowds(servers: Mapping[str, LogbusBroker | ApacheKafka]) -> Iterator[dict[str, list[Connection]]]:
    """A crowd at each server; for each, the connections whose fetch waits."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(crowd(server.bootstrap)) for name, server in servers.items()}


@contextmanager
def crowd(bootstrap: str, offset: int = 0) -> Iterator[list[Connection]]:
    """`offset` is the quiet topic's end: a fetch from there has to wait."""
    frame = fetch_frame(QUIET_TOPIC, offset, wait_ms=WAIT_MS)
    with ExitStack() as stack:
        for _ in range(SILENT):  # each sends only the request with which every client begins
            stack.enter_context(Connection(bootstrap)).ask(versions_frame())
        waiting = [stack.enter_context(Connection(bootstrap)) for _ in range(WAITING)]
        for connection in waiting:
            connection.send(frame)
        yield waiting


def check_all_waited(bootstrap: str, waiting: Sequence[Connection]) -> None:
    """Raises Refused if a fetch was answered before there was a record; then sends one, which each must get."""
    early = _answered([connection.socket for connection in waiting])
    if early:
        raise Refused(f"{early} of {len(waiting)} fetches did not wait for a record")
    with Connection(bootstrap) as connection:
        (batch,) = batches_of([b"at last"], now_ms=time.time_ns() // 1_000_000)
        check_produced(connection.ask(produce_frame(QUIET_TOPIC, batch)), QUIET_TOPIC)
    for connection in waiting:
        if not fetched(connection.receive(), QUIET_TOPIC):
            raise Refused("a waiting fetch was answered without the record")


def _answered(sockets: Sequence[socket.socket]) -> int:
    poll = select.poll()
    for sock in sockets:
        poll.register(sock, select.POLLIN)
    return len(poll.poll(0))


def idle_figures(alone: Mapping[str, Idle], crowded: Mapping[str, Idle], seconds: float, reason: str) -> Iterator[Figure]:
    """`seconds` is how long the servers were observed; `reason` is why the peer is missing."""
    crowd_name = f"{SILENT:,} connections and {WAITING:,} waiting fetches"
    states = (("nobody connected", alone, None), (crowd_name, crowded, Target(ours_max=MEMORY_MIB_MAX)))
    for name, found, target in states:
        memory = _sides(found, lambda one: one.rss_bytes / MIB)
        yield figure(f"memory, {name}", "MiB", ours=memory[0], peer=memory[1], target=target, against=KAFKA, note=reason)
    grown = (crowded[OURS].rss_bytes - alone[OURS].rss_bytes) / (SILENT + WAITING) / KIB
    yield figure("memory of one of these connections", "KiB", ours=[grown])
    for name, found, _ in states:
        cpu = _sides(found, lambda one: one.cpu_seconds * 1000 / seconds)
        yield figure(f"CPU of an idle second, {name}", "ms", ours=cpu[0], peer=cpu[1], against=KAFKA, note=reason)


def _sides(found: Mapping[str, Idle], value: Callable[[Idle], float]) -> tuple[list[float], list[float]]:
    """Ours and the peer's, which may be missing."""
    ours, peer = ([value(found[side])] if side in found else [] for side in (OURS, KAFKA))
    return ours, peer


def _beside(ours: LogbusBroker, batches: Sequence[bytes], scale: Scale, console: Console) -> Figure:
    """A producer on another topic, without the crowd and with it, in turns."""
    requests = scale.records(RECORDS) // BATCH_RECORDS
    alone, crowded = [], []
    for number in range(ROUNDS_PER_ROUND * scale.rounds):
        alone.append(_cost(ours, f"alone-{number}", batches, requests))
        with crowd(ours.bootstrap, offset=number + 1) as waiting:
            time.sleep(SETTLED_SECONDS / 4)
            crowded.append(_cost(ours, f"crowded-{number}", batches, requests))
            check_all_waited(ours.bootstrap, waiting)
        console.print(f"waiting: {alone[-1]:.2f} s CPU a million alone, {crowded[-1]:.2f} beside the crowd", highlight=False)
    return figure(
        "a producer beside them: broker CPU",
        "s/million",
        ours=crowded,
        peer=alone,
        target=Target(ratio_max=1.1),
        against="logbus, nobody waiting",
    )


def _cost(ours: LogbusBroker, topic: str, batches: Sequence[bytes], requests: int) -> float:
    create_topic(ours.bootstrap, topic)
    work = partial(produce_all, ours.bootstrap, topic, batches, requests=requests)
    return cpu_per_million(ours, requests * BATCH_RECORDS, work)
