"""Which part of a log may be compacted, and whether it is worth it. Pure except for the timestamps of segments, which are read
from their notes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from broker.config.fields import INT64_MAX
from broker.config.settings import LogConfig
from broker.storage.compaction import CompactionPass
from broker.storage.filesystem import FileSystem
from broker.storage.key_map import KeyMap
from broker.storage.partition_log import PartitionLog
from broker.storage.segment import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirt:
    """What a pass would find."""

    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool  # a record has waited for longer than max.compaction.lag.ms

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)

    def wants_cleaning(self, config: LogConfig) -> bool:
        return self.dirty_bytes > 0 and (self.is_overdue or self.ratio > config.min_cleanable_dirty_ratio)


def compactable_segments(
    segments: Iterable[Segment], unflushed: Collection[Segment], *, config: LogConfig, now_ms: int, limit_offset: int
) -> Iterator[Segment]:
    """The leading segments that are sealed, on disk, not beyond `limit_offset`, and not younger than
    min.compaction.lag.ms."""
    for segment in segments:
        if segment.end_offset is None or segment in unflushed or segment.end_offset > limit_offset:
            return
        if config.compaction_lag_ms_min > 0 and segment.largest_timestamp > now_ms - config.compaction_lag_ms_min:
            return
        yield segment


def measure_dirt(segments: Sequence[Segment], first_dirty_offset: int, *, config: LogConfig, now_ms: int) -> Dirt:
    """The dirt in the segments that may be compacted."""
    dirty = [segment for segment in segments if (segment.end_offset or 0) > first_dirty_offset]
    return Dirt(
        clean_bytes=sum(segment.size for segment in segments) - sum(segment.size for segment in dirty),
        dirty_bytes=sum(segment.size for segment in dirty),
        is_overdue=bool(dirty) and _is_overdue(dirty[0], config.compaction_lag_ms_max, now_ms),
    )


def _is_overdue(segment: Segment, lag_ms_max: int, now_ms: int) -> bool:
    if lag_ms_max == INT64_MAX:
        return False
    first = segment.first_header()
    return first is not None and now_ms - first.max_timestamp > lag_ms_max


def begin_compaction(
    log: PartitionLog,
    first_dirty_offset: int,
    *,
    filesystem: FileSystem,
    producer_offsets: frozenset[int],
    keys: KeyMap,
    now_ms: int,
    limit_offset: int | None = None,
) -> CompactionPass | None:
    """A pass over what may be compacted, or None if it is not worth it yet, or if the log is being truncated or waits for that:
    what may still be truncated must not be compacted, so nothing beyond `limit_offset`, the end of what consumers may see, is;
    without one, nothing unflushed. Nothing else changes the log's sealed segments until `log.end_compaction`, which must be
    called however the pass ends; if it leaves an exchange unfinished, the next pass begins by finishing it."""
    if log.is_being_cut or (log.wants_quiet and log.unfinished_exchange is None):
        return None
    limit_offset = log.flushed_offset if limit_offset is None else limit_offset
    segments = tuple(
        compactable_segments(log.segments, log.unflushed, config=log.config, now_ms=now_ms, limit_offset=limit_offset)
    )
    dirt = measure_dirt(segments, first_dirty_offset, config=log.config, now_ms=now_ms)
    if not dirt.wants_cleaning(log.config) and log.unfinished_exchange is None:
        return None
    directory = filesystem.pin(log.directory)
    log.is_compacting = True
    return CompactionPass(
        filesystem=filesystem,
        directory=directory,
        segments=segments,
        first_dirty_offset=max(first_dirty_offset, log.log_start_offset),
        producer_offsets=producer_offsets,
        epoch_starts=log.epochs.written.starts(),
        config=log.config,
        now_ms=now_ms,
        keys=keys,
        unfinished=log.unfinished_exchange,
    )
