"""When a log rolls: its active segment would exceed its size, its age, or what its indexes can hold. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from broker.config.settings import LogConfig
from broker.records.batch import BatchHeader
from broker.storage.segment import Segment

RELATIVE_OFFSET_MAX = (1 << 31) - 1  # what Kafka's index entries can hold


def should_roll(active: Segment, headers: Sequence[BatchHeader], size: int, *, config: LogConfig, age_ms: int) -> bool:
    """Whether the batches with these headers, `size` bytes in total, belong in a new segment. They all go into one, so a turn
    larger than a segment makes a segment larger than configured; `age_ms` is the age of the active one by the clock."""
    if not active.size:
        return False
    return (
        active.size + size > config.segment_bytes
        or active.index.is_full
        or _age_of_records_ms(active, headers[0], age_ms) > age_ms_max(config)
        or headers[-1].last_offset - active.base_offset > RELATIVE_OFFSET_MAX
    )


def age_ms_max(config: LogConfig) -> int:
    """How old a segment may become. The active segment is not compacted, so a limit on how long a record waits for compaction
    limits the segment's age."""
    return min(config.roll_ms, config.compaction_lag_ms_max) if config.is_compacted else config.roll_ms


def _age_of_records_ms(active: Segment, header: BatchHeader, age_ms: int) -> int:
    """As in Kafka, by the records' own timestamps if they have any, so that historical data sent today is split into segments
    that retention by time can delete one by one."""
    if active.first_timestamp is not None and active.first_timestamp >= 0 <= header.max_timestamp:
        return header.max_timestamp - active.first_timestamp
    return age_ms
