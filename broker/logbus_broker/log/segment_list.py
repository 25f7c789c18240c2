"""The segments of one partition in order of offset: found by binary search over their base offsets (the paper, section 3.1), and
searched by time.

Only the last one is written to. Of the sealed ones the few most recently read stay warm, with their file open and their indexes
in memory, unless their descriptors are needed elsewhere (`OpenFiles`). The others cost one object each, however long the log is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from logbus_broker.errors import CorruptMessage, InvalidRecord, StorageError
from logbus_broker.filesystem import FileSlice, OpenFiles
from logbus_broker.log.segment import Segment
from logbus_broker.protocol.batch import BATCH_HEADER_BYTES, NO_TIMESTAMP, BatchHeader, read_header
from logbus_broker.protocol.records import read_timestamps

# One for each consumer that reads old data at the same time. The indexes of a full segment take 5 MiB.
WARM_SEGMENTS_MAX = 4
_TAILS_MAX = 8
_EMPTY_SEGMENTS_PASSED_MAX = 64  # per read: each is a file to open, and the next compaction pass merges them

SegmentPosition = tuple[Segment, int]  # a position in the log's files


class SegmentList:
    """Never empty, except for a log that is offline."""

    __slots__ = ("_bases", "_open_files", "_segments", "_tails", "_tails_of", "_warm")

    def __init__(self, segments: list[Segment], open_files: OpenFiles) -> None:
        for segment, following in pairwise(segments):
            segment.end_offset = following.base_offset
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._warm: deque[Segment] = deque()
        self._open_files = open_files
        # Where recent reads ended, with their positions in `_tails_of`: a follower or consumer that keeps up asks next for what
        # was written after one of them.
        self._tails: dict[int, int] = {}
        self._tails_of: Segment | None = None

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
        for segment in self._segments:
            if segment.end_offset is None or segment.modified_ms >= oldest_ms:
                return segment
        return self.active

    def walk_from(self, offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
        """Segment, position and header of every batch from the one that contains `offset` to the end."""
        for segment in self.holding_and_after(offset):
            try:
                first = segment.batch_at(offset) if segment.base_offset < offset else (0, 0)
                for position, header in segment.headers(first[0]) if first else ():
                    yield segment, position, header
            finally:  # also if the caller stops early
                if segment.end_offset is not None:
                    segment.forget()

    def locate(
        self, offset: int, max_bytes: int, upto_offset: int, upto_position: SegmentPosition | None, end_offset: int
    ) -> FileSlice:
        """See `PartitionLog.locate`; `offset` is below `upto_offset`, and the log ends at `end_offset`."""
        segment = self.holding(offset)
        try:
            if segment is self._tails_of and (position := self._tails.get(offset)) is not None:
                available = _readable_bytes(segment, upto_offset, upto_position, end_offset) - position
                if 0 < available <= max_bytes:
                    self._note_tail(segment, upto_offset, position + available)
                    return FileSlice(segment.file, position, available)
            batch = segment.batch_at(offset)
            hops = 0
            while segment.end_offset is not None and (
                batch is None  # compaction has left nothing after `offset` there
                or (_is_last_and_empty(batch, segment) and segment.end_offset < upto_offset and hops < _EMPTY_SEGMENTS_PASSED_MAX)
            ):
                segment = self.holding(segment.end_offset)
                batch = segment.batch_at(offset)
                hops += 1
            available = _readable_bytes(segment, upto_offset, upto_position, end_offset) - (batch[0] if batch else 0)
            if batch is None or available <= 0:
                return FileSlice(segment.file, 0, 0)
            position, size = batch
            if available <= max_bytes:
                self._note_tail(segment, upto_offset, position + available)
            length = max(min(max_bytes, available), size)
            is_cut = length < available or (segment.end_offset is not None and segment.end_offset < upto_offset)
            return FileSlice(segment.file, position, length, is_cut)
        except OSError as error:
            raise StorageError(f"cannot read {segment.directory}: {error}") from error

    def batch_end(self, offset: int) -> tuple[int, SegmentPosition]:
        """The offset after the batch that contains `offset`, or after the next one if compaction has left a gap there; and where
        that is. So whoever reads up to there from an offset before it gets at least one batch."""
        segment = self.holding(offset)
        try:
            while (batch := segment.batch_at(offset)) is None and segment.end_offset is not None:
                segment = self.holding(segment.end_offset)
            if batch is None:
                return offset + 1, (segment, segment.size)
            position, size = batch
            return read_header(segment.read(position, BATCH_HEADER_BYTES)).next_offset, (segment, position + size)
        except OSError as error:
            raise StorageError(f"cannot read {segment.directory}: {error}") from error

    def _note_tail(self, segment: Segment, offset: int, position: int) -> None:
        """Everything before `offset` ends at this position, so what follows begins here, if it is in this segment. Noted only for
        the active segment: sealed ones are compacted, and no reader waits at their ends."""
        if segment.end_offset is not None:
            return
        if segment is not self._tails_of:
            self._tails_of, self._tails = segment, {}
        elif len(self._tails) >= _TAILS_MAX:
            del self._tails[next(iter(self._tails))]
        self._tails[offset] = position

    def add(self, segment: Segment) -> None:
        """Seal the active one; `segment` takes its place."""
        self.active.end_offset, self.active.is_durable = segment.base_offset, False
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def exchange(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace the adjacent segments `old` with `new`, the result of compacting them."""
        first = self._segments.index(old[0])
        end = first + len(old)
        assert self._segments[first:end] == list(old), "nothing else changes sealed segments meanwhile"
        new.end_offset = old[-1].end_offset
        for segment in old:
            segment.replacement = new
            self._cool(segment)
        self._segments[first:end] = [new]
        self._bases[first:end] = [new.base_offset]

    def cut(self, kept: int, tail: Sequence[Segment]) -> None:
        """Only the first `kept` stay, now followed by `tail`."""
        self._tails_of = None
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
        self._tails_of = None
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


