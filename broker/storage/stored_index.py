"""The saved indexes of a sealed segment, searched in their files: of a file of a megabyte only one block is read.

A consumer that reads old data at random offsets finds nearly every segment cold, and loading its complete indexes cost more than
the read itself, the more the larger the log. So only the first use after a start loads a segment's indexes and verifies them by
their checksums (`segment_index`). From then on this process trusts the files, and keeps only the first key of every block: two
kilobytes for a full segment. A consumer that reads on finds its next position in the block that was read last.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from broker.storage.filesystem import FileSystem
from broker.storage.offset_index import OffsetIndex
from broker.storage.segment_index import SegmentIndex
from broker.storage.time_index import TimeIndex

BLOCK_ENTRIES = 512  # 4 KiB of offsets, 6 KiB of times: one read covers two megabytes of log at the default interval

AnyIndex = OffsetIndex | TimeIndex


class _Block(NamedTuple):
    number: int
    entries: AnyIndex


class StoredIndex:
    """One index file that no longer changes. Any thread: a block is read and replaced as a whole."""

    __slots__ = ("_block", "_filesystem", "_kind", "_path", "_starts")

    def __init__(self, filesystem: FileSystem, path: Path, loaded: AnyIndex) -> None:
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
            block = self._block = _Block(number, self._read(number))
        return block.entries.floor(key)

    def forget(self) -> None:
        """Release the block that was read last."""
        self._block = None

    def _read(self, number: int) -> AnyIndex:
        file = self._filesystem.open_for_reading(self._path)
        size = BLOCK_ENTRIES * self._kind.ENTRY_BYTES
        return self._kind(self._filesystem.read_at(file, size, number * size))


class StoredSegmentIndex:
    """Both indexes of one segment, for searching only."""

    __slots__ = ("offsets", "times")

    def __init__(self, filesystem: FileSystem, offsets: Path, times: Path, loaded: SegmentIndex) -> None:
        self.offsets = StoredIndex(filesystem, offsets, loaded.offsets)
        self.times = StoredIndex(filesystem, times, loaded.times)

    def forget(self) -> None:
        self.offsets.forget()
        self.times.forget()
