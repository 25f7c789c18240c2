"""What retention costs other clients: 2,000 partitions of 5 segments, of which 3 are due at the same time, while a steady
producer writes to another topic.

The logs are written by the broker's own storage code, as for `growth`: eight days old except the last two segments. The broker
starts on them and looks for due segments a few seconds later; the producer's latency until then is compared with that while
segments are deleted, from the first file to the last.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from logbus.waiting import wait_until
from logbus_broker.clock import SystemClock
from logbus_broker.filesystem import FileSystem, offset_name
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.log.segment import DELETED, LOG
from logbus_broker.protocol.batch import read_header, stamp
from logbus_broker.protocol.records import NewRecord, build_batch
from logbus_broker.settings import DAY_MS, LogConfig
from rich.console import Console

from benchmarks.costs.lines import batches_of, log_lines
from benchmarks.costs.load import SteadyProducer, acknowledged_beside, create_topic
from benchmarks.figures import Figure, figure
from benchmarks.growth import write_topics
from benchmarks.loads import Scale
from benchmarks.peers.logbus import LogbusBroker

PARTITIONS = 2_000
SEGMENTS, DUE = 5, 3
AGE_MS = 8 * DAY_MS  # retention deletes what is older than seven
VALUE_BYTES = 16 << 10
QUIET_SECONDS = 4.0
POLL_SECONDS = 0.002
TOPIC, STEADY_TOPIC = "old", "steady"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass of retention over all partitions, and the steady producer's milliseconds before it and during it."""

    seconds: float
    quiet_ms: Sequence[float]
    busy_ms: Sequence[float]


def figures(directory: Path, scale: Scale, console: Console) -> Iterator[Figure]:
    count = scale.records(PARTITIONS)
    passes = []
    for number in range(scale.rounds):
        console.print("retention: writing the logs ...")
        passes.append(_round(directory / str(number), count, quiet_seconds=max(QUIET_SECONDS * scale.share, 1.0)))
        console.print(f"retention: {passes[-1].seconds:.2f} s", highlight=False)
    yield from pass_figures(passes, count)


def _round(directory: Path, count: int, *, quiet_seconds: float) -> Pass:
    broker = LogbusBroker(directory, settings={"log.retention.check.interval.ms": str(round(quiet_seconds * 1000))})
    write_logs(broker.data, count, now_ms=time.time_ns() // 1_000_000)
    (batch,) = batches_of(log_lines(50, seed=5), now_ms=time.time_ns() // 1_000_000)
    with broker:
        create_topic(broker.bootstrap, STEADY_TOPIC)
        with SteadyProducer(broker.bootstrap, STEADY_TOPIC, batch) as producer:
            time.sleep(0.2)  # the first requests make connections
            quiet = time.monotonic()
            began, ended = watch(due_files(broker.data, count))
    return Pass(
        seconds=ended - began,
        quiet_ms=producer.latencies_ms(quiet, began),
        busy_ms=producer.latencies_ms(began, ended),
    )


def write_logs(data: Path, count: int, *, now_ms: int) -> None:
    """Writes a topic of `count` partitions, as after a clean stop."""
    write_topics(data, {TOPIC: count}, lambda _, path, disk: write_log(path, disk, now_ms=now_ms))


def write_log(path: Path, disk: FileSystem, *, now_ms: int) -> PartitionLog:
    """SEGMENTS segments of one batch; the records of the first DUE are AGE_MS old."""
    log = PartitionLog.open(path, config=LogConfig(), filesystem=disk, clock=SystemClock(), clean=False, recovery_point=0)
    for number in range(SEGMENTS):
        if number:
            log.roll()
        raw = build_batch([NewRecord(timestamp=now_ms - (AGE_MS if number < DUE else 0), value=bytes(VALUE_BYTES))])
        stamp(raw, number, 0)
        log.append([memoryview(raw)], [read_header(raw).stamped(number, 0)])
    log.close()
    return log


def due_files(data: Path, count: int) -> list[Path]:
    return [data / f"{TOPIC}-{index}" / offset_name(number, LOG) for index in range(count) for number in range(DUE)]


def watch(files: list[Path]) -> tuple[float, float]:
    """When the first of the files was gone, and when the last one, renamed ones included."""
    wait_until(lambda: is_gone(files[-1]) or not files[0].exists(), what="the first deletion", poll_seconds=POLL_SECONDS)
    began = time.monotonic()

    def are_gone() -> bool:
        while files and is_gone(files[-1]):
            files.pop()
        return not files

    wait_until(are_gone, what="the deletion of the segments that are due", poll_seconds=POLL_SECONDS)
    return began, time.monotonic()


def is_gone(file: Path) -> bool:
    return not file.exists() and not file.with_name(file.name + DELETED).exists()


def pass_figures(passes: Sequence[Pass], count: int) -> Iterator[Figure]:
    yield figure(
        f"retention: {count * DUE:,} segments of {count:,} partitions deleted", "s", ours=[one.seconds for one in passes]
    )
    yield from acknowledged_beside("retention", [one.busy_ms for one in passes], [one.quiet_ms for one in passes])
