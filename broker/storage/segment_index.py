"""Both sparse indexes of one segment, kept in step: an entry in each whenever `interval_bytes` of batches have passed.

The indexes of the active segment live in memory only. They are saved when the segment is sealed or closed in good order, with a
small note next to them: the length of the log they describe and the checksums of both files. Loaded indexes are trusted only if
the note matches, so one that is missing, truncated, damaged or outdated is detected at once and rebuilt from the log
(`Segment.index`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from broker.records.batch import LENGTH_END, NO_TIMESTAMP, BatchHeader
from broker.records.crc import crc32c
from broker.storage.offset_index import ENTRIES_MAX, OffsetIndex
from broker.storage.time_index import TimeIndex

NOTE_VERSION = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexNote:
    """What is written next to saved indexes so that they can be verified later."""

    log_bytes: int
    largest_timestamp: int
    offsets_checksum: int
    times_checksum: int

    def encode(self) -> bytes:
        fields = {
            "version": NOTE_VERSION,
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
            if fields.pop("note_crc32c") != _checksum(fields) or fields["version"] != NOTE_VERSION:
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

    @property
    def is_full(self) -> bool:
        return len(self.offsets) >= ENTRIES_MAX

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
        last = index.offsets.entry(len(index.offsets) - 1) if len(index.offsets) else (0, 0)
        index._bytes_since_entry = note.log_bytes - last[1]
        return index
