"""What growth costs: a fetch by offset and a search by time in a log of 10 GB against one of 100 MB, and the start with 2,000
partitions and 20 GB after a clean stop, with the files in the page cache and without.

The logs are written by the broker's own storage code on a disk that leaves holes where a record's value is zeros, so 20 GB take
half a gigabyte and a few seconds. Both logs are in one broker and are read in turns by the same client, so the machine's noise
affects both. The start is that of a process, interpreter and imports included, until it answers. A start reads some small files
of each partition, so it is measured twice: cold, after the system has dropped the logs from its page cache as after a restart of
the machine, and warm, as after an upgrade. Cold times depend on the disk and differ from run to run.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from logbus.waiting import PATIENCE_SECONDS
from logbus_broker.clock import SystemClock
from logbus_broker.cluster.topic_registry import TopicRegistry
from logbus_broker.filesystem import FileSystem, OpenFile
from logbus_broker.log.log_directory import LogDirectory
from logbus_broker.log.partition import Partition
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.log.segment import LOG
from logbus_broker.protocol.batch import Buffer, read_header, stamp
from logbus_broker.protocol.records import NewRecord, build_batch
from logbus_broker.settings import LogConfig
from rich.console import Console

from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import Scale
from benchmarks.peers.logbus import LogbusBroker

MIB = 1 << 20
BATCH_BYTES = 256 << 10
SMALL_MIB, LARGE_MIB, OTHER_MIB = 100, 10_000, 5
PARTITIONS = 2_000  # 1,998 of 5 MB and the two above: 20 GB
ASKED = 150  # requests to each log per round
STAMP_STEP_MS = 10  # from one batch to the next
START_SECONDS_MAX = 5.0
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    with tempfile.TemporaryDirectory(prefix="logbus-growth-") as name:
        broker = LogbusBroker(Path(name), settings={"log.retention.ms": "-1"})
        console.print("writing the logs ...")
        sizes = {"small": (1, SMALL_MIB), "large": (1, int(LARGE_MIB * scale.share)), "other": (PARTITIONS - 2, OTHER_MIB)}
        began = time.time_ns() // 1_000_000 - LARGE_MIB * MIB // BATCH_BYTES * STAMP_STEP_MS
        counts = {name: mib * MIB // BATCH_BYTES for name, (_, mib) in sizes.items()}
        partitions = {name: count for name, (count, _) in sizes.items()}
        write_topics(broker.data, partitions, lambda name, path, disk: write_log(path, counts[name], disk, began_ms=began))
        cold, warm = [], []
        for _ in range(scale.rounds):
            console.print("starting ...")
            let_go(broker.data)
            cold.append(seconds_to_start(broker))
            small, large = ask_both(broker, counts, began_ms=began, rounds=scale.rounds)
            broker.stop()
            warm.append(seconds_to_start(broker))
            broker.stop()
        total = sum(count * mib for count, mib in sizes.values()) / 1024
        return [
            *(
                figure(
                    f"start, {PARTITIONS:,} partitions, {total:.0f} GiB, after a clean stop, {cache}",
                    "s",
                    ours=starts,
                    target=Target(ours_max=START_SECONDS_MAX),
                )
                for cache, starts in (("cold page cache", cold), ("warm page cache", warm))
            ),
            compare(f"fetch by offset, {sizes['large'][1]:,} MiB", [row[0] for row in large], [row[0] for row in small]),
            compare(f"search by time, {sizes['large'][1]:,} MiB", [row[1] for row in large], [row[1] for row in small]),
        ]


def seconds_to_start(broker: LogbusBroker) -> float:
    before = time.monotonic()
    broker.start()
    return time.monotonic() - before


def let_go(data: Path, drop_caches: Path = DROP_CACHES) -> None:
    """Makes the system drop these files from its caches. Without the right to drop everything this is done file by file: names
    and inodes then stay in memory."""
    os.sync()  # what is not written back cannot be dropped
    try:
        drop_caches.write_text("3\n")
    except OSError:
        for path in data.rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)


def compare(name: str, large: Sequence[float], small: Sequence[float]) -> Figure:
    """The same within a quarter: that much neighbours differ on a machine that does other things too."""
    return figure(name, "ms", ours=large, peer=small, target=Target(ratio_max=1.25), against=f"logbus, {SMALL_MIB} MiB")


class SparseDisk(FileSystem):
    """Writes the head of each batch and leaves a hole for the zeros after it; syncs nothing: the measurement comes later."""

    def write_at(self, file: OpenFile, buffers: Sequence[Buffer], position: int) -> None:
        if file.path.suffix != LOG:
            super().write_at(file, buffers, position)
            return
        for buffer in buffers:
            super().write_at(file, (buffer[:128],), position)
            position += len(buffer)
        os.ftruncate(file.fileno(), position)

    def sync_data(self, file: OpenFile) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


def write_topics(data: Path, partitions: Mapping[str, int], write: Callable[[str, Path, FileSystem], PartitionLog]) -> None:
    """Writes topics of so many partitions as after a clean stop; `write` fills the log of each."""
    disk = SparseDisk()
    directory = LogDirectory.open(data, broker_id=0, filesystem=disk, new_id=uuid.uuid4)
    registry = TopicRegistry(directory, uuid.uuid4)
    logs = {}
    for name, partition_count in partitions.items():
        topic = registry.new(name, partition_count, {})
        registry.plan(topic)
        for index in range(partition_count):
            path = directory.make_partition(name, index, topic.topic_id)
            logs[name, index] = write(name, path, disk)
    registry.write_job()()
    directory.checkpoint_job(logs)()
    directory.close(clean=True)


def write_log(path: Path, batches: int, disk: FileSystem, *, began_ms: int) -> PartitionLog:
    log = PartitionLog.open(path, config=LogConfig(), filesystem=disk, clock=SystemClock(), clean=False, recovery_point=0)
    topic, _, index = path.name.rpartition("-")
    partition = Partition(topic, int(index), uuid.UUID(int=0), log)
    raw = build_batch([NewRecord(timestamp=began_ms, key=b"key", value=bytes(BATCH_BYTES - 200))])
    view, header = memoryview(raw), read_header(raw)
    for number in range(batches):
        timestamp = began_ms + number * STAMP_STEP_MS
        stamp(raw, number, 0)
        raw[27:43] = timestamp.to_bytes(8, "big") * 2  # base and largest timestamp; the client does not check the checksum
        log.append([view], [header._replace(base_offset=number, base_timestamp=timestamp, max_timestamp=timestamp)])
    partition.close()
    return log


def ask_both(
    broker: LogbusBroker, counts: dict[str, int], *, began_ms: int, rounds: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """For the small and the large log, per round: the median milliseconds of a fetch at a random offset and of a search by a
    random time."""
    chance = random.Random(2011)
    # The same places in every round, as many in each log: so only the size of the log differs, not what the page cache holds.
    places = {name: [chance.randrange(counts[name]) for _ in range(ASKED)] for name in ("small", "large")}
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "growth", "fetch.message.max.bytes": 1_000, "queued.min.messages": 1}
    )
    found: dict[str, list[tuple[float, float]]] = {"small": [], "large": []}
    try:
        for _ in range(rounds + 1):
            for name, rows in found.items():
                fetches = sorted(measure(lambda n, name=name: fetch_at(consumer, name, n), places[name]))  # type: ignore[misc]
                searches = sorted(measure(lambda n, name=name: search(consumer, name, n, began_ms), places[name]))  # type: ignore[misc]
                rows.append((fetches[ASKED // 2], searches[ASKED // 2]))
    finally:
        consumer.close()
    return found["small"][1:], found["large"][1:]  # the first round warms both


def measure(question: Callable[[int], None], numbers: Sequence[int]) -> list[float]:
    """How many milliseconds each took."""
    took = []
    for number in numbers:
        before = time.perf_counter()
        question(number)
        took.append((time.perf_counter() - before) * 1000)
    return took


def fetch_at(consumer: Consumer, topic: str, offset: int) -> None:
    consumer.assign([TopicPartition(topic, 0, offset)])
    message = consumer.poll(PATIENCE_SECONDS)
    if message is None or message.error() or message.offset() != offset:
        raise RuntimeError(f"{topic}: asked for offset {offset}, got {message and (message.error() or message.offset())}")


def search(consumer: Consumer, topic: str, number: int, began_ms: int) -> None:
    asked = TopicPartition(topic, 0, began_ms + number * STAMP_STEP_MS - STAMP_STEP_MS // 2)
    (answer,) = consumer.offsets_for_times([asked], timeout=PATIENCE_SECONDS)
    if answer.offset != number:
        raise RuntimeError(f"{topic}: asked for the time before offset {number}, got {answer.offset}")
