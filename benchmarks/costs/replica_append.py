"""What it costs a follower to store what its leader sends: each batch checked, written, indexed and recorded, in this process.

No network and no flush: the bytes are in memory as a fetch response brings them, so this is the part of a follower's work that no
other way of fetching could save. A response brings two batches, as it did when the cluster's default load was measured, or as
many as fit into one.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from logbus_broker.clock import SystemClock
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.partition import Partition
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.log.thread_pool import SystemThreadPool
from logbus_broker.protocol.batch import stamp
from logbus_broker.protocol.records import NewRecord, build_batch
from logbus_broker.replication.replicas import FollowedPartition, FollowerHooks
from logbus_broker.settings import LogConfig
from rich.console import Console

from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import RECORD_BYTES, Scale

RECORDS = 1_000_000
BATCH_RECORDS = 77  # as many as fit into the default batch of 16 KiB
ANSWERS = {"two default batches an answer": 2, "full answers": (1 << 20) // (BATCH_RECORDS * (RECORD_BYTES + 10))}
EPOCH = 0
CPU = Target(ours_max=0.2)


def figures(directory: Path, scale: Scale, console: Console) -> Iterator[Figure]:
    records = scale.records(RECORDS)
    costs: dict[str, list[float]] = {name: [] for name in ANSWERS}
    for number in range(scale.rounds):
        for name, batches in ANSWERS.items():
            scale.settle()
            costs[name].append(cpu_per_million(directory / f"{number}-{batches}", records, batches))
            console.print(f"a follower's append, {name}: {costs[name][-1]:.2f} s CPU a million", highlight=False)
    for name, cost in costs.items():
        yield figure(f"a follower's append, {name}: CPU", "s/million", ours=cost, target=CPU)


def cpu_per_million(directory: Path, records: int, batches: int) -> float:
    """Stores at least `records` records, in responses of `batches` batches, in a new log."""
    replica = _replica(directory)
    record = NewRecord(timestamp=time.time_ns() // 1_000_000, value=random.Random(1).randbytes(RECORD_BYTES))
    batch = build_batch([record] * BATCH_RECORDS)
    answer = memoryview(bytearray(bytes(batch) * batches))
    begins = [answer[len(batch) * number :] for number in range(batches)]
    spent = 0.0
    while replica.end_offset < records:
        for number, begin in enumerate(begins):
            stamp(begin, replica.end_offset + number * BATCH_RECORDS, EPOCH)
        began = time.process_time()
        replica.append(answer)
        spent += time.process_time() - began
    return spent * 1e6 / replica.end_offset


def _replica(directory: Path) -> FollowedPartition:
    directory.mkdir(parents=True)
    log = PartitionLog.open(
        directory,
        config=LogConfig(),
        filesystem=FileSystem(),
        clock=SystemClock(),
        clean=True,
        recovery_point=0,
        is_replica=True,
    )
    partition = Partition("copied", 0, uuid.uuid4(), log)
    partition.become_follower(1, EPOCH)
    hooks = FollowerHooks(written=lambda *_: None, want_flush=lambda _: None, offline=lambda _: None)
    return FollowedPartition(partition, thread_pool=SystemThreadPool(1, 1, lambda: None), hooks=hooks)
