"""What compaction costs other clients: a topic of repeated keys is compacted while a producer and a consumer work on another
topic, at a steady pace.

The topic is filled under `cleanup.policy=delete` and then set to `compact`, which lets the pass begin; the broker logs how much
it read and what it left. The steady producer's latency during the pass is compared with that of the seconds before it. Each round
has its own topic.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from logbus.waiting import wait_until
from rich.console import Console

from benchmarks.costs.lines import BATCH_RECORDS, batches_of, log_lines
from benchmarks.costs.load import SteadyConsumer, SteadyProducer, acknowledged_beside, alter_topic, create_topic, produce_all
from benchmarks.figures import Figure, figure
from benchmarks.loads import Scale
from benchmarks.peers.logbus import LogbusBroker
from benchmarks.processes import POLL_SECONDS

RECORDS = 240_000  # 54 MB per round
SEGMENTS = 16
KEYS = 20_000
QUIET_SECONDS = 4.0
BACKOFF_MS = 100  # how long the broker waits before it looks for a log to compact; Kafka's default is 15 s
STEADY_TOPIC = "steady"
MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One compaction, and the milliseconds of the steady producer's acknowledgements before it and during it."""

    bytes_before: int
    bytes_after: int
    seconds: float
    quiet_ms: Sequence[float]
    busy_ms: Sequence[float]


def figures(directory: Path, scale: Scale, console: Console) -> Iterator[Figure]:
    now_ms = time.time_ns() // 1_000_000
    records, chance = scale.records(RECORDS), random.Random(4)
    keys = [b"user-%08d" % chance.randrange(KEYS) for _ in range(min(2 * KEYS, records))]
    batches = batches_of(log_lines(len(keys), seed=4), now_ms=now_ms, keys=keys)
    requests = records // BATCH_RECORDS
    segment_bytes = sum(map(len, batches[:requests])) * max(requests // len(batches), 1) // SEGMENTS
    passes = []
    with LogbusBroker(directory / "logbus", settings={"log.cleaner.backoff.ms": str(BACKOFF_MS)}) as broker:
        create_topic(broker.bootstrap, STEADY_TOPIC)
        for number in range(scale.rounds):
            topic = f"keyed-{number}"
            create_topic(broker.bootstrap, topic, segment_bytes=str(segment_bytes))
            produce_all(broker.bootstrap, topic, batches, requests=requests)
            passes.append(watch_pass(broker, topic, batches[0], quiet_seconds=max(QUIET_SECONDS * scale.share, 1.0)))
            console.print(f"compaction: {passes[-1].seconds:.1f} s", highlight=False)
    yield from pass_figures(passes)


def watch_pass(broker: LogbusBroker, topic: str, batch: bytes, *, quiet_seconds: float) -> Pass:
    with ExitStack() as stack:
        stack.enter_context(SteadyConsumer(broker.bootstrap, STEADY_TOPIC))
        producer = stack.enter_context(SteadyProducer(broker.bootstrap, STEADY_TOPIC, batch))
        time.sleep(0.2)  # the first requests make connections
        quiet = time.monotonic()
        time.sleep(quiet_seconds)
        began = time.monotonic()
        alter_topic(broker.bootstrap, topic, "cleanup.policy", "compact")
        wait_until(lambda: said(broker.log_path, topic) is not None, what=f"the compaction of {topic}", poll_seconds=POLL_SECONDS)
        ended = time.monotonic()
    before, after = said(broker.log_path, topic) or (0, 0)
    return Pass(
        bytes_before=before,
        bytes_after=after,
        seconds=ended - began,
        quiet_ms=producer.latencies_ms(quiet, began),
        busy_ms=producer.latencies_ms(began, ended),
    )


def said(log: Path, topic: str) -> tuple[int, int] | None:
    """Bytes before and after the pass over a topic's partition 0, from the broker's log; None if it has not ended."""
    found = re.search(rf"{topic}-0: compacted up to .*: (\d+) bytes became (\d+)", log.read_text())
    return (int(found[1]), int(found[2])) if found else None


def pass_figures(passes: Sequence[Pass]) -> Iterator[Figure]:
    before, after = [one.bytes_before / MB for one in passes], [one.bytes_after / MB for one in passes]
    yield figure("compaction: what is left of a log", "MB", ours=after, peer=before, against="logbus, before")
    speed = [one.bytes_before / MB / one.seconds for one in passes]
    yield figure("compaction: speed, beside other work", "MB/s", ours=speed)
    yield from acknowledged_beside("compaction", [one.busy_ms for one in passes], [one.quiet_ms for one in passes])
