"""What reading again costs (the paper's section 3.1: a consumer may deliberately rewind): a consumer reads a partition to its
end, seeks to the first offset and reads it once more.

The stock client, by assignment. It must get the same records in the same order: their number and the checksum of all values are
compared, and a difference fails the benchmark.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from logbus.waiting import PATIENCE_SECONDS
from rich.console import Console

from benchmarks.costs.lines import BATCH_RECORDS, batches_of, log_lines
from benchmarks.costs.load import create_topic, produce_all
from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import RECORD_BYTES, Scale
from benchmarks.peers.logbus import LogbusBroker

RECORDS = 1_000_000
DIFFERENT_LINES = 50_000
CHUNK_RECORDS = 10_000
TOPIC = "rewound"
START = TopicPartition(TOPIC, 0, 0)
# At the end of the log a fetch waits for more, and the seek waits for that fetch; if its queue is full, the client pauses for a
# second. Neither of them is reading.
UNHINDERED = {"fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One pass from the first record to the last: the checksum is of all values in order."""

    records: int
    checksum: int
    seconds: float

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds


def figures(directory: Path, scale: Scale, console: Console) -> Iterator[Figure]:
    records = scale.records(RECORDS)
    batches = batches_of(log_lines(min(DIFFERENT_LINES, records), seed=2), now_ms=time.time_ns() // 1_000_000)
    requests = records // BATCH_RECORDS
    with LogbusBroker(directory / "logbus") as broker:
        create_topic(broker.bootstrap, TOPIC)
        produce_all(broker.bootstrap, TOPIC, batches, requests=requests)
        pairs = [read_twice(broker.bootstrap, requests * BATCH_RECORDS) for _ in range(scale.rounds)]
    for first, again in pairs:
        console.print(
            f"rewind: {first.records_per_second:,.0f} records/s, again {again.records_per_second:,.0f}", highlight=False
        )
    yield figure(
        f"rewind: {RECORD_BYTES} B records read again, the same ones",
        "records",
        ours=[again.records for _, again in pairs],
        peer=[first.records for first, _ in pairs],
        target=Target(ratio_min=1, ratio_max=1),
        against="logbus, read first",
    )
    yield figure(
        "rewind: throughput of the second reading",
        "records/s",
        ours=[again.records_per_second for _, again in pairs],
        peer=[first.records_per_second for first, _ in pairs],
        against="logbus, read first",
    )


def read_twice(bootstrap: str, count: int) -> tuple[Reading, Reading]:
    settings = {"group.id": "rewind", "enable.auto.commit": False, "auto.offset.reset": "error", **UNHINDERED}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    try:
        consumer.get_watermark_offsets(START, timeout=PATIENCE_SECONDS)  # finding the broker is not reading
        began = time.perf_counter()
        consumer.assign([START])
        first = read(consumer, count, began)
        began = time.perf_counter()
        consumer.seek(START)
        again = read(consumer, count, began)
    finally:
        consumer.close()
    if again.checksum != first.checksum:
        raise RuntimeError(f"{TOPIC}: the second reading differs from the first")
    return first, again


def read(consumer: Consumer, count: int, began: float) -> Reading:
    """Reads the next `count` records; RuntimeError if one is missing or out of order."""
    records = checksum = 0
    while records < count:
        chunk = consumer.consume(min(CHUNK_RECORDS, count - records), PATIENCE_SECONDS)
        if not chunk or chunk[-1].error() or chunk[-1].offset() != records + len(chunk) - 1:
            raise RuntimeError(f"{TOPIC}: after {records} records came {chunk and (chunk[-1].error() or chunk[-1].offset())}")
        checksum = zlib.crc32(b"".join(message.value() or b"" for message in chunk), checksum)
        records += len(chunk)
    return Reading(records=records, checksum=checksum, seconds=time.perf_counter() - began)
