"""Measuring in turns: each round runs every entrant once, so neighbours see the same machine; every second round is in reverse
order, so that no entrant is always first.

An entrant that fails is out of that comparison and keeps the reason; the others continue. Before each run the machine is settled
(machine.py), so that no entrant pays for its predecessor, nor for memory that the machine must first get from its host.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from confluent_kafka import KafkaException
from logbus.errors import NotInTime
from rich.console import Console

from benchmarks.figures import Figure, Target, figure
from benchmarks.machine import settle
from benchmarks.peers.cluster import BrokerCluster
from benchmarks.peers.java import ToolFailed
from benchmarks.peers.server import Server
from benchmarks.processes import Missing, StartFailed, kernel_cpu_seconds

Result = TypeVar("Result")
# Errors of a peer, its client or a starved machine; our own bugs are not among them.
FAILURES = (KafkaException, Missing, NotInTime, OSError, StartFailed, subprocess.TimeoutExpired, TimeoutError, ToolFailed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One run against one server. `on_disk_cpu_seconds` count until all is on disk, kernel threads included: what a server does
    not flush itself they write back later, charged to no process."""

    records: int
    records_per_second: float
    cpu_seconds: float
    disk_bytes: int
    on_disk_cpu_seconds: float = 0.0

    @property
    def cpu_seconds_per_million(self) -> float:
        return self.cpu_seconds * 1_000_000 / self.records

    @property
    def on_disk_cpu_seconds_per_million(self) -> float:
        return self.on_disk_cpu_seconds * 1_000_000 / self.records

    @property
    def disk_bytes_per_record(self) -> float:
        return self.disk_bytes / self.records

    def __str__(self) -> str:
        until = f", {self.on_disk_cpu_seconds_per_million:.2f} until on disk" if self.on_disk_cpu_seconds else ""
        return f"{self.records_per_second:,.0f} records/s, {self.cpu_seconds_per_million:.2f} s CPU a million{until}"


@dataclass(slots=True, kw_only=True)
class Measured(Generic[Result]):
    """An entrant's results, one per round; or none, and why."""

    rounds: list[Result] = field(default_factory=list)
    reason: str = ""

    def give_up(self, reason: str) -> None:
        self.rounds, self.reason = [], reason


def in_turns(
    title: str,
    entrants: Mapping[str, Callable[[int], Result]],
    *,
    rounds: int,
    console: Console,
    prepare: Callable[[], None] = settle,
) -> dict[str, Measured[Result]]:
    """Runs every entrant once per round; the callable gets the round's number. `prepare` is called before each run."""
    measured: dict[str, Measured[Result]] = {name: Measured() for name in entrants}
    names = list(entrants)
    for number in range(rounds):
        for name in names[:: -1 if number % 2 else 1]:
            if not measured[name].reason:
                prepare()
                _once(title, name, partial(entrants[name], number), measured[name], console)
    return measured


def _once(title: str, name: str, run: Callable[[], Result], measured: Measured[Result], console: Console) -> None:
    try:
        result = run()
    except FAILURES as error:
        measured.give_up(in_one_line(error))
        console.print(f"{title}: {name}: failed: {measured.reason}", style="red", highlight=False, markup=False)
        return
    measured.rounds.append(result)
    console.print(f"{title}: {name}: {result}", highlight=False, markup=False)


def in_one_line(error: BaseException) -> str:
    """The error, short enough for the foot of a table."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:400]


def cost_of(server: Server | BrokerCluster, records: int, run: Callable[[], float], *, part: str = ".") -> Cost:
    """Runs a load that returns its records per second; returns its cost for the server and on disk, in that part of its data."""
    cpu, kernel, disk = server.cpu_seconds(), kernel_cpu_seconds(), server.disk_bytes(part)
    rate = run()
    spent, left = server.cpu_seconds() - cpu, server.disk_bytes(part) - disk
    before_sync = time.process_time()
    os.sync()
    own = time.process_time() - before_sync
    return Cost(
        records=records,
        records_per_second=rate,
        cpu_seconds=spent,
        disk_bytes=left,
        on_disk_cpu_seconds=server.cpu_seconds() - cpu + kernel_cpu_seconds() - kernel + own,
    )


Pair = tuple[Measured[Result], Measured[Result]]  # ours and the peer's


def compare(
    name: str, unit: str, value: Callable[[Result], float], pair: Pair[Result], *, against: str, target: Target | None = None
) -> Figure:
    """One figure from two entrants' results."""
    ours, peer = pair
    note = "; ".join(reason for reason in (ours.reason and f"ours failed: {ours.reason}", peer.reason) if reason)
    values = [[value(one) for one in side.rounds] for side in pair]
    return figure(name, unit, ours=values[0], peer=values[1], target=target, against=against, note=note)


def compare_costs(
    name: str, pair: Pair[Cost], *, against: str, rate: Target | None = None, cpu: Target | None = None
) -> Sequence[Figure]:
    """Throughput and broker CPU of two entrants."""
    return (
        compare(f"{name}: throughput", "records/s", lambda one: one.records_per_second, pair, against=against, target=rate),
        compare(f"{name}: broker CPU", "s/million", lambda one: one.cpu_seconds_per_million, pair, against=against, target=cpu),
    )


def compare_on_disk(name: str, pair: Pair[Cost], *, against: str) -> Figure:
    """The CPU time until all is on disk, whether the server or the kernel writes it."""
    title = f"{name}: CPU until it is on disk, the kernel's included"
    return compare(title, "s/million", lambda one: one.on_disk_cpu_seconds_per_million, pair, against=against)
