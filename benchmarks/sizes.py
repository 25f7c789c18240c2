"""What a load costs when its window is large: ten times the rows, sixteen times the partitions, rows of 10 KB.

Two million events of 200 bytes in four partitions are what the others are compared with: each as one window of an hour, by our
application in a Spark session that is started before the clock, and audited.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.embedded import EmbeddedPostgres
from rich.console import Console

from benchmarks.figures import Figure, Target, figure
from benchmarks.ingest import EVENTS, PARTITIONS, Place, Timed, audit_seconds, load_ours
from benchmarks.ingest_data import events, produce_events
from benchmarks.loads import Scale
from benchmarks.peers.logbus import LogbusBroker

TIMES_MORE, MANY_PARTITIONS = 10, 64
WIDE_ROWS, WIDE_BYTES = 200_000, 10_000
NOISE_BYTES = 1 << 20


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as scratch:
        directory = Path(scratch)
        with LogbusBroker(directory / "broker") as broker, EmbeddedPostgres(directory / "pg") as server:
            client = {"bootstrap.servers": broker.bootstrap}
            warehouse, log = server.create_database("sizes"), Topics(Client(client))
            return measured(Place(directory=directory, client=client, warehouse=warehouse, log=log), console, scale)


def measured(place: Place, console: Console, scale: Scale) -> list[Figure]:
    usual, wide_rows = scale.records(EVENTS), scale.records(WIDE_ROWS)
    windows: dict[str, tuple[int, Iterator[tuple[int, str]], int]] = {
        "usual": (usual, events(usual, hours=1), PARTITIONS),
        "long": (TIMES_MORE * usual, events(TIMES_MORE * usual, hours=1), PARTITIONS),
        "many": (usual, events(usual, hours=1), MANY_PARTITIONS),
        "wide": (wide_rows, wide_events(wide_rows), PARTITIONS),
    }
    loads, audits = dict[str, Timed](), dict[str, float]()
    for name, (count, stamped, partitions) in windows.items():
        produce_events(place.client, name, stamped, partitions)
        scale.settle()
        loads[name], _ = load_ours(place, name, count)
        audits[name] = audit_seconds(place, name)
        story = f"{loads[name].seconds:.1f} s, {loads[name].rss_mib:,.0f} MiB, audit {audits[name]:.1f} s"
        console.print(f"{name}, {count:,} rows: {story}", highlight=False)
    base, against = loads["usual"], f"{usual:,} rows of 200 bytes, {PARTITIONS} partitions"

    def beside(name: str, title: str, *, is_alike: bool = True) -> list[Figure]:
        """Time for each row where rows are alike, and memory."""
        count, bound = windows[name][0], Target(ratio_max=1.2)
        pairs = {"load": (loads[name].seconds, base.seconds), "audit": (audits[name], audits["usual"])}
        times = [
            figure(
                f"{title}: {what}",
                "s/million",
                ours=[seconds * 1e6 / count],
                peer=[usual_seconds * 1e6 / usual] if is_alike else [],
                target=bound if is_alike else None,
                against=against if is_alike else "",
            )
            for what, (seconds, usual_seconds) in pairs.items()
        ]
        memory = figure(
            f"{title}: memory of driver and workers",
            "MiB",
            ours=[loads[name].rss_mib],
            peer=[base.rss_mib],
            target=bound,
            against=against,
        )
        return [*times, memory]

    return [
        *beside("long", f"{TIMES_MORE * usual:,} rows"),
        *beside("many", f"{MANY_PARTITIONS} partitions"),
        *beside("wide", f"{wide_rows:,} rows of {WIDE_BYTES // 1000} KB", is_alike=False),
    ]


def wide_events(count: int) -> Iterator[tuple[int, str]]:
    """Events whose `agent` is long, and does not compress much."""
    noise = Random(2011).randbytes(NOISE_BYTES // 2).hex()
    for number, (stamp, event) in enumerate(events(count, hours=1)):
        begin = number * 7919 % (NOISE_BYTES - WIDE_BYTES)
        agent = noise[begin : begin + WIDE_BYTES - len(event)]
        yield stamp, event.replace('"agent": "', f'"agent": "{agent}', 1)
