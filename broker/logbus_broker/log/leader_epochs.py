"""Which leader epoch wrote which offsets of a partition (KIP-101): Kafka's `leader-epoch-checkpoint`, in text; and the truncation
of a log to where it agrees with its leader's: begun and finished by the loop, run on any thread.

    0                   version
    2                   entries
    0 0                 epoch, and the first offset that was written in it
    3 1500

On a single broker an epoch begins with a start that may have lost unflushed records: a consumer that had read beyond the log's
new end learns where the epochs diverge, and never takes new records for old ones. In a cluster epochs are assigned: a leader
begins the one in which it was elected (`begin`), a follower those it finds in its leader's batches.

An epoch is first noted in memory only; the next flush that includes its records writes the file, off the loop: a broker that
restarts after a crash begins an epoch in a thousand partitions at once. If the file is missing or damaged, or does not end with
the epoch of the log's last batch, it is rebuilt from the batches, which carry their epoch: only a segment within which the epoch
changes is read completely. An epoch in which nothing was written is then lost, but it is not needed: it ended where the previous
one did.

No crash assigns one epoch to two different sets of visible records:

    before the flush has ended      no record of the epoch was visible. Those that survive carry it, so it still counts; if none
                                    survives, the next start may begin the same epoch, for the first time as far as any reader
                                    can tell.
    after it                        the records are on disk, and so is the file. If writing the file failed, the flush is valid
                                    all the same, since the last batch of the log holds what the file would: a start takes the
                                    later of the two, and looks for that batch in earlier segments if the last is empty.
    all of them were deleted        by retention, and writing the file failed: the epoch is reused for records that follow the
                                    deleted ones; none was lost, so there is no second set for the same offsets.

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

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from logbus_broker.errors import storage_errors
from logbus_broker.filesystem import FileSystem, OpenFile
from logbus_broker.log.checkpoint import CutMark, leave_cut_mark
from logbus_broker.log.segment import Segment
from logbus_broker.log.segment_list import SegmentList
from logbus_broker.protocol.batch import NO_EPOCH
from logbus_broker.setting_parsers import INT32_MAX, INT64_MAX, between

if TYPE_CHECKING:
    from logbus_broker.log.partition_log import PartitionLog


logger = logging.getLogger("broker.log")

LEADER_EPOCHS = "leader-epoch-checkpoint"
_VERSION = "0"
_parse_epoch, _parse_offset = between(0, INT32_MAX), between(0, INT64_MAX)  # what a batch has room for

Entry = tuple[int, int]


class LeaderEpochs:
    """(epoch, first offset) pairs, ascending in both."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: list[Entry] = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    @property
    def latest(self) -> int:
        """The epoch of the last entry, or NO_EPOCH."""
        return self.entries[-1][0] if self.entries else NO_EPOCH

    def starts(self) -> frozenset[int]:
        """Where each epoch except the oldest began, which is where the previous one ended."""
        return frozenset(start_offset for _, start_offset in self.entries[1:])

    def assign(self, epoch: int, start_offset: int) -> None:
        """Batches from `start_offset` on have `epoch`. Entries for offsets that were never written are removed."""
        if epoch <= self.latest:
            return
        self.cut(start_offset)
        self.entries.append((epoch, start_offset))

    def cut(self, end_offset: int) -> None:
        """The log ends at `end_offset`: forget epochs in which nothing before it was written."""
        while self.entries and self.entries[-1][1] >= end_offset:
            self.entries.pop()

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch not above `epoch`, and where it ends. An epoch older than all entries ended where the first one
        began; for one newer than all of them nothing is known: (-1, -1)."""
        if epoch == self.latest:
            return epoch, log_end_offset
        if epoch < 0 or epoch > self.latest:
            return NO_EPOCH, -1
        following = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        return (self.entries[following - 1][0] if following else epoch), self.entries[following][1]

    def epoch_of(self, offset: int) -> int:
        """The epoch in which the record at `offset`, which is in the log, was written; NO_EPOCH if that is not known."""
        following = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[following - 1][0] if following else NO_EPOCH

    def encode(self) -> bytes:
        lines = [_VERSION, str(len(self.entries)), *(f"{epoch} {offset}" for epoch, offset in self.entries)]
        return "\n".join(lines).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> LeaderEpochs | None:
        """The entries, or None if the bytes are not such a file."""
        try:
            version, count, *rows = data.decode("ascii").splitlines()
            entries = [(_parse_epoch(epoch), _parse_offset(offset)) for epoch, offset in (row.split(" ") for row in rows)]
        except ValueError:
            return None
        ascends = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
        is_whole = data.endswith(b"\n") and count == str(len(entries))  # "1 50" must not be read as "1 5"
        return cls(entries) if version == _VERSION and is_whole and ascends else None


class LogEpochs:
    """The epochs of one log: those noted so far, and `current`, in which this broker writes."""

    __slots__ = ("_filesystem", "_is_told", "_path", "_saved", "current", "is_noted", "written")

    def __init__(
        self, filesystem: FileSystem, directory: Path, written: LeaderEpochs | None = None, *, rises: bool = False
    ) -> None:
        self._filesystem = filesystem
        self._path = directory / LEADER_EPOCHS
        self.written = written or LeaderEpochs()
        self.current = max(self.written.latest, 0) + rises
        self.is_noted = self.current == self.written.latest  # checked by each append
        self._saved: LeaderEpochs | None = self.written  # what the file holds; like `written`, replaced and never modified
        self._is_told = False

    @property
    def is_saved(self) -> bool:
        """Whether everything noted is in the file."""
        return self._saved is self.written

    def note(self, start_offset: int) -> None:
        """`current` begins at `start_offset`; the next flush writes it to the file."""
        epochs = LeaderEpochs(self.written.entries)
        epochs.assign(self.current, start_offset)
        self.written, self.is_noted = epochs, True

    def begin(self, epoch: int) -> None:
        """This broker writes in `epoch`, assigned from outside, from now on. It is noted with the first record: an epoch in which
        nothing is written ends where the previous one did, and carries no information."""
        assert epoch >= self.current, "epochs never fall"
        self.current = epoch
        self.is_noted = epoch == self.written.latest

    def note_batch(self, epoch: int, start_offset: int) -> None:
        """A leader's batch of `epoch`, newer than all before, was stored at `start_offset`."""
        self.current = epoch
        self.note(start_offset)

    def adopt_cut(self, epochs: LeaderEpochs, *, is_saved: bool) -> None:
        """The log was truncated: `epochs` are left, and the file holds them (`is_saved`) or may hold anything."""
        self.written, self._saved = epochs, epochs if is_saved else None
        self.current = max(epochs.latest, 0)
        self.is_noted = self.current == epochs.latest

    def save(self) -> None:
        """Write what was noted to disk; any thread. A failure is logged once, and the next flush tries again. The very first
        epoch may be lost: no file means that the epoch never changed."""
        written = self.written
        try:
            if len(written.entries) == 1:
                self._filesystem.write_bytes(self._path, written.encode(), durable=False)
            else:
                self._filesystem.replace_bytes(self._path, written.encode())
        except OSError as error:
            if not self._is_told:
                logger.warning("cannot write %s: %s; the next flush tries again", self._path, error)
            self._is_told = True
        else:
            self._saved = written

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch not above `epoch`, and the offset after its last record; (-1, -1) if `epoch` is newer than any of
        ours."""
        if epoch == self.current:
            return epoch, log_end_offset
        if self.written.latest < epoch < self.current:
            return self.written.latest, log_end_offset
        return self.written.end_offset_of(epoch, log_end_offset)


def load_leader_epochs(
    filesystem: FileSystem, directory: Path, segments: Sequence[Segment], *, end_offset: int, last_epoch: int
) -> LeaderEpochs:
    """What the directory's file holds, or what the log says if the two differ. `last_epoch` is that of the log's last batch, or
    NO_EPOCH if none was found."""
    path, is_damaged = directory / LEADER_EPOCHS, False
    try:
        epochs = LeaderEpochs.decode(filesystem.read_bytes(path))
        is_damaged = epochs is None
    except FileNotFoundError:
        epochs = None
    if epochs is not None:
        epochs.cut(end_offset)
    if epochs is None or epochs.latest != last_epoch != NO_EPOCH:
        epochs = _rebuild_leader_epochs(segments)
    if is_damaged:
        logger.warning("%s is damaged: rebuilt from the log's batches", path)
        with suppress(OSError):  # the next start rebuilds it again
            filesystem.replace_bytes(path, epochs.encode())
    return epochs


def _rebuild_leader_epochs(segments: Sequence[Segment]) -> LeaderEpochs:
    """Read the epochs from the batches."""
    epochs = LeaderEpochs()
    headers = [segment.first_header() for segment in segments]
    for number, segment in enumerate(segments):
        first, following = headers[number], headers[number + 1] if number + 1 < len(headers) else None
        if first is not None and following is not None and first.leader_epoch == following.leader_epoch:
            epochs.assign(first.leader_epoch, first.base_offset)  # the same at both ends: the same throughout
        else:
            for _, header in segment.headers():
                epochs.assign(header.leader_epoch, header.base_offset)
            if segment is not segments[-1]:
                segment.close_file()
    return epochs


# Truncates an open log to an offset, or starts it over: begun and finished by the loop, run on any thread.


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
