"""Other replicas as a test defines them: what the followers of a partition have written and flushed."""

from __future__ import annotations

from logbus_broker.log.partition import Partition
from logbus_broker.protocol.validation import validate_new_batch

from tests.support.engine import Harness, batch


class ScriptedWatermarks:
    """One in-sync follower; it has what `others_have` was called with, and nothing before that."""

    def __init__(self) -> None:
        self.wanted_by: list[Partition] = []
        self._others: dict[str, tuple[int, int]] = {}

    def others_have(self, partition: Partition, *, written: int, flushed: int) -> None:
        self._others[partition.name] = written, flushed

    def written(self, partition: Partition) -> tuple[int, int]:
        written, flushed = self._others.get(partition.name, (0, 0))
        replicated = max(partition.replicated_offset, min(written, partition.end_offset))
        return replicated, max(partition.visible_offset, min(flushed, partition.log.flushed_offset))

    def flushed(self, partition: Partition) -> tuple[int, int]:
        return self.written(partition)

    def flush_requested(self, partition: Partition) -> None:
        self.wanted_by.append(partition)


def append(broker: Harness, partition: Partition, batches: int = 1) -> None:
    """One turn that writes `batches` batches of one record each."""
    byte_count = 0
    for _ in range(batches):
        raw = batch(b"a")
        partition.stage(validate_new_batch(memoryview(raw), message_bytes_max=1 << 20, now_ms=broker.clock.now_ms()))
        byte_count += len(raw)
    partition.write_staged()
    broker.engine.context.high_watermark.written(partition, byte_count)
