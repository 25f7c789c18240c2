"""What a partition remembers in addition to its records, saved so that a start need not read the log again: `<offset>.snapshot`
holds the state as of the time when the log ended at that offset.

Snapshots are written when a segment is created, or soon after, and at a clean stop, and not flushed: each carries a checksum, and
a missing or damaged one only means that more of the log is read. Those beyond the end of a log that lost its tail in a crash are
removed. The newest two are kept: the older one is used if the newer is torn.
"""

from __future__ import annotations

from pathlib import Path

from broker.records.batch import Buffer
from broker.storage.file_names import offset_name, offsets_in
from broker.storage.filesystem import FileSystem

SNAPSHOT = ".snapshot"
KEPT = 2


class SnapshotFiles:
    """The snapshots in one partition's directory. Every method passes on the system's OSError."""

    __slots__ = ("_directory", "_filesystem", "offsets")

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self.offsets: list[int] = []  # ascending

    def find(self, end_offset: int) -> None:
        """List them, once, at the start; the log ends at `end_offset`."""
        names = self._filesystem.list_names(self._directory)
        for offset in offsets_in(names, SNAPSHOT):
            if offset > end_offset:
                self._filesystem.remove(self._path(offset))
            else:
                self.offsets.append(offset)

    def read(self, offset: int) -> bytes:
        return self._filesystem.read_bytes(self._path(offset))

    def write(self, offset: int, data: Buffer) -> None:
        """Add one for the log's current end, or where it ended when it was rolled last, and remove the oldest."""
        self._filesystem.write_bytes(self._path(offset), data, durable=False)
        self.offsets.append(offset)
        while len(self.offsets) > KEPT:
            self._filesystem.remove(self._path(self.offsets.pop(0)))

    def remove_beyond(self, end_offset: int, *, within: Path) -> None:
        """The log is truncated to `end_offset`: remove the files beyond it. `within` is the directory by another path. Any
        thread; the loop calls `forget_beyond` afterwards."""
        for offset in self.offsets:
            if offset > end_offset:
                self._filesystem.remove(within / self._path(offset).name)

    def forget_beyond(self, end_offset: int) -> None:
        """The log was truncated there."""
        self.offsets = [offset for offset in self.offsets if offset <= end_offset]

    def _path(self, offset: int) -> Path:
        return self._directory / offset_name(offset, SNAPSHOT)
