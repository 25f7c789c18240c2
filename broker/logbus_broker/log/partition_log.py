"""The log of one partition: segments in a directory, appended at the end, read anywhere, flushed off the event loop, deleted
from the front.

A leader writes densely: each batch begins where the previous one ended. Compaction leaves gaps in sealed segments
(compaction.py), and a replica copies its leader's gaps, so its active segment may have some too. Three offsets matter, in
ascending order, and a fourth in recovery:

    log_start_offset    the first offset that may be read; retention moves it
    flushed_offset      everything below it is on disk; what consumers see never passes it
    end_offset          where the next batch goes
    (in recovery)       the recovery point: the flushed offset as last written to the checkpoint file

On a single broker the leader epoch rises with every start that had to recover; see leader_epochs.py.

State changes only after the write has succeeded: a short write or a full disk leaves the log as it was. A failed flush does
not: the kernel may have dropped the pages it could not write, so the log goes offline until the broker is restarted, and a mark
warns the next start that what can be read may not be what is on disk. A log that has diverged from its leader's is truncated
(leader_epochs.py). The event loop owns the log; FlushTicket.run, TruncationTicket.run and TimeSearch.run may run on any
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from logbus_broker.clock import Clock
from logbus_broker.errors import OffsetOutOfRange, StorageError, storage_errors
from logbus_broker.filesystem import FileSlice, FileSystem
from logbus_broker.log import compaction, producer_state
from logbus_broker.log.flusher import FlushTicket
from logbus_broker.log.leader_epochs import Reread, TruncationTicket, nothing, nothing_else
from logbus_broker.log.recovery import LogOpener, OpenedLog, Recovery
from logbus_broker.log.segment import Segment
from logbus_broker.log.segment_index import RELATIVE_OFFSET_MAX, reaches
from logbus_broker.log.segment_list import SegmentList, SegmentPosition, TimeSearch
from logbus_broker.protocol.batch import LENGTH_END, BatchHeader
from logbus_broker.settings import LogConfig

CLOSED = "closed"  # the offline reason of a log that was closed cleanly


class PartitionLog:
    """See the module docstring. Created by `open`."""

    def __init__(self, directory: Path, *, config: LogConfig, filesystem: FileSystem, clock: Clock, opened: OpenedLog) -> None:
        self.directory = directory
        self.config = config  # replaced by `reconfigure`
        self._on_fast_path_revoked: Callable[[], None] | None = None
        self.recovery: Recovery = opened.recovery
        self.offline_reason = opened.offline_reason  # empty: online
        self.end_offset = self.flushed_offset = opened.end_offset
        self.log_start_offset = opened.log_start_offset
        self._filesystem = filesystem
        self._clock = clock
        self.segments = SegmentList(opened.segments, filesystem.open_files)
        self.rolled_ms = clock.now_ms()  # when the active segment was created, or the log opened
        # Sealed segments not yet flushed, or without saved indexes: after a recovery, those whose indexes did not fit on disk.
        self.unflushed = [segment for segment in opened.segments[:-1] if segment.has_index_loaded]
        # The name of a segment in which nothing has been flushed may not be on disk yet: a clean stop does not sync it.
        self._directory_changed = bool(opened.segments) and not opened.segments[-1].size
        self._flushing: FlushTicket | None = None
        self._flushed_position: SegmentPosition | None = None
        if opened.segments:
            self._flushed_position = opened.segments[-1], opened.segments[-1].size
        self._removed_paths: list[Path] = []
        self.snapshots = producer_state.SnapshotFiles(filesystem, directory)
        self.before_roll: Callable[[], None] = nothing  # every append is complete: time for a snapshot
        self.reread: Reread = nothing_else  # after a truncation, rebuilds what is remembered of the log outside its segments
        self.is_compacting = False  # while set, nothing else may change sealed segments; cleared by `end_compaction`
        self._truncation: TruncationTicket | None = None
        self._awaiting_quiet: list[Callable[[], None]] = []
        self.cut_marks = opened.cut_marks  # of completed truncations: the next checkpoint removes them
        self._next_mark_number = opened.cut_marks[-1].number + 1 if opened.cut_marks else 0
        self.unfinished_exchange: compaction.Exchange | None = None  # done in `segments`, but not all of its files renamed yet
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
        """Open and, after a crash, recover. A log that is damaged or unreadable opens offline: every call on it raises
        StorageError with the reason, and the rest of the broker carries on. `is_replica`: the log belongs to a cluster, so its
        epoch is not raised here, and it may have gaps anywhere."""
        opener = LogOpener(
            directory=directory,
            filesystem=filesystem,
            index_interval_bytes=config.index_interval_bytes,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            is_replica=is_replica,
        )
        return cls(directory, config=config, filesystem=filesystem, clock=clock, opened=opener.open_or_explain(clean=clean))

    # Writing

    def append(self, views: Sequence[memoryview], headers: Sequence[BatchHeader]) -> None:
        """Write stamped batches, the first at `end_offset`, in one system call. StorageError: nothing has changed, or the log is
        offline because of an unexpected failure, after which the contents of its file are no longer known."""
        self.require_online()
        assert headers[0].base_offset == self.end_offset, "batches are stamped densely"
        if not self.epochs.is_noted:
            self.epochs.note(self.end_offset)
        self._write(views, headers, sum(map(len, views)))

    def append_replica(self, view: memoryview, headers: Sequence[BatchHeader]) -> None:
        """Write what a leader sent, unchanged: the batches with these `headers`, which `split_replicated` found at the start of
        `view`. Like `append`, but there may be gaps between batches and before the first; if they span more offsets than one
        segment can hold, it may fail after a first part of them has been stored."""
        self.require_online()
        assert headers[0].base_offset >= self.end_offset, "split_replicated has looked"
        is_near = headers[-1].last_offset - self.end_offset <= RELATIVE_OFFSET_MAX
        for reach in (headers,) if is_near else reaches(headers, self.end_offset):
            size = sum([header.length for header in reach]) + LENGTH_END * len(reach)
            self._write((view[:size],), reach, size)
            view = view[size:]
            if reach[-1].leader_epoch == self.epochs.written.latest:
                continue
            for header in reach:
                if header.leader_epoch > self.epochs.written.latest:
                    self.epochs.note_batch(header.leader_epoch, header.base_offset)

    def _write(self, views: Sequence[memoryview], headers: Sequence[BatchHeader], size: int) -> None:
        assert self._truncation is None, "nothing is written during a truncation"
        active, config = self.segments.active, self.config
        # All of a turn's batches go into one segment, so a turn larger than a segment makes one that is larger than configured.
        if active.size and not active.has_room(
            size,
            headers[-1].last_offset,
            headers[0].max_timestamp,
            config.segment_bytes,
            config.segment_age_ms_max,
            self._clock.now_ms() - self.rolled_ms,
        ):
            active = self.roll()
        try:
            active.append(views, headers, size)
        except Exception as error:
            self.take_back(error)
        self.end_offset = headers[-1].next_offset

    def roll(self) -> Segment:
        """Seal the active segment and continue in a new one."""
        self.revoke_fast_path()
        self.before_roll()
        with storage_errors(f"create a new segment in {self.directory}"):
            segment = Segment.create(
                self.directory, self.end_offset, interval_bytes=self.config.index_interval_bytes, filesystem=self._filesystem
            )
        self.unflushed.append(self.segments.active)
        self.segments.add(segment)
        self._directory_changed = True
        self.rolled_ms = self._clock.now_ms()
        return segment

    def take_back(self, error: Exception) -> NoReturn:
        """A write has failed: remove what it left after the last whole batch. Always raises StorageError; if that removal fails,
        or the failure is of an unknown kind, the log goes offline."""
        if not isinstance(error, OSError):
            self.go_offline(f"{self.directory}: a write failed unexpectedly: {error!r}")
            raise StorageError(self.offline_reason) from error
        active = self.segments.active
        try:
            active.cut(active.size)
        except OSError as second:
            self.go_offline(f"cannot write {self.directory} ({error}), nor undo the write ({second})")
        raise StorageError(f"cannot write {self.directory}: {error}") from error

    # Writing on the fast path: docs/decisions/2026-11-23-produce-fast-path.md

    def grant_fast_path(self, on_revoked: Callable[[], None]) -> bool:
        """Whether batches may now be written with the active segment's `write_ahead`, until `on_revoked` is called: the segment
        has batches and open indexes to continue, and nothing else needs to be noted. One caller at a time."""
        active = self.segments.active if not self.offline_reason else None
        if active is None or self._truncation is not None or not self.epochs.is_noted or not active.size or active.index_saved:
            return False
        self.revoke_fast_path()
        self._on_fast_path_revoked = on_revoked
        return True

    def revoke_fast_path(self) -> None:
        """Called when the active segment, epoch, role, settings or online state changes or is about to."""
        on_revoked, self._on_fast_path_revoked = self._on_fast_path_revoked, None
        if on_revoked is not None:
            on_revoked()

    def reconfigure(self, config: LogConfig) -> None:
        """These settings apply from now on."""
        self.revoke_fast_path()
        self.config = config

    # Flushing

    def begin_flush(self) -> FlushTicket | None:
        """What a flush would have to do now; None if nothing is dirty, a flush is in progress, or the log is being truncated,
        which flushes what remains."""
        self.require_online()
        is_clean = self.flushed_offset == self.end_offset and not self.unflushed
        if is_clean or self._flushing is not None or self._truncation is not None:
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
        """The ticket has run: its records may become visible."""
        assert self.offline_reason or ticket is self._flushing, "one flush at a time"
        self._flushing = None
        if not self.offline_reason:  # else closed or deleted in the meantime
            self.flushed_offset = ticket.end_offset
            self._flushed_position = ticket.active, ticket.end_position
            for segment in ticket.sealed:
                segment.is_durable = True
                if segment.index_saved:
                    self.unflushed.remove(segment)
                    segment.forget()
        if self._awaiting_quiet:
            self._call_if_quiet()

    def postpone_flush(self, ticket: FlushTicket) -> None:
        """The ticket could not run yet: its work passes to the next one."""
        self._flushing = None
        self._directory_changed = self._directory_changed or ticket.has_new_names
        self._call_if_quiet()

    def fail_flush(self, ticket: FlushTicket, error: BaseException) -> None:
        """The ticket's run raised: the log goes offline. A flush is never retried, since the second attempt would succeed
        without the lost pages."""
        self._flushing = None
        self.go_offline(str(error))
        self._call_if_quiet()

    # Truncating

    @property
    def is_quiet(self) -> bool:
        """Whether no flush, compaction or truncation is in progress."""
        return self._flushing is None and not self.is_compacting and self._truncation is None

    @property
    def is_truncating(self) -> bool:
        return self._truncation is not None

    @property
    def wants_quiet(self) -> bool:
        """Whether a caller is waiting for quiet: a running compaction pass then ends as soon as it can, and none begins."""
        return bool(self._awaiting_quiet)

    def when_quiet(self, then: Callable[[], None]) -> None:
        """Call `then` once the log can be truncated, at once if it can be now; also if it goes offline in the meantime. If the
        first in line begins a truncation, the others wait for it."""
        self._awaiting_quiet.append(then)
        self._call_if_quiet()

    def _call_if_quiet(self) -> None:
        while self._awaiting_quiet and (self.is_quiet or self.offline_reason):
            self._awaiting_quiet.pop(0)()

    def end_compaction(self) -> None:
        """A pass has ended. If its last exchange is unfinished, the next pass has to begin with that."""
        self.is_compacting = self.unfinished_exchange is not None
        self._call_if_quiet()

    def begin_truncation(self, offset: int, *, resets: bool = False) -> TruncationTicket:
        """The work of truncating the log to `offset`, or to the end of the last whole batch before it. Nothing may be written
        until `finish_truncation`. With `resets`, or if `offset` is before the log start offset, everything is discarded, and the
        log starts over, empty, at `offset`. StorageError: nothing has changed, and the call may be retried."""
        if not resets:
            offset, resets = min(offset, self.end_offset), offset < self.log_start_offset
        self.require_online()
        assert self.is_quiet, "the caller has waited: when_quiet"
        self.revoke_fast_path()
        with storage_errors(f"truncate {self.directory} to offset {offset}"):
            self._truncation = TruncationTicket(self, self._filesystem, offset, resets=resets, mark_number=self._next_mark_number)
        self._next_mark_number += 1
        return self._truncation

    def finish_truncation(self, ticket: TruncationTicket) -> None:
        """The ticket has run: the log ends at `ticket.end_offset`, and all of it is on disk."""
        self._truncation = None
        if not self.offline_reason:  # else closed or deleted in the meantime
            if ticket.active is not None:
                self._adopt_remaining(ticket, ticket.active)
            if ticket.epochs is not self.epochs.written:
                self.epochs.adopt_cut(ticket.epochs, is_saved=True)
            ticket.install()
        self._call_if_quiet()

    def _adopt_remaining(self, ticket: TruncationTicket, active: Segment) -> None:
        if ticket.shortened is not None:
            tuple(self.segments)[ticket.kept].replacement = ticket.shortened
        self.segments.cut(ticket.kept, ticket.tail)
        remaining = tuple(self.segments)
        self.unflushed = [segment for segment in (*self.unflushed, *ticket.tail[:-1]) if segment in remaining]
        self.end_offset = self.flushed_offset = ticket.end_offset
        self.log_start_offset = ticket.end_offset if len(self.segments) == 1 else min(self.log_start_offset, ticket.end_offset)
        self._flushed_position = active, 0
        self.rolled_ms = self._clock.now_ms()
        self.snapshots.forget_beyond(ticket.end_offset)
        if ticket.mark is not None:
            self.cut_marks = (*self.cut_marks, ticket.mark)

    def fail_truncation(self, ticket: TruncationTicket, error: BaseException) -> None:
        """The ticket's run raised. If it had touched segments, the log goes offline; otherwise the log is as it was, and the
        truncation may be retried."""
        self._truncation = None
        if ticket.has_touched_segments:
            self.go_offline(str(error))
        else:
            self.epochs.adopt_cut(self.epochs.written, is_saved=False)
        self._call_if_quiet()

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above `epoch`, and the offset after its last record; (-1, -1) if `epoch` is newer than any of
        ours."""
        return self.epochs.end_offset_of(epoch, self.end_offset)

    # Reading

    def locate(self, offset: int, max_bytes: int, *, upto_offset: int, upto_position: SegmentPosition | None = None) -> FileSlice:
        """Where a consumer's bytes are: from the batch that contains `offset`, up to `max_bytes` but at least one whole batch,
        within one segment and before `upto_offset`, which is a batch boundary. Empty if `offset` is at or beyond `upto_offset`.
        `upto_position` is where that is, if the caller knows: otherwise it is searched for, unless a flush ended there."""
        self.require_online()
        if not self.log_start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(f"offset {offset} is not within {self.log_start_offset} to {self.end_offset}")
        if offset >= upto_offset:
            return FileSlice(self.segments.active.file, self.segments.active.size, 0)
        if upto_offset == self.flushed_offset:
            upto_position = self._flushed_position
        return self.segments.locate(offset, max_bytes, upto_offset, upto_position, self.end_offset)

    def search_by_time(self, timestamp_ms: int, *, upto_offset: int) -> TimeSearch:
        """A search for the first record at or after `timestamp_ms` below `upto_offset`; run it off the loop."""
        self.require_online()
        return TimeSearch(
            segments=self.segments.holding_and_after(self.log_start_offset),
            timestamp_ms=timestamp_ms,
            start_offset=self.log_start_offset,
            upto_offset=min(upto_offset, self.end_offset),
        )

    def recent_offset(self, age_ms: int, segments: SegmentList | None = None) -> int:
        """The base offset of the oldest segment written to within the last `age_ms`, or the log start offset if all were. With
        `segments`, those left by a truncation, it may be called on any thread."""
        self.require_online()
        recent = (segments or self.segments).first_written_since(self._clock.now_ms() - age_ms)
        return max(recent.base_offset, self.log_start_offset)

    def batches_from(self, offset: int) -> Iterator[bytes]:
        """Every batch from the one that contains `offset` to the end: this is how the broker reads its own topics."""
        self.require_online()
        if offset < self.end_offset:
            for segment, position, header in self.segments.walk_from(offset):
                yield segment.read(position, header.size)

    # Deleting

    def delete_before(self, offset: int, *, limit_offset: int | None = None) -> None:
        """Move the log start offset forward, at most to `limit_offset`, the end of what consumers may see; without one, to the
        flushed offset. Whole segments before it are deleted in the next retention round."""
        self.require_online()
        limit_offset = self.flushed_offset if limit_offset is None else limit_offset
        if not 0 <= offset <= limit_offset:
            raise OffsetOutOfRange(f"cannot delete before offset {offset}: the log has {self.log_start_offset} to {limit_offset}")
        self.log_start_offset = max(self.log_start_offset, offset)

    def drop_first(self) -> None:
        """Delete the oldest segment, which must not be the active one. Its renamed files wait for `take_removed_paths`."""
        with storage_errors(f"delete old segments of {self.directory}"):
            self._removed_paths += self.segments.first.mark_deleted()
        self.segments.drop_first()
        self.log_start_offset = max(self.log_start_offset, self.segments.first.base_offset)

    def take_removed_paths(self) -> list[Path]:
        """Renamed files of deleted segments, for a pool thread to remove: a large file takes a while."""
        paths, self._removed_paths = self._removed_paths, []
        return paths

    # Closing

    def close(self) -> None:
        """Flush everything written, save the indexes and release the files. StorageError if that fails or the log is offline:
        the stop is not clean, and the next start has to recover."""
        self.require_online()
        if self._truncation is not None:
            self.go_offline(f"{self.directory} is being truncated")
            raise StorageError(self.offline_reason)
        try:
            # An unwritten log costs nothing: a broker may hold ten thousand and has to stop within seconds.
            if self.unflushed or self.flushed_offset != self.end_offset:
                for segment in (*self.unflushed, self.segments.active):
                    self._filesystem.sync_data(segment.file)
                self._filesystem.sync_directory(self.directory)
            if not self.epochs.is_saved:
                self.epochs.save()
            self.flushed_offset = self.end_offset
            for segment in self.segments:
                if segment.size and segment.has_index_loaded and not segment.index_saved:
                    segment.save_index()
        except OSError as error:
            self.go_offline(f"cannot flush {self.directory}: {error}")
            raise StorageError(self.offline_reason) from error
        self.abandon(CLOSED)

    def abandon(self, reason: str) -> None:
        """Release the files without flushing: the partition is being deleted, or its directory cannot be trusted."""
        self.go_offline(reason)
        if self._flushing is not None:
            self._flushing.is_void = True
        self.segments.clear()
        self.unflushed, self._flushed_position = [], None
        self.before_roll, self.reread = nothing, nothing_else  # both refer back to this log: break the cycle
        self._call_if_quiet()

    def go_offline(self, reason: str) -> None:
        """Refuse everything until the broker is restarted; the first reason is kept."""
        self.offline_reason = self.offline_reason or reason
        self.revoke_fast_path()

    def require_online(self) -> None:
        """Raises StorageError with the reason if the log is offline."""
        if self.offline_reason:
            raise StorageError(self.offline_reason)
