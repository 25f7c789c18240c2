"""The log of one partition: segments in a directory, appended at the end, read anywhere, flushed beside the loop, deleted from
the front.

What a leader writes is dense: each batch begins where the one before it ended. Compaction leaves gaps in sealed segments
(compaction.py), and a replica takes over those of its leader, so its active segment may have some too. Four offsets matter, in
ascending order:

    log_start_offset    the first that may be read; retention moves it
    flushed_offset      all below it is on the disk; what consumers see never passes it
    end_offset          where the next batch goes
    (and in recovery)   the recovery point: the flushed offset as last written to the checkpoint file

On one broker the leader epoch rises with every start that had to recover; see leader_epochs.py.

Everything changes only after the write succeeded: a short write or a full disk leaves the log as it was. A failed flush does
not: the system may have dropped the pages that it could not write, so the log goes offline and stays so until the broker is
started again, with a mark for that start: what can be read is not what is on the disk (marks.py). A log whose end is not
its leader's is cut (truncation.py). The loop owns the log; FlushTicket.run, TruncationTicket.run and TimeSearch.run are for any
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from broker.clock import Clock
from broker.config import LogConfig
from broker.errors import OffsetOutOfRange, StorageError
from broker.records.batch import BATCH_HEADER_BYTES, LENGTH_END, BatchHeader
from broker.storage.compaction import Exchange
from broker.storage.file_slice import FileSlice
from broker.storage.filesystem import FileSystem
from broker.storage.flush import FlushTicket
from broker.storage.marks import CutMark, leave_mark
from broker.storage.recovery import LogOpener, OpenedLog, Recovery
from broker.storage.rolling import RELATIVE_OFFSET_MAX, should_roll
from broker.storage.segment import Segment
from broker.storage.segment_list import SegmentList
from broker.storage.snapshots import SnapshotFiles
from broker.storage.time_search import TimeSearch
from broker.storage.truncation import Install, Reread, TruncationTicket

# Ends of what was read last: a follower or a consumer that keeps up asks for what was written behind one of them.
TAILS_MAX = 8
EMPTY_SEGMENTS_PASSED_MAX = 64  # by one read: each is a file to open, and the next pass of compaction puts them together

CLOSED = "closed"  # why a log is offline that was in good order to its end


class Armed(Protocol):
    """Somebody who has looked at all of the log's state that seldom changes, and relies on it."""

    def cancel(self) -> None:
        """It has changed, or is about to."""


