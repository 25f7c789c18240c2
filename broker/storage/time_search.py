"""Finds the first record, by offset, whose timestamp is at or after a given time: exactly, whatever the order of the timestamps.

First the first segment, then the first batch whose largest timestamp reaches that time; then the records of that batch,
decompressed, since its header does not show which of them does. If none does (a client overstated the largest), the search
continues after it. It reads cold files and decompresses, so it runs off the loop, with its own reads; everything it needs from
the loop was noted when it was created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from broker.errors import CorruptMessage, InvalidRecord, StorageError
from broker.records.batch import NO_TIMESTAMP, BatchHeader
from broker.records.walk import read_timestamps
from broker.storage.segment import Segment

Search = Callable[["TimeSearch"], tuple[int, int] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSearch:
    """A search for `timestamp_ms` among the offsets from `start_offset` up to but excluding `upto_offset`."""

    segments: Sequence[Segment]
    timestamp_ms: int
    start_offset: int
    upto_offset: int

    @property
    def is_behind_all(self) -> bool:
        """Whether every record is older, judging from memory without reading a file: then there is nothing to search for.
        False if that is not known. The newest segment nearly always decides, so it is checked first."""
        known = (segment.known_largest_timestamp for segment in reversed(self.segments))
        return all(largest is not None and largest < self.timestamp_ms for largest in known)

    def run(self) -> tuple[int, int] | None:
        """Offset and timestamp of the record, or None if there is none; any thread."""
        return self._run_on_what_there_is(TimeSearch._first)

    def run_for_max(self) -> tuple[int, int] | None:
        """Offset and timestamp of the first record with the largest timestamp of all, whatever `timestamp_ms` is; any thread.
        If the timestamp in the indexes is not among these offsets, every batch whose header claims a larger one is read."""
        return self._run_on_what_there_is(TimeSearch._largest)

    def _run_on_what_there_is(self, search: Search) -> tuple[int, int] | None:
        """Compaction may replace these segments at any time with others under the same names, which do not match the old sizes
        and indexes. It sets `replacement` before it reuses the names: so a result, or a failure, counts only if nothing had been
        replaced by the end of the search."""
        while True:
            segments = tuple(dict.fromkeys(map(_as_it_is_now, self.segments)))
            found, failure = None, None
            try:
                found = search(replace(self, segments=segments))
            except (OSError, StorageError, CorruptMessage, InvalidRecord) as error:
                failure = error
            if any(segment.replacement is not None for segment in segments):
                continue
            if isinstance(failure, OSError):
                raise StorageError(f"cannot search {segments[0].directory}: {failure}") from failure
            if failure is not None:
                raise failure
            return found

    def _first(self) -> tuple[int, int] | None:
        for segment in self.segments:
            if segment.base_offset >= self.upto_offset:
                return None
            try:
                found = self._search(segment)
            except FileNotFoundError:
                continue  # retention has deleted it: its records are below the log start offset
            if found:
                return found
        return None

    def _largest(self) -> tuple[int, int] | None:
        largest = max(segment.largest_timestamp for segment in self.segments)
        found = replace(self, timestamp_ms=largest)._first()
        return found if found or largest == NO_TIMESTAMP else self._largest_by_reading()

    def _largest_by_reading(self) -> tuple[int, int] | None:
        best: tuple[int, int] | None = None
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

    def _search(self, segment: Segment) -> tuple[int, int] | None:
        if segment.largest_timestamp < self.timestamp_ms:
            return None
        was_cold = not segment.is_warm
        try:
            return self._search_batches(segment)
        finally:
            if was_cold:
                segment.forget()

    def _search_batches(self, segment: Segment) -> tuple[int, int] | None:
        reaching = segment.batch_reaching(self.timestamp_ms)
        for position, header in segment.headers(reaching[0]) if reaching else ():
            if header.base_offset >= self.upto_offset:
                return None
            if header.max_timestamp >= self.timestamp_ms and header.next_offset > self.start_offset:
                found = self._search_batch(segment, position, header)
                if found:
                    return found
        return None

    def _search_batch(self, segment: Segment, position: int, header: BatchHeader) -> tuple[int, int] | None:
        is_whole = header.record_count == header.last_offset_delta + 1
        if header.timestamp_type_is_append and is_whole:
            return max(header.base_offset, self.start_offset), header.max_timestamp
        for offset, timestamp in _timestamps(segment, position, header):
            if timestamp >= self.timestamp_ms and offset >= self.start_offset:
                return offset, timestamp
        return None


def _as_it_is_now(segment: Segment) -> Segment:
    while segment.replacement is not None:
        segment = segment.replacement
    return segment


def _timestamps(segment: Segment, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    try:
        yield from read_timestamps(segment.read(position, header.size))
    except (InvalidRecord, CorruptMessage) as error:
        raise CorruptMessage(
            f"the batch at offset {header.base_offset} in {segment.directory} cannot be read: {error}"
        ) from error
