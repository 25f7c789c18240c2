"""Which old segments may be deleted: too old, too many bytes, or entirely below the log start offset.

The active segment always stays. If all of it is too old it is sealed, as in Kafka, and deleted in the next round: so a topic
that is no longer written to becomes empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from broker.config.settings import LogConfig
from broker.storage.partition_log import PartitionLog
from broker.storage.segment import Segment


def apply_retention(log: PartitionLog, now_ms: int, *, segments_max: int | None = None, limit_offset: int | None = None) -> int:
    """Delete the old segments that the configuration does not keep, at most `segments_max` of them; returns how many. Those that
    reach beyond `limit_offset`, the end of what consumers may see, stay; without one, those that are not flushed. While a log
    is being compacted or truncated, its segments must not change: nothing is deleted until later."""
    log.require_online()
    if log.is_compacting or log.is_being_cut:
        return 0
    limit_offset = log.flushed_offset if limit_offset is None else limit_offset
    deletable = expendable_segments(
        tuple(log.segments), config=log.config, log_start_offset=log.log_start_offset, size_bytes=log.size_bytes, now_ms=now_ms
    )
    count = 0
    for segment in islice(deletable, segments_max):
        if segment in log.unflushed or (segment.end_offset or 0) > limit_offset:
            return count
        log.drop_first()
        count += 1
    active = log.segments.active
    if len(log.segments) == 1 and active.size and log.config.is_trimmed and is_expired(active, log.config.retention_ms, now_ms):
        log.roll()
    return count


def expendable_segments(
    segments: Iterable[Segment], *, config: LogConfig, log_start_offset: int, size_bytes: int, now_ms: int
) -> Iterator[Segment]:
    """The oldest segments, in order, up to the first that must stay. The active one always stays."""
    excess_bytes = size_bytes - config.retention_bytes if config.retention_bytes >= 0 and config.is_trimmed else 0
    for segment in segments:
        if segment.end_offset is None:
            return
        is_before_start = segment.end_offset <= log_start_offset
        is_too_old = config.is_trimmed and is_expired(segment, config.retention_ms, now_ms)
        if not (is_before_start or excess_bytes >= segment.size > 0 or is_too_old):
            return
        yield segment
        excess_bytes -= segment.size


def is_expired(segment: Segment, retention_ms: int, now_ms: int) -> bool:
    """Whether the newest record is older than `retention_ms`. A segment without timestamps, or with one from the future, which
    would keep it forever, is as old as its file."""
    if retention_ms < 0:
        return False
    youngest_ms = segment.largest_timestamp
    if not 0 <= youngest_ms <= now_ms:
        youngest_ms = segment.modified_ms
    return now_ms - youngest_ms > retention_ms
