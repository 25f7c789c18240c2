"""Reads every file of a data directory and reports what is wrong, with file and position. Changes nothing.

The checksum of every batch is verified, which startup does only after the recovery point: so this finds a byte that the disk has
corrupted in an old segment. Offsets must ascend, without gaps where nothing was compacted; indexes that claim to belong to their
segment must lead to its batches; checkpoints and snapshots must be readable. The directory may be in use: then the end of each
log is still being written, segments are created and deleted, and neither is a fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from broker.errors import StartupError
from broker.partitions.producer_memory import decode_producers
from broker.records.crc import crc32c
from broker.storage.checkpoint import CLEANED_OFFSETS, RECOVERY_POINTS, VISIBLE_OFFSETS, read_checkpoint
from broker.storage.file_names import offset_name, offsets_in, parse_partition
from broker.storage.filesystem import FileSystem
from broker.storage.leader_epochs import LEADER_EPOCHS, LeaderEpochs
from broker.storage.log_directory import LOCK
from broker.storage.marks import read_cut_marks
from broker.storage.meta_properties import belongs_to_cluster
from broker.storage.offset_index import OffsetIndex
from broker.storage.scan import checksum_matches, scan_headers
from broker.storage.segment import INDEX, INDEX_NOTE, LOG, TIME_INDEX
from broker.storage.segment_index import IndexNote
from broker.storage.snapshots import SNAPSHOT
from broker.storage.time_index import TimeIndex


@dataclass(frozen=True, slots=True)
class Fault:
    """A violation of what must hold for the files."""

    path: Path
    position: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}: position {self.position}: {self.text}"


@dataclass(slots=True)
class Verification:
    """One run over a data directory, or over one partition in it. `faults` yields the faults; the counts are what was read."""

    path: Path
    filesystem: FileSystem
    partitions: int = field(default=0, init=False)
    segments: int = field(default=0, init=False)
    batches: int = field(default=0, init=False)
    read_bytes: int = field(default=0, init=False)

    def faults(self) -> Iterator[Fault]:
        """Every fault, in the order of the files. OSError if the directory itself cannot be read."""
        names = self.filesystem.list_names(self.path)
        is_partition = bool(offsets_in(names, LOG))
        root = self.path.parent if is_partition else self.path
        in_use = self.filesystem.is_locked(root / LOCK)
        points, compacted = _checkpoints(self.filesystem, root), _compacted_topics(self.filesystem, root)
        is_replica = belongs_to_cluster(self.filesystem, root)
        yield from _unreadable(self.filesystem, root)
        for name in [self.path.name] if is_partition else names:
            key = parse_partition(name)
            if key is not None and self.filesystem.is_directory(root / name):
                may_have_gaps = is_replica or key[0] in compacted or key in points[CLEANED_OFFSETS]
                checks = _PartitionCheck(self, root / name, may_have_gaps=may_have_gaps, is_replica=is_replica, in_use=in_use)
                cuts = [mark.offset for mark in read_cut_marks(self.filesystem, root / name)]
                yield from checks.faults(recovery_point=min([points[RECOVERY_POINTS].get(key, 0), *cuts]))
                self.partitions += 1


class _PartitionCheck:
    """The files of one partition."""

    def __init__(self, run: Verification, directory: Path, *, may_have_gaps: bool, is_replica: bool, in_use: bool) -> None:
        self._run = run
        self._filesystem = run.filesystem
        self._directory = directory
        self._may_have_gaps = may_have_gaps
        self._is_replica = is_replica  # then even the last segment may have gaps, from compaction at the leader
        self._in_use = in_use
        self._expected = -1  # the offset that must come next

    def faults(self, *, recovery_point: int) -> Iterator[Fault]:
        names = self._filesystem.list_names(self._directory)
        bases = offsets_in(names, LOG)
        for base_offset in bases:
            yield from self._segment_faults(base_offset, is_last=base_offset == bases[-1])
        if not self._in_use and self._expected < recovery_point:
            path = self._directory / offset_name(bases[-1] if bases else 0, LOG)
            yield Fault(path, 0, f"the log ends at offset {self._expected}, but had been flushed up to {recovery_point}")
        yield from self._side_faults(names)

    def _segment_faults(self, base_offset: int, *, is_last: bool) -> Iterator[Fault]:
        path = self._directory / offset_name(base_offset, LOG)
        try:
            file = self._filesystem.open_for_reading(path)
            index = _IndexCheck(self._filesystem, self._directory, base_offset, self._filesystem.size(file))
        except FileNotFoundError:
            if not self._in_use:
                yield Fault(path, 0, "is gone")
            return
        if self._expected >= 0 and (base_offset < self._expected or (base_offset > self._expected and not self._may_have_gaps)):
            yield Fault(path, 0, f"begins at offset {base_offset}, the one before ends at {self._expected}")
        self._expected = base_offset
        size, end = self._filesystem.size(file), 0
        for position, header in scan_headers(self._filesystem, file, 0, size):
            gap = header.base_offset - self._expected
            if gap < 0 or (gap > 0 and ((is_last and not self._is_replica) or not self._may_have_gaps)):
                yield Fault(path, position, f"offset {header.base_offset} where {self._expected} was expected")
            if not checksum_matches(self._filesystem, file, position, header):
                yield Fault(path, position, f"the checksum of the batch at offset {header.base_offset} does not match")
            index.observe(position, header.last_offset, header.max_timestamp)
            self._expected = max(header.next_offset, self._expected)
            end = position + header.size
            self._run.batches += 1
        if end < size and not (is_last and self._in_use):
            yield Fault(path, end, f"no whole batch in the last {size - end} bytes")
        yield from index.faults()
        self._run.segments += 1
        self._run.read_bytes += end

    def _side_faults(self, names: list[str]) -> Iterator[Fault]:
        for name in names:
            path = self._directory / name
            data = self._filesystem.read_bytes(path) if name == LEADER_EPOCHS or name.endswith(SNAPSHOT) else b""
            if name == LEADER_EPOCHS and LeaderEpochs.decode(data) is None:
                yield Fault(path, 0, "cannot be read; the next start rebuilds it")
            if name.endswith(SNAPSHOT) and decode_producers(data) is None:
                yield Fault(path, 0, "does not match its checksum; the next start reads the log instead")


class _IndexCheck:
    """The indexes of one segment, checked if their note states that they belong to it."""

    def __init__(self, filesystem: FileSystem, directory: Path, base_offset: int, log_bytes: int) -> None:
        self._paths = {suffix: directory / offset_name(base_offset, suffix) for suffix in (INDEX, TIME_INDEX, INDEX_NOTE)}
        self._base_offset = base_offset
        self._faults: list[Fault] = []
        self._largest = -1
        self._positions: dict[int, int] = {}
        self._timestamps: dict[int, int] = {}
        try:
            data = {suffix: filesystem.read_bytes(path) for suffix, path in self._paths.items()}
        except FileNotFoundError:
            return  # rebuilt on first use
        note = IndexNote.decode(data[INDEX_NOTE])
        if note is None:
            self._fault(INDEX_NOTE, 0, "cannot be read")
        elif note.log_bytes == log_bytes:
            self._take(note, data[INDEX], data[TIME_INDEX])

    def _take(self, note: IndexNote, offsets: bytes, times: bytes) -> None:
        if crc32c(offsets) != note.offsets_checksum:
            self._fault(INDEX, 0, "does not match its checksum")
        else:
            index = OffsetIndex(offsets)
            self._positions = {position: offset for offset, position in map(index.entry, range(len(index)))}
        if crc32c(times) != note.times_checksum:
            self._fault(TIME_INDEX, 0, "does not match its checksum")
        else:
            time_index = TimeIndex(times)
            self._timestamps = {offset: timestamp for timestamp, offset in map(time_index.entry, range(len(time_index)))}

    def observe(self, position: int, last_offset: int, max_timestamp: int) -> None:
        """Check the index entries of the next batch."""
        relative_offset = last_offset - self._base_offset
        if self._positions.pop(position, relative_offset) != relative_offset:
            self._fault(INDEX, position, f"names another offset than {last_offset} for position {position}")
        self._largest = max(self._largest, max_timestamp)
        if self._timestamps.pop(relative_offset, self._largest) != self._largest:
            self._fault(TIME_INDEX, 0, f"names another timestamp than {self._largest} for offset {last_offset}")

    def faults(self) -> Iterator[Fault]:
        for position in self._positions:
            self._fault(INDEX, 0, f"names position {position}, where no batch begins")
        for offset in self._timestamps:
            self._fault(TIME_INDEX, 0, f"names offset {self._base_offset + offset}, where no batch ends")
        return iter(self._faults)

    def _fault(self, suffix: str, position: int, text: str) -> None:
        self._faults.append(Fault(self._paths[suffix], position, f"{text}; it is rebuilt from the log"))


def _checkpoints(filesystem: FileSystem, root: Path) -> dict[str, dict[tuple[str, int], int]]:
    """The readable checkpoints; `_unreadable` reports the others."""
    found = {}
    for name in (RECOVERY_POINTS, CLEANED_OFFSETS):
        try:
            found[name] = read_checkpoint(filesystem, root / name)
        except StartupError:
            found[name] = {}
    return found


def _unreadable(filesystem: FileSystem, root: Path) -> Iterator[Fault]:
    for name in (RECOVERY_POINTS, CLEANED_OFFSETS, VISIBLE_OFFSETS):
        try:
            read_checkpoint(filesystem, root / name)
        except StartupError as error:
            yield Fault(root / name, 0, str(error))


def _compacted_topics(filesystem: FileSystem, root: Path) -> set[str]:
    """Topics whose offsets may have gaps."""
    try:
        topics = json.loads(filesystem.read_bytes(root / "topics.json"))["topics"]
        return {row["name"] for row in topics if "compact" in row["configs"].get("cleanup.policy", "")}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