def _readable_bytes(segment: Segment, upto_offset: int, upto_position: SegmentPosition | None, end_offset: int) -> int:
    """How many bytes of `segment`, which begins before `upto_offset`, are before it. The log ends at `end_offset`."""
    if upto_offset >= (end_offset if segment.end_offset is None else segment.end_offset):
        return segment.size
    if upto_position is not None and segment is upto_position[0]:
        return upto_position[1]
    batch = segment.batch_at(upto_offset)
    return batch[0] if batch else segment.size


def _is_last_and_empty(batch: tuple[int, int], segment: Segment) -> bool:
    """Whether this is the segment's last batch and has no records: compaction keeps it to show how far the segment reached
    (compaction.py). At the end of the log a consumer gets it, to advance its position. But librdkafka takes several such answers
    in a row for a record larger than its fetch size, and reports that: so a read skips ahead to the next batch with records."""
    position, size = batch
    return size == BATCH_HEADER_BYTES and position + size == segment.size


_Record = tuple[int, int]  # its offset and timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSearch:
    """Finds the first record, by offset, whose timestamp is at or after `timestamp_ms`: exactly, whatever the order of the
    timestamps, among the offsets from `start_offset` up to but excluding `upto_offset`.

    First the first segment, then the first batch whose largest timestamp reaches that time; then the records of that batch,
    decompressed, since its header does not show which of them does. If none does (a client overstated the largest), the search
    continues after it. It reads cold files and decompresses, so it runs off the loop, with its own reads; everything it needs
    from the loop was noted when it was created."""

    segments: Sequence[Segment]
    timestamp_ms: int
    start_offset: int
    upto_offset: int

    @property
    def is_behind_all(self) -> bool:
        """Whether every record is older, judging from memory without reading a file: then there is nothing to search for.
        False if that is not known. The newest segment nearly always decides, so it is checked first."""
        timestamps = (segment.known_largest_timestamp for segment in reversed(self.segments))
        return all(largest is not None and largest < self.timestamp_ms for largest in timestamps)

    def run(self) -> _Record | None:
        """Offset and timestamp of the record, or None if there is none; any thread."""
        return self._run_on_current_segments(TimeSearch._first)

    def run_for_max(self) -> _Record | None:
        """Offset and timestamp of the first record with the largest timestamp of all, whatever `timestamp_ms` is; any thread.
        If the timestamp in the indexes is not among these offsets, every batch whose header claims a larger one is read."""
        return self._run_on_current_segments(TimeSearch._largest)

    def _run_on_current_segments(self, search: Callable[[TimeSearch], _Record | None]) -> _Record | None:
        """Compaction may replace these segments at any time with others under the same names, which do not match the old sizes
        and indexes. It sets `replacement` before it reuses the names: so a result, or a failure, counts only if nothing had been
        replaced by the end of the search."""
        while True:
            segments = tuple(dict.fromkeys(map(_current, self.segments)))
            record, failure = None, None
            try:
                record = search(replace(self, segments=segments))
            except (OSError, StorageError, CorruptMessage, InvalidRecord) as error:
                failure = error
            if any(segment.replacement is not None for segment in segments):
                continue
            if isinstance(failure, OSError):
                raise StorageError(f"cannot search {segments[0].directory}: {failure}") from failure
            if failure is not None:
                raise failure
            return record

    def _first(self) -> _Record | None:
        for segment in self.segments:
            if segment.base_offset >= self.upto_offset:
                return None
            try:
                record = self._search(segment)
            except FileNotFoundError:
                continue  # retention has deleted it: its records are below the log start offset
            if record:
                return record
        return None

    def _largest(self) -> _Record | None:
        largest = max(segment.largest_timestamp for segment in self.segments)
        record = replace(self, timestamp_ms=largest)._first()
        return record if record or largest == NO_TIMESTAMP else self._largest_by_reading()

    def _largest_by_reading(self) -> _Record | None:
        best: _Record | None = None
        for segment in self.segments:
            for position, header in segment.headers():
                if header.base_offset >= self.upto_offset:
                    return best
                if header.max_timestamp <= (best[1] if best else NO_TIMESTAMP):
                    continue
                for offset, timestamp in _timestamps(segment, position, header):
                    if offset >= self.start_offset and timestamp > (best[1] if best else NO_TIMESTAMP):
                        best = offset, timestamp
        return best

    def _search(self, segment: Segment) -> _Record | None:
        if segment.largest_timestamp < self.timestamp_ms:
            return None
        was_cold = not segment.is_warm
        try:
            return self._search_batches(segment)
        finally:
            if was_cold:
                segment.forget()

    def _search_batches(self, segment: Segment) -> _Record | None:
        reaching = segment.batch_reaching(self.timestamp_ms)
        for position, header in segment.headers(reaching[0]) if reaching else ():
            if header.base_offset >= self.upto_offset:
                return None
            reaches = header.max_timestamp >= self.timestamp_ms and header.next_offset > self.start_offset
            if reaches and (record := self._search_batch(segment, position, header)):
                return record
        return None

    def _search_batch(self, segment: Segment, position: int, header: BatchHeader) -> _Record | None:
        is_whole = header.record_count == header.last_offset_delta + 1
        if header.timestamp_type_is_append and is_whole:
            return max(header.base_offset, self.start_offset), header.max_timestamp
        for offset, timestamp in _timestamps(segment, position, header):
            if timestamp >= self.timestamp_ms and offset >= self.start_offset:
                return offset, timestamp
        return None


def _current(segment: Segment) -> Segment:
    while segment.replacement is not None:
        segment = segment.replacement
    return segment


def _timestamps(segment: Segment, position: int, header: BatchHeader) -> Iterator[_Record]:
    try:
        yield from read_timestamps(segment.read(position, header.size))
    except (InvalidRecord, CorruptMessage) as error:
        raise CorruptMessage(
            f"the batch at offset {header.base_offset} in {segment.directory} cannot be read: {error}"
        ) from error
