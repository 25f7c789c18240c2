"""Truncates an open log to an offset, or starts it over: begun and finished by the loop, run on any thread.

A replica whose log has diverged from its leader's discards what the leader does not have. The steps are ordered so that a crash
between any two of them leaves a log that the next start accepts:

    mark            the checkpoints no longer claim anything beyond the cut (checkpoint.py); left out if nothing flushed is cut
    snapshots       those beyond the cut are removed: once the log grows past them again they would describe other producers
    epochs          the file is cut, even if the log is not: an epoch may have begun in which nothing was written (KAFKA-10706)
    segments        those beyond the cut are renamed, the last one first, so what is left is always a prefix of the log
    the cut one     is truncated and flushed
    a new one       begins at the cut

After the cut the log ends with its last whole batch below it. Meanwhile the log takes no writes, and no flush or compaction is in
progress (`PartitionLog.when_quiet`): either would report on segments as they no longer are. A failure before the first segment is
touched leaves the log as it was; after that the log goes offline, and the next start finds what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from logbus_broker.disk.filesystem import FileSystem, OpenFile
from logbus_broker.errors import storage_errors
from logbus_broker.log.checkpoint import CutMark, leave_cut_mark
from logbus_broker.log.leader_epochs import LEADER_EPOCHS, LeaderEpochs
from logbus_broker.log.segment import Segment
from logbus_broker.log.segment_list import SegmentList

if TYPE_CHECKING:  # which creates the tickets
    from logbus_broker.log.partition_log import PartitionLog

Install = Callable[[], None]
# Reads again, on any thread, what else is remembered of a log with these segments; the loop then calls what it returns.
Reread = Callable[[SegmentList, int], Install]


class TruncationTicket:
    """What one truncation has to do, and afterwards what it did."""

    def __init__(self, log: PartitionLog, filesystem: FileSystem, offset: int, *, resets: bool, mark_number: int) -> None:
        self._filesystem = filesystem
        self._directory = filesystem.pin(log.directory)  # the log's own, even if another log takes its name meanwhile
        self._segments = tuple(log.segments)
        self._unflushed = tuple(log.unflushed)
        self._offset = offset
        self._resets = resets
        self._old_end_offset = log.end_offset
        self._flushed_offset = log.flushed_offset
        self._log_start_offset = log.log_start_offset
        self._old_epochs = log.epochs.written
        self._snapshots = log.snapshots
        self._interval_bytes = log.config.index_interval_bytes
        self._reread = log.reread
        self._mark_number = mark_number
        # Opened here: by the time the ticket runs, another log may have this log's name.
        self._cut_file: OpenFile | None = None if resets else self._segments[self._kept_count(offset) - 1].file
        self.has_touched_segments = False
        self.end_offset = offset  # this and the following: final once it has run
        self.kept = 0  # how many segments, from the first on, are unchanged
        self.shortened: Segment | None = None  # replaces the one after those
        self.active: Segment | None = None  # None: the log itself was not cut
        self.epochs = self._old_epochs
        self.mark: CutMark | None = None
        self.install: Install = nothing

    def run(self) -> None:
        """May run on any thread. StorageError: pass it to `fail_truncation`."""
        with storage_errors(f"truncate {self._segments[0].directory} to offset {self._offset}"):
            self._decide()
            cuts = self._resets or self.end_offset < self._old_end_offset
            if cuts:
                self._leave_mark()
                self._snapshots.remove_beyond(-1 if self._resets else self.end_offset, within=self._directory.path)
            self._cut_epochs()
            if cuts:
                self._cut_segments()
                remaining = [*self._segments[: self.kept], *self.tail]
                self.install = self._reread(SegmentList(remaining, self._filesystem.open_files), self.end_offset)

    @property
    def tail(self) -> list[Segment]:
        """The segments after those that are kept."""
        return [segment for segment in (self.shortened, self.active) if segment is not None]

    def _kept_count(self, offset: int) -> int:
        """How many segments begin before `offset`, at least one."""
        return max(sum(segment.base_offset < offset for segment in self._segments), 1)

    def _decide(self) -> None:
        """Where the log will end, and which segments stay."""
        if self._resets:
            return
        self.kept = self._kept_count(self._offset)
        if self._offset >= self._old_end_offset:
            self.end_offset = self._old_end_offset
            return
        last = self._segments[self.kept - 1]
        index, size = last.index.before(self._offset - last.base_offset)
        self.end_offset = last.base_offset
        for position, header in last.headers(size):
            if header.next_offset > self._offset:
                break
            index.observe(position, header)
            self.end_offset, size = header.next_offset, position + header.size
        if self.end_offset < self._log_start_offset:  # nothing readable is left
            self._resets, self.kept, self.end_offset = True, 0, self._offset
        elif size < last.size:
            self.kept -= 1
            if size:
                assert self._cut_file is not None, "only a reset keeps nothing"
                self.shortened = last.successor(size=size, file=self._cut_file, index=index)

    def _leave_mark(self) -> None:
        keeps_some = self.kept or self.shortened is not None
        if not keeps_some or self.end_offset < self._flushed_offset:
            mark = CutMark(self._mark_number, self.end_offset)
            leave_cut_mark(self._filesystem, self._directory.path, mark)
            self.mark = mark

    def _cut_epochs(self) -> None:
        epochs = LeaderEpochs(() if self._resets else self._old_epochs.entries)
        epochs.cut(self.end_offset)
        if epochs.entries != self._old_epochs.entries:
            self._filesystem.replace_bytes(self._directory.path / LEADER_EPOCHS, epochs.encode())
            self.epochs = epochs

    def _cut_segments(self) -> None:
        self.has_touched_segments = True
        directory, filesystem = self._directory.path, self._filesystem
        doomed = self._rename_away(self._segments[self.kept + (self.shortened is not None) :])
        if self.shortened is not None:
            filesystem.truncate(self.shortened.file, self.shortened.size)
            filesystem.sync_data(self.shortened.file)
        for segment in self._segments[: self.kept]:
            if segment in self._unflushed:
                filesystem.sync_data(segment.file)
        # A truncated file is never written to again. The broker may still be sending from it: the bytes of an earlier response,
        # found by position. Below the cut they are unchanged; beyond it the file has ended, which ends the connection. Were the
        # next batches written into the same file, the earlier response would continue with them. (Renamed files keep their bytes
        # for as long as a reader has them open.)
        self.active = Segment.create(
            self._segments[0].directory,
            self.end_offset,
            interval_bytes=self._interval_bytes,
            filesystem=filesystem,
            within=directory,
        )
        filesystem.sync_directory(directory)
        with suppress(OSError):  # the next start removes them
            for path in doomed:
                filesystem.remove(path)

    def _rename_away(self, segments: Sequence[Segment]) -> list[Path]:
        doomed: list[Path] = []
        # When the log starts over, no prefix is kept: the first one is removed first, so that what is left always reaches the old
        # end, and a start that finds no segment begins at the mark.
        for segment in segments if self._resets else reversed(segments):
            doomed += segment.mark_deleted(within=self._directory.path)
        if doomed:
            self._filesystem.sync_directory(self._directory.path)  # before a new file takes one of these names
        return doomed


def nothing() -> None:
    """What to install when nothing was cut."""


def nothing_else(segments: SegmentList, end_offset: int) -> Install:
    """The `Reread` of a log of which nothing else is remembered."""
    return nothing
