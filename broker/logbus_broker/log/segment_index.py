"""The sparse indexes of a segment: for a batch every few KiB, where it is in the file, and how the largest timestamp grew.

Entries are Kafka's, big-endian and ascending, and the objects hold them in exactly that form: saving is one write, loading one
read, and a search unpacks only the few entries it looks at. An entry is only where to start reading: the reader checks it
against the batch it finds there, so a wrong file costs time and never gives a wrong answer.

The indexes of the active segment live in memory only. They are saved when the segment is sealed or closed cleanly, with a
small note next to them: the length of the log they describe and the checksums of both files. Loaded indexes are trusted only if
the note matches, so one that is missing, truncated, damaged or outdated is detected at once and rebuilt from the log
(`Segment.index`). From then on this process trusts the files, and searches them where they are (`StoredIndex`).
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import ClassVar, NamedTuple, Self

from logbus_broker.filesystem import FileSystem
from logbus_broker.protocol.batch import LENGTH_END, NO_TIMESTAMP, BatchHeader, Buffer, crc32c

OFFSET_ENTRY = Struct(">II")  # last offset of a batch, relative to the segment's base, and the batch's position
_TIME_ENTRY = Struct(">qI")  # largest timestamp so far, and the relative last offset of the batch that contains it
_OFFSET_ENTRY_BYTES = OFFSET_ENTRY.size
OFFSET_INDEX_BYTES_MAX = 10 << 20  # Kafka's segment.index.bytes: a fuller index rolls the segment
RELATIVE_OFFSET_MAX = (1 << 31) - 1  # what Kafka's entries can hold
_NOTE_VERSION = 0

_GUESSES = 4  # then binary search: offsets may be distributed in any way
_unpack_offset_entry = OFFSET_ENTRY.unpack_from


def reaches(headers: Sequence[BatchHeader], start: int) -> Iterator[Sequence[BatchHeader]]:
    """Runs of batches whose relative offsets fit one segment's indexes: a single run, unless the gaps are huge. The log ends at
    `start`."""
    while headers:
        count = max(sum(header.last_offset - start <= RELATIVE_OFFSET_MAX for header in headers), 1)
        yield headers[:count]
        start, headers = headers[count - 1].next_offset, headers[count:]


class _Entries:
    """Entries of one fixed size; they are added at the end only."""

    __slots__ = ("data",)
    ENTRY: ClassVar[Struct]
    OFFSET_FIELD: ClassVar[int]  # which of an entry's two numbers is the relative offset

    def __init__(self, data: Buffer = b"") -> None:
        self.data = bytearray(data)

    def __len__(self) -> int:
        return len(self.data) // self.ENTRY.size

    def entry(self, number: int) -> tuple[int, int]:
        """Entry `number` from 0."""
        key, value = self.ENTRY.unpack_from(self.data, number * self.ENTRY.size)
        return key, value

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return map(self.entry, range(len(self)))

    def last(self) -> tuple[int, int] | None:
        return self.entry(len(self) - 1) if self.data else None

    def upto(self, relative_offset: int) -> Self:
        """A copy without the entries of later batches."""
        count = bisect_right(range(len(self)), relative_offset, key=lambda number: self.entry(number)[self.OFFSET_FIELD])
        return type(self)(self.data[: count * self.ENTRY.size])

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry whose first number is at most `key`; None: start at the beginning of the segment."""
        count = bisect_right(range(len(self)), key, key=lambda number: self.entry(number)[0])
        return self.entry(count - 1) if count else None