class PartitionLog:
    """See the file's theory. Made by `open`."""

    def __init__(self, directory: Path, *, config: LogConfig, filesystem: FileSystem, clock: Clock, opened: OpenedLog) -> None:
        self.directory = directory
        self.config = config  # replaced by `reconfigure`
        self._armed: Armed | None = None
        self.recovery: Recovery = opened.recovery
        self.offline_reason = opened.offline_reason  # empty: online
        self.end_offset = self.flushed_offset = opened.end_offset
        self.log_start_offset = opened.log_start_offset
        self._filesystem = filesystem
        self._clock = clock
        self.segments = SegmentList(opened.segments)
        self._rolled_ms = clock.now_ms()
        # Sealed, not flushed or indexes not saved: after a recovery, those whose indexes the disk had no room for.
        self.unflushed = [one for one in opened.segments[:-1] if one.has_index_loaded]
        # The name of a segment in which nothing has been flushed yet may not be on the disk: a clean stop leaves it as it is.
        self._directory_changed = bool(opened.segments) and not opened.segments[-1].size
        self._flushing: FlushTicket | None = None
        self._tails: dict[int, int] = {}  # offsets at which readers have ended, and where they lie in `_tails_of`
        self._tails_of: Segment | None = None
        self._flushed_segment = opened.segments[-1] if opened.segments else None
        self._flushed_position = opened.segments[-1].size if opened.segments else 0
        self._removed_paths: list[Path] = []
        self.snapshots = SnapshotFiles(filesystem, directory)
        self.before_roll: Callable[[], None] = _nothing  # all that is appended is complete: time for a snapshot
        self.reread: Reread = _nothing_else  # what is remembered of the log besides its segments, after a cut
        self.is_compacting = False  # then nothing else may change sealed segments; taken back by `end_compaction`
        self._cutting: TruncationTicket | None = None
        self._awaiting_quiet: list[Callable[[], None]] = []
        self.cut_marks: tuple[CutMark, ...] = opened.cut_marks  # of cuts that are complete: for the next checkpoint to remove
        self._next_mark_number = opened.cut_marks[-1].number + 1 if opened.cut_marks else 0
        self.unfinished_exchange: Exchange | None = None  # made in `segments`, but not all of its files have their names
        self.epochs = opened.epochs

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        config: LogConfig,
        filesystem: FileSystem,
        clock: Clock,
        clean: bool,
        recovery_point: int,
        log_start_offset: int = 0,
        is_replica: bool = False,
    ) -> PartitionLog:
        """Open and, after a crash, recover. A log that is damaged or cannot be read opens offline: everything it is asked for
        raises StorageError with the reason, and the rest of the broker goes on. `is_replica`: it belongs to a cluster, so its
        epoch does not rise by itself, and it may have gaps anywhere."""
        opener = LogOpener(
            directory=directory,
            filesystem=filesystem,
            index_interval_bytes=config.index_interval_bytes,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            is_replica=is_replica,
        )
        return cls(directory, config=config, filesystem=filesystem, clock=clock, opened=opener.open_or_explain(clean=clean))

    @property
    def size_bytes(self) -> int:
        """Of all segments that are not deleted."""
        return self.segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self.segments)

    # Writing

    def append(self, views: Sequence[memoryview], headers: Sequence[BatchHeader]) -> None:
        """Write stamped batches, the first at `end_offset`, in one system call. StorageError: nothing has changed, or the log is
        offline, since something failed that nobody expected and what its file holds is not known any more."""
        self.require_online()
        assert headers[0].base_offset == self.end_offset, "batches are stamped densely"
        if not self.epochs.is_noted:
            self.epochs.note(self.end_offset)
        self._write(views, headers, sum(map(len, views)))

    def append_replica(self, view: memoryview, headers: Sequence[BatchHeader]) -> None:
        """Write what a leader sent, unchanged: the batches with these `headers`, which `split_replicated` has found at the start
        of `view`. As `append`, but there may be gaps between batches and before the first, and where they reach over more
        offsets than one segment can hold, an error may come when a first part of them is stored."""
        self.require_online()
        assert headers[0].base_offset >= self.end_offset, "split_replicated has looked"
        is_near = headers[-1].last_offset - self.end_offset <= RELATIVE_OFFSET_MAX
        for reach in (headers,) if is_near else _reaches(headers, self.end_offset):
            size = sum([header.length for header in reach]) + LENGTH_END * len(reach)
            self._write((view[:size],), reach, size)
            view = view[size:]
            if reach[-1].leader_epoch == self.epochs.written.latest:
                continue
            for header in reach:
                if header.leader_epoch > self.epochs.written.latest:
                    self.epochs.note_batch(header.leader_epoch, header.base_offset)

    def _write(self, views: Sequence[memoryview], headers: Sequence[BatchHeader], size: int) -> None:
        assert self._cutting is None, "nothing is written while the log is cut"
        active = self.segments.active
        if should_roll(active, headers, size, config=self.config, age_ms=self._clock.now_ms() - self._rolled_ms):
            active = self.roll()
        try:
            active.append(views, headers, size)
        except Exception as error:
            self.take_back(error)
        self.end_offset = headers[-1].next_offset

    def roll(self) -> Segment:
        """Seal the active segment and go on in a new one."""
        self.disarm()
        self.before_roll()
        try:
            segment = Segment.create(
                self.directory, self.end_offset, interval_bytes=self.config.index_interval_bytes, filesystem=self._filesystem
            )
        except OSError as error:
            raise StorageError(f"cannot begin a new segment in {self.directory}: {error}") from error
        self.unflushed.append(self.segments.active)
        self.segments.add(segment)
        self._directory_changed = True
        self._rolled_ms = self._clock.now_ms()
        return segment

    def take_back(self, error: Exception) -> NoReturn:
        """A write has failed: remove what it left behind the last whole batch. Raises StorageError; where that cannot be done, or
        nobody knows what has failed, the log is offline."""
        if not isinstance(error, OSError):
            self.go_offline(f"{self.directory}: a write failed unexpectedly: {error!r}")
            raise StorageError(self.offline_reason) from error
        active = self.segments.active
        try:
            active.cut(active.size)
        except OSError as second:
            self.go_offline(f"cannot write {self.directory} ({error}), nor take the write back ({second})")
        raise StorageError(f"cannot write {self.directory}: {error}") from error

    # Writing in the fast lane: docs/decisions/2026-11-23-fast-lane.md

    def arm(self, armed: Armed) -> bool:
        """Whether batches may be written by `write_ahead` of the active segment from now on, until `armed` is cancelled: there is
        a segment with batches and indexes to go on with, and nothing is to be noted besides. One at a time."""
        active = self.segments.active if not self.offline_reason else None
        if active is None or self._cutting is not None or not self.epochs.is_noted or not active.size or active.index_saved:
            return False
        self.disarm()
        self._armed = armed
        return True

    def disarm(self) -> None:
        """The active segment, the epoch, the role, the settings or whether the log is online: one of them changes."""
        armed, self._armed = self._armed, None
        if armed is not None:
            armed.cancel()

    def reconfigure(self, config: LogConfig) -> None:
        """These settings hold from now on."""
        self.disarm()
        self.config = config

    @property
    def rolled_ms(self) -> int:
        """When, by the wall clock, the active segment was begun, or the log opened."""
        return self._rolled_ms

    # Flushing

    def begin_flush(self) -> FlushTicket | None:
        """What a flush would have to do now; None where nothing is dirty, a flush is under way, or the log is being cut, which
        flushes what it leaves."""
        self.require_online()
        if self._flushing is not None or (self.flushed_offset == self.end_offset and not self.unflushed):
            return None
        if self._cutting is not None:
            return None
        directory = self.directory if self._directory_changed else None
        self._directory_changed = False
        self._flushing = FlushTicket(
            self._filesystem,
            sealed=self.unflushed,
            active=self.segments.active,
            end_offset=self.end_offset,
            directory=directory,
            epochs=None if self.epochs.is_saved else self.epochs,
        )
        return self._flushing

    def finish_flush(self, ticket: FlushTicket) -> None:
        """The ticket has run: its records may be seen."""
        if self.offline_reason:
            self._flushing = None
            self._tell_if_quiet()
            return  # closed or deleted meanwhile
        assert ticket is self._flushing, "one flush at a time"
        self._flushing = None
        self.flushed_offset = ticket.end_offset
        self._flushed_segment, self._flushed_position = ticket.active, ticket.end_position
        for segment in ticket.sealed:
            segment.is_durable = True
            if segment.index_saved:
                self.unflushed.remove(segment)
                segment.forget()
        if self._awaiting_quiet:
            self._tell_if_quiet()

    def postpone_flush(self, ticket: FlushTicket) -> None:
        """The ticket could not run yet: what it had to do is for the next one."""
        self._flushing = None
        self._directory_changed = self._directory_changed or ticket.has_new_names
        self._tell_if_quiet()

    def fail_flush(self, ticket: FlushTicket, error: BaseException) -> None:
        """The ticket's run raised: the log goes offline. A flush is not tried again, since the second would succeed without the
        lost pages."""
        self._flushing = None
        self.go_offline(str(error))
        leave_mark(self._filesystem, self.directory)
        self._tell_if_quiet()

    # Cutting

    @property
    def is_quiet(self) -> bool:
        """Whether no flush, compaction or cut is under way."""
        return self._flushing is None and not self.is_compacting and self._cutting is None

    @property
    def is_being_cut(self) -> bool:
        return self._cutting is not None

    @property
    def wants_quiet(self) -> bool:
        """Whether somebody waits for it: a compaction pass ends as soon as it can, and none begins."""
        return bool(self._awaiting_quiet)

    def when_quiet(self, then: Callable[[], None]) -> None:
        """Call `then` when the log can be cut, at once where it can now; also where it has gone offline meanwhile. Where the next
        in line has begun a cut, the others wait for that."""
        self._awaiting_quiet.append(then)
        self._tell_if_quiet()

    def _tell_if_quiet(self) -> None:
        while self._awaiting_quiet and (self.is_quiet or self.offline_reason):
            self._awaiting_quiet.pop(0)()

    def end_compaction(self) -> None:
        """A pass has ended. Where its last exchange is unfinished, the next one has to begin with that."""
        self.is_compacting = self.unfinished_exchange is not None
        self._tell_if_quiet()

    def begin_truncation(self, offset: int) -> TruncationTicket:
        """What is to be done to cut the log at `offset`: its end afterwards, or that of the last whole batch before it. Nothing
        is written until `finish_truncation`. Where `offset` is before the log's start, the log begins anew there. StorageError:
        nothing has changed, and it may be tried again."""
        return self._begin_cut(min(offset, self.end_offset), resets=offset < self.log_start_offset)

    def begin_reset(self, offset: int) -> TruncationTicket:
        """The same for letting go of everything: the log begins anew, empty, at `offset`."""
        return self._begin_cut(offset, resets=True)

    def _begin_cut(self, offset: int, *, resets: bool) -> TruncationTicket:
        self.require_online()
        assert self.is_quiet, "the caller has waited: when_quiet"
        self.disarm()
        try:
            self._cutting = TruncationTicket(
                self._filesystem,
                directory=self._filesystem.pin(self.directory),
                segments=tuple(self.segments),
                unflushed=self.unflushed,
                offset=offset,
                resets=resets,
                end_offset=self.end_offset,
                flushed_offset=self.flushed_offset,
                log_start_offset=self.log_start_offset,
                epochs=self.epochs.written,
                snapshots=self.snapshots,
                mark_number=self._next_mark_number,
                interval_bytes=self.config.index_interval_bytes,
                reread=self.reread,
            )
        except OSError as error:
            raise StorageError(f"cannot cut {self.directory} at offset {offset}: {error}") from error
        self._next_mark_number += 1
        return self._cutting

    def finish_truncation(self, ticket: TruncationTicket) -> None:
        """The ticket has run: the log ends at `ticket.end_offset`, and all of it is on the disk."""
        self._cutting = None
        if not self.offline_reason:  # closed or deleted meanwhile
            if ticket.active is not None:
                self._take_what_is_left(ticket, ticket.active)
            if ticket.epochs is not self.epochs.written:
                self.epochs.adopt_cut(ticket.epochs, is_saved=True)
            ticket.install()
        self._tell_if_quiet()

    def _take_what_is_left(self, ticket: TruncationTicket, active: Segment) -> None:
        if ticket.shortened is not None:
            tuple(self.segments)[ticket.kept].replacement = ticket.shortened
        self.segments.cut(ticket.kept, ticket.tail)
        self.unflushed = [one for one in (*self.unflushed, *ticket.tail[:-1]) if one in tuple(self.segments)]
        self.end_offset = self.flushed_offset = ticket.end_offset
        self._tails_of = None
        self.log_start_offset = ticket.end_offset if len(self.segments) == 1 else min(self.log_start_offset, ticket.end_offset)
        self._flushed_segment, self._flushed_position = active, 0
        self._rolled_ms = self._clock.now_ms()
        self.snapshots.forget_beyond(ticket.end_offset)
        if ticket.mark is not None:
            self.cut_marks = (*self.cut_marks, ticket.mark)

    def fail_truncation(self, ticket: TruncationTicket, error: BaseException) -> None:
        """The ticket's run raised. Where it had touched segments the log goes offline; else it is as it was, and the cut may be
        tried again."""
        self._cutting = None
        if ticket.has_touched_segments:
            self.go_offline(str(error))
            leave_mark(self._filesystem, self.directory)
        else:
            self.epochs.adopt_cut(self.epochs.written, is_saved=False)
        self._tell_if_quiet()

    def take_cut_marks(self) -> tuple[CutMark, ...]:
        """Those that may be removed when checkpoints of the offsets of now are on the disk."""
        marks, self.cut_marks = self.cut_marks, ()
        return marks

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch that is not above `epoch`, and the offset after its last record; (-1, -1) where it is newer than
        ours."""
        return self.epochs.end_offset_of(epoch, self.end_offset)

    # Reading

    def locate(
        self, offset: int, max_bytes: int, *, upto_offset: int, upto_place: tuple[Segment, int] | None = None
    ) -> FileSlice:
        """Where a consumer's bytes lie: from the batch that contains `offset`, up to `max_bytes` but one whole batch at least,
        within one segment and before `upto_offset`, which is where a batch begins. Empty where `offset` is at or beyond
        `upto_offset`. `upto_place` is where that lies, for who knows it: else it is searched for, unless a flush ended there."""
        self.require_online()
        if not self.log_start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(f"offset {offset} is not within {self.log_start_offset} to {self.end_offset}")
        if offset >= upto_offset:
            return FileSlice(self.segments.active.file, self.segments.active.size, 0)
        segment = self.segments.holding(offset)
        try:
            if segment is self._tails_of and (position := self._tails.get(offset)) is not None:
                available = self._readable_bytes(segment, upto_offset, upto_place) - position
                if 0 < available <= max_bytes:
                    self._note_tail(segment, upto_offset, position + available)
                    return FileSlice(segment.file, position, available)
            place = segment.batch_at(offset)
            hops = 0
            while segment.end_offset is not None and (
                place is None  # compaction has left nothing behind it there
                or (_is_last_and_empty(place, segment) and segment.end_offset < upto_offset and hops < EMPTY_SEGMENTS_PASSED_MAX)
            ):
                segment = self.segments.holding(segment.end_offset)
                place = segment.batch_at(offset)
                hops += 1
            available = self._readable_bytes(segment, upto_offset, upto_place) - (place[0] if place else 0)
            if place is None or available <= 0:
                return FileSlice(segment.file, 0, 0)
            if available <= max_bytes:
                self._note_tail(segment, upto_offset, place[0] + available)
            return FileSlice(segment.file, place[0], max(min(max_bytes, available), place[1]))
        except OSError as error:
            raise StorageError(f"cannot read {segment.directory}: {error}") from error

    def _note_tail(self, segment: Segment, offset: int, position: int) -> None:
        """All before `offset` ends at this position: what follows begins here, if it is in this segment. Only of the one that is
        being written: others are compacted, and nobody waits at their ends."""
        if segment.end_offset is not None:
            return
        if segment is not self._tails_of:
            self._tails_of, self._tails = segment, {}
        elif len(self._tails) >= TAILS_MAX:
            del self._tails[next(iter(self._tails))]
        self._tails[offset] = position

    def _readable_bytes(self, segment: Segment, upto_offset: int, upto_place: tuple[Segment, int] | None) -> int:
        """How much of `segment`, which begins before `upto_offset`, lies before it."""
        if upto_offset >= (self.end_offset if segment.end_offset is None else segment.end_offset):
            return segment.size
        if upto_offset == self.flushed_offset and segment is self._flushed_segment:
            return self._flushed_position
        if upto_place is not None and segment is upto_place[0]:
            return upto_place[1]
        place = segment.batch_at(upto_offset)
        return place[0] if place else segment.size

    def search_by_time(self, timestamp_ms: int, *, upto_offset: int) -> TimeSearch:
        """A search for the first record at or after `timestamp_ms` below `upto_offset`; run it beside the loop."""
        self.require_online()
        return TimeSearch(
            segments=self.segments.holding_and_after(self.log_start_offset),
            timestamp_ms=timestamp_ms,
            start_offset=self.log_start_offset,
            upto_offset=min(upto_offset, self.end_offset),
        )

    def recent_offset(self, age_ms: int, segments: SegmentList | None = None) -> int:
        """The start of the oldest segment that was written to within the last `age_ms`, or of the log where all were; of those
        that a cut has left, where they are given, on any thread."""
        self.require_online()
        recent = (segments or self.segments).first_written_since(self._clock.now_ms() - age_ms)
        return max(recent.base_offset, self.log_start_offset)

    def headers_from(self, offset: int) -> Iterator[BatchHeader]:
        """The header of every batch from the one that contains `offset` to the end."""
        self.require_online()
        if offset < self.end_offset:
            for _, _, header in self.segments.walk_from(offset):
                yield header

    def batches_from(self, offset: int) -> Iterator[bytes]:
        """Every batch from the one that contains `offset` to the end: how the broker reads its own topics."""
        self.require_online()
        if offset < self.end_offset:
            for segment, position, header in self.segments.walk_from(offset):
                yield segment.read(position, header.size)

    # Deleting

    def delete_before(self, offset: int, *, limit_offset: int | None = None) -> None:
        """Move the log's start forward, up to `limit_offset`, which is what consumers may see; without one, to what is flushed.
        Whole segments before it go with the next retention."""
        self.require_online()
        limit_offset = self.flushed_offset if limit_offset is None else limit_offset
        if not 0 <= offset <= limit_offset:
            raise OffsetOutOfRange(f"cannot delete before offset {offset}: the log has {self.log_start_offset} to {limit_offset}")
        self.log_start_offset = max(self.log_start_offset, offset)

    def drop_first(self) -> None:
        """Delete the oldest segment, which is not the active one. Its renamed files wait in `take_removed_paths`."""
        try:
            self._removed_paths += self.segments.first.mark_deleted()
        except OSError as error:
            raise StorageError(f"cannot delete old segments of {self.directory}: {error}") from error
        self.segments.drop_first()
        self.log_start_offset = max(self.log_start_offset, self.segments.first.base_offset)

    def take_removed_paths(self) -> list[Path]:
        """Renamed files of deleted segments, for a helper thread to remove: a large file takes a while."""
        paths, self._removed_paths = self._removed_paths, []
        return paths

    # Ending

    def close(self) -> None:
        """Flush all that is written, save the indexes and let go of the files. StorageError where that fails, and where the log
        is offline: the stop is not clean, and the next start has to recover."""
        self.require_online()
        if self._cutting is not None:
            self.go_offline(f"{self.directory} is being cut")
            raise StorageError(self.offline_reason)
        try:
            self._flush_all()
            for segment in self.segments:
                if segment.size and segment.has_index_loaded and not segment.index_saved:
                    segment.save_index()
        except OSError as error:
            self.go_offline(f"cannot flush {self.directory}: {error}")
            leave_mark(self._filesystem, self.directory)
            raise StorageError(self.offline_reason) from error
        self.abandon(CLOSED)

    def _flush_all(self) -> None:
        """Here and now. A log that nobody wrote to costs nothing: a broker may hold ten thousand and has to stop in seconds."""
        if self.unflushed or self.flushed_offset != self.end_offset:
            for segment in (*self.unflushed, self.segments.active):
                self._filesystem.sync_data(segment.file)
            self._filesystem.sync_directory(self.directory)
        if not self.epochs.is_saved:
            self.epochs.save()
        self.flushed_offset = self.end_offset

    def abandon(self, reason: str) -> None:
        """Let go of the files without flushing: the partition is being deleted, or its directory cannot be trusted."""
        self.go_offline(reason)
        if self._flushing is not None:
            self._flushing.is_void = True
        self.segments.clear()
        self.unflushed, self._flushed_segment, self._tails_of = [], None, None
        self.before_roll, self.reread = _nothing, _nothing_else  # both refer to this log: no circle may keep it alive

        self._tell_if_quiet()

    def go_offline(self, reason: str) -> None:
        """Refuse everything from now on, until the broker is started again; the first reason stays."""
        self.offline_reason = self.offline_reason or reason
        self.disarm()

    def require_online(self) -> None:
        """StorageError with the reason where the log is offline."""
        if self.offline_reason:
            raise StorageError(self.offline_reason)


def _is_last_and_empty(place: tuple[int, int], segment: Segment) -> bool:
    """Whether nothing of the segment is left but a batch without records, which says how far it reached (compaction.py). At the
    log's end a consumer is given it, to know where it is. But several answers of nothing else in a row librdkafka takes for a
    record that is larger than its fetches, and reports that: so a consumer is led on to the next batch that has records."""
    return place[1] == BATCH_HEADER_BYTES and place[0] + place[1] == segment.size


def _reaches(headers: Sequence[BatchHeader], start: int) -> Iterator[Sequence[BatchHeader]]:
    """Runs of batches that one segment's indexes can tell apart: all of them, unless gaps reach that far. The log ends at
    `start`."""
    while headers:
        count = max(sum(header.last_offset - start <= RELATIVE_OFFSET_MAX for header in headers), 1)
        yield headers[:count]
        start, headers = headers[count - 1].next_offset, headers[count:]


def _nothing_else(segments: SegmentList, end_offset: int) -> Install:
    """What is read again after a cut where nobody remembers anything of the log."""
    return _nothing


def _nothing() -> None:
    """What is done before a roll where nobody has asked for anything."""
