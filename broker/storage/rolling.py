"""When a log goes on in a new segment: this one would pass its size, its age, or what its indexes can hold. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from broker.config.settings import LogConfig
from broker.records.batch import BatchHeader
from broker.storage.segment import Segment

RELATIVE_OFFSET_MAX = (1 << 31) - 1  # what an index entry of Kafka's can hold


def should_roll(active: Segment, headers: Sequence[BatchHeader], size: int, *, config: LogConfig, age_ms: int) -> bool:
    """Whether the batches with these headers, `size` bytes together, belong into a new segment. They all go into one, so a turn
    that is larger than a segment makes a segment larger than configured; `age_ms` is how long the active one has been written
    by the clock."""
    if not active.size:
        return False
    return (
        active.size + size > config.segment_bytes
        or active.index.is_full
        or _age_of_records_ms(active, headers[0], age_ms) > age_ms_max(config)
        or headers[-1].last_offset - active.base_offset > RELATIVE_OFFSET_MAX
    )


def age_ms_max(config: LogConfig) -> int:
    """How old a segment may become. What is being written is not compacted, so a bound on how long a record waits for that is a
    bound on the segment's age."""
    return min(config.roll_ms, config.compaction_lag_ms_max) if config.is_compacted else config.roll_ms


def _age_of_records_ms(active: Segment, header: BatchHeader, age_ms: int) -> int:
    """As in Kafka by the records' own time where they have one, so that history sent today is cut into pieces that retention by
    time can delete one by one."""
    if active.first_timestamp is not None and active.first_timestamp >= 0 <= header.max_timestamp:
        return header.max_timestamp - active.first_timestamp
    return age_ms