class OffsetIndex(_Entries):
    """Ascending (relative last offset, position) pairs."""

    __slots__ = ()
    ENTRY, OFFSET_FIELD = OFFSET_ENTRY, 0

    def append(self, relative_offset: int, position: int) -> None:
        self.data += OFFSET_ENTRY.pack(relative_offset, position)

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry whose batch ends at or before the relative offset `key`."""
        count = len(self.data) // _OFFSET_ENTRY_BYTES
        if not count or key < 0:
            return None
        last: tuple[int, int] = _unpack_offset_entry(self.data, (count - 1) * _OFFSET_ENTRY_BYTES)
        if key >= last[0]:  # consumers mostly read at the end
            return last
        # A topic's batches are much alike, so an entry's number is nearly proportional to its offset. Measured: a binary search
        # alone took 30,000 instructions among 300 entries and 55,000 among 65,000, half the cost of such a fetch.
        low, low_offset, high, high_offset = 0, 0, count - 1, last[0]  # the entry sought is before `high`, which is beyond it
        for _ in range(_GUESSES):
            guess = low + (high - low) * (key - low_offset) // (high_offset - low_offset)
            (offset, _) = _unpack_offset_entry(self.data, guess * _OFFSET_ENTRY_BYTES)
            if offset <= key:
                low, low_offset = guess + 1, offset
            else:
                high, high_offset = guess, offset
            if low == high:
                break
        else:
            low = bisect_right(
                range(count), key, low, high, key=lambda number: _unpack_offset_entry(self.data, number * _OFFSET_ENTRY_BYTES)[0]
            )
        return self.entry(low - 1) if low else None


class TimeIndex(_Entries):
    """Strictly ascending (timestamp, relative last offset of its batch) pairs. Every record before an entry's batch is older than
    its timestamp, so a search for T begins at the last entry not above T. A sealed segment's last entry is its largest
    timestamp."""

    __slots__ = ("_newest",)
    ENTRY, OFFSET_FIELD = _TIME_ENTRY, 1

    def __init__(self, data: Buffer = b"") -> None:
        super().__init__(data)
        self._newest = (self.last() or (NO_TIMESTAMP,))[0]

    def maybe_append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry unless the largest timestamp has not grown since the last one."""
        if timestamp > self._newest:
            self.data += _TIME_ENTRY.pack(timestamp, relative_offset)
            self._newest = timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexNote:
    """What is written next to saved indexes so that they can be verified later."""

    log_bytes: int
    largest_timestamp: int
    offsets_checksum: int
    times_checksum: int

    def encode(self) -> bytes:
        fields = {
            "version": _NOTE_VERSION,
            "log_bytes": self.log_bytes,
            "largest_timestamp": self.largest_timestamp,
            "index_crc32c": self.offsets_checksum,
            "timeindex_crc32c": self.times_checksum,
        }
        return json.dumps({**fields, "note_crc32c": _checksum(fields)}).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> IndexNote | None:
        """The note, or None if it is damaged or of a version that this one cannot read."""
        try:
            fields = json.loads(data)
            if fields.pop("note_crc32c") != _checksum(fields) or fields["version"] != _NOTE_VERSION:
                return None
            return cls(
                log_bytes=fields["log_bytes"],
                largest_timestamp=fields["largest_timestamp"],
                offsets_checksum=fields["index_crc32c"],
                times_checksum=fields["timeindex_crc32c"],
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def _checksum(fields: dict[str, int]) -> int:
    return crc32c(json.dumps(fields, sort_keys=True).encode())


class SegmentIndex:
    """The offset index and the time index of one segment, and the state needed to extend them."""

    __slots__ = (
        "_bytes_since_entry",
        "base_offset",
        "interval_bytes",
        "largest_relative_offset",
        "largest_timestamp",
        "offsets",
        "times",
    )

    def __init__(self, *, base_offset: int, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self.offsets = OffsetIndex()
        self.times = TimeIndex()
        self.largest_timestamp = NO_TIMESTAMP
        self.largest_relative_offset = 0
        self._bytes_since_entry = 0

    def observe(self, position: int, header: BatchHeader) -> None:
        """Account for the next batch of the segment, which begins at `position`."""
        last_offset = header.base_offset + header.last_offset_delta
        self.observe_batch(position, header.length + LENGTH_END, last_offset, header.max_timestamp)

    def observe_batch(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """The same for a caller that has these numbers but no header."""
        if max_timestamp > self.largest_timestamp:
            self.largest_timestamp = max_timestamp
            self.largest_relative_offset = last_offset - self.base_offset
        if self._bytes_since_entry > self.interval_bytes:
            self.offsets.append(last_offset - self.base_offset, position)
            self.times.maybe_append(self.largest_timestamp, self.largest_relative_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size

    def complete(self) -> None:
        """Make the largest timestamp the last entry of the time index; called before the indexes are saved."""
        self.times.maybe_append(self.largest_timestamp, self.largest_relative_offset)

    def before(self, relative_offset: int) -> tuple[SegmentIndex, int]:
        """Indexes of the batches that end before `relative_offset`, as far as there are entries, and the position from which the
        rest of these batches must be observed again. Any thread, while nothing is observed here."""
        kept = SegmentIndex(base_offset=self.base_offset, interval_bytes=self.interval_bytes)
        entry = self.offsets.floor(relative_offset - 1)
        if entry is None:
            return kept, 0
        last_offset, position = entry
        kept.offsets, kept.times = self.offsets.upto(last_offset), self.times.upto(last_offset)
        kept.largest_timestamp, kept.largest_relative_offset = kept.times.last() or (NO_TIMESTAMP, 0)
        return kept, position

    def note(self, log_bytes: int) -> IndexNote:
        """The note to write next to these indexes, for a log of `log_bytes`."""
        return IndexNote(
            log_bytes=log_bytes,
            largest_timestamp=self.largest_timestamp,
            offsets_checksum=crc32c(self.offsets.data),
            times_checksum=crc32c(self.times.data),
        )

    @classmethod
    def load(cls, *, base_offset: int, interval_bytes: int, offsets: bytes, times: bytes, note: IndexNote) -> SegmentIndex | None:
        """Saved indexes, or None if they do not match `note`."""
        if crc32c(offsets) != note.offsets_checksum or crc32c(times) != note.times_checksum:
            return None
        index = cls(base_offset=base_offset, interval_bytes=interval_bytes)
        index.offsets, index.times = OffsetIndex(offsets), TimeIndex(times)
        index.largest_timestamp, index.largest_relative_offset = index.times.last() or (NO_TIMESTAMP, 0)
        index._bytes_since_entry = note.log_bytes - (index.offsets.last() or (0, 0))[1]
        return index


# Of a stored index of a megabyte only one block is read: 4 KiB of offsets, 6 KiB of times. A block covers two megabytes of log at
# the default interval.
BLOCK_ENTRIES = 512


class _Block(NamedTuple):
    number: int
    entries: OffsetIndex | TimeIndex


class StoredIndex:
    """An index file of a sealed segment, searched where it is; any thread: a block is read and replaced as a whole.

    A consumer that reads old data at random offsets finds nearly every segment cold, and loading its complete indexes cost more
    than the read itself, the more the larger the log. So only the first use after a start loads a segment's indexes and verifies
    them. From then on only the first key of every block is kept, two kilobytes for a full segment, and the block that was read
    last: a consumer that reads on finds its next position there."""

    __slots__ = ("_block", "_filesystem", "_kind", "_path", "_starts")

    def __init__(self, filesystem: FileSystem, path: Path, loaded: OffsetIndex | TimeIndex) -> None:
        self._filesystem = filesystem
        self._path = path
        self._kind = type(loaded)
        self._starts = array("q", (loaded.entry(number)[0] for number in range(0, len(loaded), BLOCK_ENTRIES)))
        self._block: _Block | None = None

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry not above `key`, as the loaded index would find it; OSError if the file cannot be read."""
        number = bisect_right(self._starts, key) - 1
        if number < 0:
            return None
        block = self._block
        if block is None or block.number != number:
            size = BLOCK_ENTRIES * self._kind.ENTRY.size
            data = self._filesystem.read_at(self._filesystem.open_for_reading(self._path), size, number * size)
            block = self._block = _Block(number, self._kind(data))
        return block.entries.floor(key)

    def forget(self) -> None:
        """Release the block that was read last."""
        self._block = None


class StoredSegmentIndex:
    """Both indexes of one segment, for searching only."""

    __slots__ = ("offsets", "times")

    def __init__(self, filesystem: FileSystem, offsets: Path, times: Path, loaded: SegmentIndex) -> None:
        self.offsets = StoredIndex(filesystem, offsets, loaded.offsets)
        self.times = StoredIndex(filesystem, times, loaded.times)

    def forget(self) -> None:
        self.offsets.forget()
        self.times.forget()
