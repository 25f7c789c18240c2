"""A contest: servers started side by side, warmed up, then measured in turns. A missing one is listed, with the reason."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from benchmarks.figures import Figure, Target
from benchmarks.loads import BATCH_1, BATCH_1_UNACKNOWLEDGED, DEFAULT_BATCH, Load, Scale
from benchmarks.processes import tail
from benchmarks.sides import OURS, LogSide, Opener, Side, fresh
from benchmarks.turns import FAILURES, Cost, Measured, compare, in_one_line, in_turns

WARM_UP_RECORDS = 2_000_000  # measured: Kafka's CPU for a million records falls from 8 s to 2.5 s over the first two to three
WARM_UP_REQUESTS = 60_000
WARM_UP_MESSAGES = 100_000  # a queue server handles each on its own: its code runs as often as a broker's does for requests
WARM_UP_ROUND_TRIPS = 500
MIB = 1 << 20

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Which servers take part, which are missing and why, and how much is measured."""

    present: Mapping[str, Side]
    missing: Mapping[str, str]
    scale: Scale
    console: Console

    def measure(
        self, title: str, run: Callable[[Side, int], Result], names: Sequence[str], *, rounds: int | None = None
    ) -> dict[str, Measured[Result]]:
        """Calls `run` for the named sides in turns, with the round's number; each name gets its results or its reason."""
        entrants = {name: partial(run, self.present[name]) for name in names if not self.why_missing(name)}
        measured = in_turns(title, entrants, rounds=rounds or self.scale.rounds, console=self.console, prepare=self.scale.settle)
        return {name: measured.get(name) or Measured(reason=self.why_missing(name)) for name in names}

    def produce(self, load: Load, names: Sequence[str]) -> dict[str, Measured[Cost]]:
        """Each round of each side has its own topic, deleted afterwards: the disk need not hold them all."""

        def once(side: Side, number: int) -> Cost:
            cost = side.produce(load, topic(load, number), records=self.scale.records(load.records))
            side.delete(topic(load, number))
            return cost

        return self.measure(load.name, once, names)

    def memory(self, peer: str, target: Target | None = None) -> Figure:
        """Resident memory of ours and of a peer, now."""
        resident = self.measure("memory", lambda side, _: side.server.rss_bytes() / MIB, (OURS, peer), rounds=1)
        pair = resident[OURS], resident[peer]
        return compare("resident memory after the run", "MiB", float, pair, against=peer, target=target)

    def why_missing(self, name: str) -> str:
        """Why it cannot be measured now: it never took part, or its server has ended since. Empty if it can."""
        if name not in self.present:
            return self.missing.get(name, "did not take part")
        server = self.present[name].server
        return "" if server.alive else f"{server.name} has ended: {' '.join(tail(server.log_path).split())[-300:]}"


@contextmanager
def contest(openers: Sequence[Opener], scale: Scale, console: Console, *, is_warm: bool = True) -> Iterator[Contest]:
    """Start all in a temporary directory and, if `is_warm`, warm them up; stop them at the end."""
    present: dict[str, Side] = {}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as scratch, ExitStack() as stack:
        for number, opener in enumerate(openers):
            console.print(f"starting {' and '.join(opener.names)}", highlight=False)
            try:
                started = opener.open(fresh(Path(scratch, str(number))), stack)
            except FAILURES as error:
                missing |= dict.fromkeys(opener.names, _said(opener.names[0], error, console))
                continue
            for name, side in started.items():
                try:
                    if is_warm:
                        _warm_up(side, f"warm-up-{name.replace(' ', '-')}", scale)
                    present[name] = side
                except FAILURES as error:
                    missing[name] = _said(name, error, console)
        yield Contest(present=present, missing=missing, scale=scale, console=console)


def _said(name: str, error: BaseException, console: Console) -> str:
    """Why one is missing, also printed at once: the table comes much later."""
    reason = in_one_line(error)
    console.print(f"{name} is missing: {reason}", style="yellow", highlight=False, markup=False)
    return reason


def _warm_up(side: Side, stem: str, scale: Scale) -> None:
    """As much as a JVM's compiler needs, whether or not the server has one: records, requests, reading, waiting."""
    records, requests = scale.records(WARM_UP_RECORDS) // 2, scale.records(WARM_UP_REQUESTS)
    loads: Sequence[tuple[Load, int]] = [(BATCH_1, scale.records(WARM_UP_MESSAGES))]
    if isinstance(side, LogSide):
        loads = [(DEFAULT_BATCH, records), (DEFAULT_BATCH, records), (BATCH_1, requests), (BATCH_1_UNACKNOWLEDGED, requests)]
    for number, (load, count) in enumerate(loads):
        side.produce(load, f"{stem}-{number}", records=count)
        side.consume(f"{stem}-{number}", records=count)
    if side.has_latency:
        side.latency(f"{stem}-latency", records=scale.records(WARM_UP_ROUND_TRIPS))


def topic(load: Load, number: int) -> str:
    """The name of one round's topic."""
    stem = "".join(letter if letter.isalnum() else "-" for letter in load.name)
    return f"{stem}-{number}"
