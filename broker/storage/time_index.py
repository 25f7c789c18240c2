"""The sparse time index of one segment: how the largest timestamp so far grew, and the batch that contained it.

Entries are Kafka's: largest timestamp so far (i64), last offset of the batch that holds it relative to the segment's base
(u32), big-endian, strictly ascending in both. Every record before an entry's batch is older than its timestamp, so a search for
T begins at the last entry not above T. A sealed segment's last entry is its largest timestamp. Pure, like the offset
index.
"""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct

from broker.records.batch import NO_TIMESTAMP, Buffer

ENTRY = Struct(">qI")
ENTRY_BYTES = ENTRY.size

_unpack = ENTRY.unpack_from


class TimeIndex:
    """Ascending (timestamp, relative last offset of its batch) pairs; grows only at its end."""

    __slots__ = ("_newest", "data")
    ENTRY_BYTES = ENTRY_BYTES

    def __init__(self, data: Buffer = b"") -> None:
        self.data = bytearray(data)
        self._newest = self.entry(len(self) - 1)[0] if len(self) else NO_TIMESTAMP  # the last entry's timestamp

    def __len__(self) -> int:
        return len(self.data) // ENTRY_BYTES

    def entry(self, number: int) -> tuple[int, int]:
        """Entry `number` from 0."""
        timestamp, relative_offset = _unpack(self.data, number * ENTRY_BYTES)
        return timestamp, relative_offset

    def last(self) -> tuple[int, int] | None:
        return self.entry(len(self) - 1) if self.data else None

    def maybe_append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry unless the largest timestamp has not grown since the last one."""
        if timestamp > self._newest:
            self.data += ENTRY.pack(timestamp, relative_offset)
            self._newest = timestamp

    def upto(self, relative_offset: int) -> TimeIndex:
        """A copy without the entries of later batches."""
        count = bisect_right(range(len(self)), relative_offset, key=lambda number: self.entry(number)[1])
        return TimeIndex(self.data[: count * ENTRY_BYTES])

    def floor(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry not above `timestamp`; None: start at the beginning of the segment."""
        found = bisect_right(range(len(self)), timestamp, key=lambda number: _unpack(self.data, number * ENTRY_BYTES)[0])
        return self.entry(found - 1) if found else None
