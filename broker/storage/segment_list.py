"""The segments of one partition in order of offset: found by binary search over their base offsets (the paper, section 3.1).

Only the last one is written to. Of the sealed ones the few most recently read stay warm, with their file open and their indexes
in memory, unless their descriptors are needed elsewhere (open_files.py). The others cost one object each, however long the log
is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise

from broker.records.batch import BatchHeader
from broker.storage.open_files import OpenFiles
from broker.storage.segment import Segment

# One for each consumer that reads old data at the same time. The indexes of a full segment take 5 MiB.
WARM_SEGMENTS_MAX = 4


class SegmentList:
    """Never empty, except for a log that is offline."""

    __slots__ = ("_bases", "_open_files", "_segments", "_warm")

    def __init__(self, segments: list[Segment], open_files: OpenFiles) -> None:
        for segment, following in pairwise(segments):
            segment.end_offset = following.base_offset
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._warm: deque[Segment] = deque()
        self._open_files = open_files

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def active(self) -> Segment:
        """The one being written to."""
        return self._segments[-1]

    @property
    def first(self) -> Segment:
        return self._segments[0]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def holding(self, offset: int) -> Segment:
        """The segment whose range contains `offset`; it is kept warm."""
        segment = self._segments[bisect_right(self._bases, offset) - 1]
        if segment.end_offset is not None:
            self._keep_warm(segment)
        return segment

    def holding_and_after(self, offset: int) -> tuple[Segment, ...]:
        """The segment that contains `offset` and those after it, as they are now; all of them if it is before the first."""
        return tuple(self._segments[max(bisect_right(self._bases, offset) - 1, 0) :])

    def first_written_since(self, oldest_ms: int) -> Segment:
        """The oldest one whose file was modified at or after `oldest_ms`; the active one if none was."""
        return next((one for one in self._segments if one.end_offset is None or one.modified_ms >= oldest_ms), self.active)

    def walk_from(self, offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
        """Segment, position and header of every batch from the one that contains `offset` to the end."""
        for segment in self.holding_and_after(offset):
            try:
                place = segment.batch_at(offset) if segment.base_offset < offset else (0, 0)
                for position, header in segment.headers(place[0]) if place else ():
                    yield segment, position, header
            finally:  # also if the caller stops early
                if segment.end_offset is not None:
                    segment.forget()

    def add(self, segment: Segment) -> None:
        """Seal the active one; `segment` takes its place."""
        self.active.end_offset, self.active.is_durable = segment.base_offset, False
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def exchange(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace the neighbours `old` with `new`, which compaction has made of them."""
        first = self._segments.index(old[0])
        behind = first + len(old)
        assert self._segments[first:behind] == list(old), "nothing else changes sealed segments meanwhile"
        new.end_offset = old[-1].end_offset
        for segment in old:
            segment.replacement = new
            self._cool(segment)
        self._segments[first:behind] = [new]
        self._bases[first:behind] = [new.base_offset]

    def cut(self, kept: int, tail: Sequence[Segment]) -> None:
        """Only the first `kept` stay, now followed by `tail`."""
        for segment in self._segments[kept:]:
            segment.is_durable = False  # its file names are no longer its own: no indexes are saved under them
            self._cool(segment)
        self._segments[kept:] = tail
        self._bases[kept:] = [segment.base_offset for segment in tail]
        for segment, following in pairwise(self._segments[max(kept - 1, 0) :]):
            segment.end_offset = following.base_offset

    def drop_first(self) -> None:
        segment = self._segments.pop(0)
        segment.is_durable = False
        del self._bases[0]
        self._cool(segment)

    def clear(self) -> None:
        for segment in self._segments:
            segment.is_durable = False  # its directory may become another log's: nothing more is written to it
            self._cool(segment)
        self._segments, self._bases = [], []

    def _keep_warm(self, segment: Segment) -> None:
        self._open_files.keep(segment)
        if self._warm and self._warm[-1] is segment:
            return
        if segment in self._warm:
            self._warm.remove(segment)
        self._warm.append(segment)
        if len(self._warm) > WARM_SEGMENTS_MAX:
            coldest = self._warm.popleft()
            self._open_files.drop(coldest)
            coldest.forget()

    def _cool(self, segment: Segment) -> None:
        self._open_files.drop(segment)
        if segment in self._warm:
            self._warm.remove(segment)
