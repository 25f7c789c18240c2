"""Opens the segments of a partition, and after a crash finds where the log really ends.

After a clean stop everything is on disk and only the last few batches are checked. After a crash, batches below the recovery
point had been flushed: they must be there, and anything wrong with them is damage, which is never repaired silently. Batches
beyond it may be torn, missing, or full of zeros where the kernel had extended the file before it wrote the bytes: the log is
truncated at the first batch that is incomplete, fails its checksum or has an offset that does not follow, and later segments are
removed. Only what was never acknowledged as flushed can be lost that way. What remains is flushed before it becomes visible;
where a flush had failed, it is also written again, since then a flush alone proves nothing (checkpoint.py).

Compaction leaves gaps between batches, so in a sealed segment an offset only has to be larger than the previous one; each segment
still begins where the previous one ends. This rule is applied to every log: whether a log was ever compacted is only recorded at
the end of a pass, and may be lost with a topic's setting or a checkpoint, while taking a gap for damage would cost everything
after it. A crash never leaves a gap that looks intended: missing bytes are zeros, which are not a batch. A replica's log may have
gaps in its active segment too, since its leader sends what compaction has left; and its leader epoch is not raised here, since in
a cluster epochs are assigned.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from logbus_broker.errors import StorageError
from logbus_broker.filesystem import PARTITION_METADATA, TEMPORARY, FileSystem, offset_name, offsets_in, parse_offset_name
from logbus_broker.log.checkpoint import (
    CutMark,
    parse_cut_mark,
    read_cut_marks,
)
from logbus_broker.log.compaction import CLEANED, SWAP, finish_exchange
from logbus_broker.log.leader_epochs import LEADER_EPOCHS, LogEpochs, load_leader_epochs
from logbus_broker.log.producer_state import SNAPSHOT
from logbus_broker.log.segment import DELETED, INDEX_NOTE, LOG, SUFFIXES, Segment, checksum_matches, scan_headers
from logbus_broker.log.segment_index import SegmentIndex
from logbus_broker.protocol.batch import NO_EPOCH

logger = logging.getLogger("broker.log")

_LEFTOVERS = frozenset(
    {*(suffix + DELETED for suffix in SUFFIXES), LOG + CLEANED, LEADER_EPOCHS + TEMPORARY, PARTITION_METADATA + TEMPORARY}
)
_KEPT = frozenset({*SUFFIXES, SNAPSHOT, LEADER_EPOCHS, PARTITION_METADATA})
# A file written this long before the last record is on disk even if it was never flushed: by default the kernel lets no dirty
# page wait for longer than half a minute.
_SETTLED_MS = 600_000
_REWRITTEN_BYTES = 1 << 20  # per write


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What opening a log found and did."""

    was_clean: bool
    was_new: bool = False  # there was no segment yet
    checked_bytes: int = 0  # bytes whose checksums were computed
    truncated_bytes: int = 0
    removed_segments: int = 0
    reason: str = ""  # why it was truncated; empty: it was not


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    """The segments in order, the last one for writing, and the offset after the last batch; or why there are none."""

    segments: list[Segment]
    log_start_offset: int
    end_offset: int
    recovery: Recovery
    epochs: LogEpochs
    offline_reason: str = ""
    cut_marks: tuple[CutMark, ...] = ()  # of truncations newer than the checkpoints


@dataclass(slots=True, kw_only=True)
class _Survey:
    """What reading one segment found; its file is not changed yet."""

    segment: Segment
    index: SegmentIndex
    file_bytes: int
    end_offset: int
    end_position: int
    checked_bytes: int
    checked_position: int  # start of the first batch that had not been flushed
    last_epoch: int  # of its last whole batch, NO_EPOCH if it has none
    reason: str  # why the walk ended before the end of the file; empty: it did not

    @property
    def excess_bytes(self) -> int:
        return self.file_bytes - self.end_position


class DamagedLog(StorageError):
    """Flushed batches are missing or damaged: the partition stays offline until an operator has looked at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOpener:
    """Opens one partition's directory."""

    directory: Path
    filesystem: FileSystem
    index_interval_bytes: int
    recovery_point: int
    log_start_offset: int
    is_replica: bool = False
    cut_marks: tuple[CutMark, ...] = ()

    def open_or_explain(self, *, clean: bool) -> OpenedLog:
        """The log, or no segments and the reason: one partition that cannot be opened must not keep the others from being
        served."""
        try:
            return self.open(clean=clean)
        except (OSError, StorageError) as error:
            return OpenedLog(
                segments=[],
                log_start_offset=self.log_start_offset,
                end_offset=max(self.recovery_point, self.log_start_offset),
                recovery=Recovery(was_clean=clean, reason=str(error)),
                epochs=LogEpochs(self.filesystem, self.directory),
                offline_reason=str(error),
            )

    def open(self, *, clean: bool) -> OpenedLog:
        """The log as it is; DamagedLog if flushed batches are not intact."""
        # The order matters: an interrupted compaction is finished first, since until then two segments claim the same offsets;
        # then leftovers are removed; then the marks are read, which say that the checkpoints claim too much.
        self._finish_exchanges()
        bases = self._remove_leftovers()
        marks = read_cut_marks(self.filesystem, self.directory)
        return self._below(marks)._open(bases, clean=clean) if marks else self._open(bases, clean=clean)

    def _below(self, marks: tuple[CutMark, ...]) -> LogOpener:
        """The same opener, with checkpoints that claim nothing beyond the truncations that followed them."""
        least = min(mark.offset for mark in marks)
        return replace(
            self,
            recovery_point=min(self.recovery_point, least),
            log_start_offset=min(self.log_start_offset, least),
            cut_marks=marks,
        )

    def _open(self, bases: list[int], *, clean: bool) -> OpenedLog:
        if not bases:
            return self._open_empty(clean)
        segments = [self._existing(base) for base in bases]
        # A clean stop is trusted, but not blindly: the last batches are checked, which takes one read. After a failed flush no
        # stop is clean.
        opened = self._open_clean(segments) if clean else None
        opened = opened or self._recover(segments)
        self._settle_indexes(opened.segments, was_clean=opened.recovery.was_clean)
        return opened

    def _opened(self, segments: list[Segment], end_offset: int, recovery: Recovery, last_epoch: int = NO_EPOCH) -> OpenedLog:
        # Retention or DeleteRecords had moved the log start offset past the end of what is left: records that had been flushed
        # are missing.
        if self.log_start_offset > end_offset:
            raise DamagedLog(
                f"{self.directory}: ends at offset {end_offset}, but its log start offset is {self.log_start_offset}"
            )
        start = max(self.log_start_offset, segments[0].base_offset)
        if last_epoch == NO_EPOCH:
            last_epoch = _last_epoch(segments)
        written = load_leader_epochs(self.filesystem, self.directory, segments, end_offset=end_offset, last_epoch=last_epoch)
        # A consumer may have seen records that truncation removed and whose offsets will be reused: a new leader epoch is how
        # it can find out (KIP-320). Replicas get theirs from the controller.
        rises = not (self.is_replica or recovery.was_clean or recovery.was_new)
        return OpenedLog(
            segments=segments,
            log_start_offset=start,
            end_offset=end_offset,
            recovery=recovery,
            epochs=LogEpochs(self.filesystem, self.directory, written, rises=rises),
            cut_marks=self.cut_marks,
        )

    def _finish_exchanges(self) -> None:
        """Complete an exchange of segments that a crash interrupted: the compacted ones are complete, so they win."""
        names = self.filesystem.list_names(self.directory)
        for base_offset in offsets_in(names, LOG + SWAP):
            name = offset_name(base_offset, LOG + SWAP)
            end_offset = self._end_of_swap(name, base_offset)
            old = [base for base in offsets_in(names, LOG) if base_offset <= base < end_offset]
            segments = [self._existing(base) for base in old]
            finish_exchange(self.filesystem, segments, self._existing(base_offset, LOG + SWAP), self.directory)

    def _end_of_swap(self, name: str, base_offset: int) -> int:
        file = self.filesystem.open(self.directory / name)
        size, position, end_offset = self.filesystem.size(file), 0, base_offset
        for position, header in scan_headers(self.filesystem, file, 0, size):
            position += header.size
            end_offset = header.next_offset
        # A .swap file was flushed before it got that name. If it is incomplete, that is damage an operator should see, not a
        # torn tail.
        if position != size or end_offset == base_offset:
            raise DamagedLog(f"{self.directory / name}: no batch at position {position} of {size}, though it had been flushed")
        return end_offset

    def _remove_leftovers(self) -> list[int]:
        """Remove the leftovers of whatever was interrupted; returns the segments' base offsets. Other people's files stay."""
        names = self.filesystem.list_names(self.directory)
        bases, foreign = offsets_in(names, LOG), []
        stored = frozenset(bases)
        for name in names:
            offset, suffix = parse_offset_name(name) or (-1, name)
            if suffix in _LEFTOVERS or (suffix in SUFFIXES and offset not in stored):
                self.filesystem.remove(self.directory / name)
            elif not (suffix in _KEPT or parse_cut_mark(name)):
                foreign.append(name)
        if foreign:
            logger.warning("%s: ignoring what is not the broker's: %s", self.directory, ", ".join(foreign))
        return bases

    def _existing(self, base_offset: int, suffix: str = LOG) -> Segment:
        """The segment in a file that may not have its final name yet."""
        size = self.filesystem.size_of(self.directory / offset_name(base_offset, suffix))
        return Segment(
            self.directory, base_offset, size=size, interval_bytes=self.index_interval_bytes, filesystem=self.filesystem
        )

    def _open_empty(self, clean: bool) -> OpenedLog:
        """A new log, one that was being truncated to nothing, or one whose files are gone. Its file's name is synced by its first
        flush only: until then it holds nothing that could be missed, and a topic may have thousands of partitions."""
        start = self.cut_marks[-1].offset if self.cut_marks else self.log_start_offset
        if self.recovery_point > start:
            raise DamagedLog(f"{self.directory}: no segment, but records up to offset {self.recovery_point} had been flushed")
        segment = Segment.create(self.directory, start, interval_bytes=self.index_interval_bytes, filesystem=self.filesystem)
        return self._opened([segment], start, Recovery(was_clean=clean, was_new=True))

    def _open_clean(self, segments: list[Segment]) -> OpenedLog | None:
        """Trust the files; None if the last segment does not end with a whole batch or ends before the recovery point, so that
        the stop was not clean after all."""
        last = segments[-1]
        _, start = last.index.offsets.last() or (0, 0)
        position, end_offset, last_epoch = start, last.base_offset, NO_EPOCH
        for position, header in scan_headers(self.filesystem, last.file, start, last.size):
            position += header.size
            end_offset, last_epoch = header.next_offset, header.leader_epoch
        if position != last.size or end_offset < self.recovery_point:
            return None
        last.first_timestamp = _first_timestamp(last)
        return self._opened(segments, end_offset, Recovery(was_clean=True), last_epoch)

    def _recover(self, segments: list[Segment]) -> OpenedLog:
        """Read first, and change files only once it is certain that no flushed batch is missing. Whatever lies beyond the
        recovery point is then written again, the same bytes to the same place. When the disk refuses a flush, the kernel may keep
        the pages that it could not write and call them clean: they can be read, their checksums match, the next flush succeeds
        without them, and a power cut takes them after consumers have seen them. Nothing tells a start whether that has happened.
        """
        # Segments entirely below the recovery point are not read at all: the time a start takes after a crash depends on how much
        # was unflushed, not on the size of the log.
        flushed = sum(following.base_offset <= self.recovery_point for following in segments[1:])
        surveys, reason = self._survey_all(segments[flushed:])
        end_offset = surveys[-1].end_offset
        # A torn tail is what a crash leaves, and it is cut off with no more than a log line. A log shorter than what had been
        # flushed is not the result of a crash: nothing is changed, and the partition stays offline.
        if end_offset < self.recovery_point:
            raise DamagedLog(
                f"{self.directory}: batches up to offset {self.recovery_point} had been flushed, "
                f"but the log ends at {end_offset}: {reason or 'the rest is missing'}"
            )
        removed = segments[flushed + len(surveys) :]
        recovery = Recovery(
            was_clean=False,
            checked_bytes=sum(survey.checked_bytes for survey in surveys),
            truncated_bytes=sum(survey.excess_bytes for survey in surveys) + sum(segment.size for segment in removed),
            removed_segments=len(removed),
            reason=reason,
        )
        self._apply(surveys, removed)
        last_epoch = max(survey.last_epoch for survey in surveys)
        return self._opened(segments[: flushed + len(surveys)], end_offset, recovery, last_epoch)

    def _survey_all(self, segments: list[Segment]) -> tuple[list[_Survey], str]:
        surveys: list[_Survey] = []
        expected, reason = segments[0].base_offset, ""
        for segment in segments:
            if segment.base_offset != expected:  # holds with gaps too: compaction keeps a segment's last batch
                return surveys, f"segment {segment.path(LOG).name} does not begin at offset {expected}"
            survey = self._survey(segment, may_have_gaps=self.is_replica or segment is not segments[-1])
            surveys.append(survey)
            expected, reason = survey.end_offset, survey.reason
            if reason:
                break
            if segment is not segments[-1]:
                segment.close_file()  # there may be more of them than descriptors
        return surveys, reason

    def _survey(self, segment: Segment, *, may_have_gaps: bool) -> _Survey:
        index = SegmentIndex(base_offset=segment.base_offset, interval_bytes=self.index_interval_bytes)
        expected, end, checked, last_epoch = segment.base_offset, 0, 0, NO_EPOCH
        for position, header in scan_headers(self.filesystem, segment.file, 0, segment.size):
            if header.base_offset < expected or (header.base_offset > expected and not may_have_gaps):
                break
            # Checksums are verified only beyond the recovery point; below it headers alone are read, for the index.
            if header.next_offset > self.recovery_point:
                if not checksum_matches(self.filesystem, segment.file, position, header):
                    break
                checked += header.size
            index.observe(position, header)
            expected, end, last_epoch = header.next_offset, position + header.size, header.leader_epoch
        reason = (
            f"{segment.path(LOG).name} holds no whole batch with offset {expected} at position {end}"
            if end < segment.size
            else ""
        )
        return _Survey(
            segment=segment,
            index=index,
            file_bytes=segment.size,
            end_offset=expected,
            end_position=end,
            checked_bytes=checked,
            checked_position=end - checked,
            last_epoch=last_epoch,
            reason=reason,
        )

    def _apply(self, surveys: list[_Survey], removed: list[Segment]) -> None:
        # From the last one backwards: a crash halfway leaves a log without a gap.
        for segment in reversed(removed):
            for path in segment.mark_deleted():
                self.filesystem.remove(path)
        for survey in surveys:
            survey.segment.adopt_index(survey.index)
            if survey.excess_bytes:
                survey.segment.cut(survey.end_position)
        surveys[-1].segment.first_timestamp = _first_timestamp(surveys[-1].segment)
        try:
            for survey in surveys:
                self._rewrite(survey)
                self.filesystem.sync_data(survey.segment.file)
                if survey is not surveys[-1]:
                    survey.segment.close_file()
            self.filesystem.sync_directory(self.directory)
        except OSError as error:
            raise StorageError(
                f"cannot flush {self.directory} after a failed flush or a crash ({error}): its records may not be on disk"
            ) from error

    def _rewrite(self, survey: _Survey) -> None:
        """Write the same bytes to the same place: the kernel then treats the pages as dirty and tries to write them out."""
        position = survey.checked_position
        while position < survey.end_position:
            data = self.filesystem.read_at(survey.segment.file, min(_REWRITTEN_BYTES, survey.end_position - position), position)
            if not data:
                raise OSError(errno.EIO, f"{survey.segment.path(LOG)} ends at {position}, before {survey.end_position}")
            self.filesystem.write_at(survey.segment.file, (data,), position)
            position += len(data)

    def _settle_indexes(self, segments: list[Segment], *, was_clean: bool) -> None:
        """Save the indexes of every sealed segment and close its files. Without indexes the first read, or retention, would walk
        the whole segment on the loop. Done now rather than with a later flush: the indexes that recovery built are in memory, a
        log may have a thousand segments, and the next write may be a long time off. Indexes are not flushed, so after a crash
        the newest are verified; older ones have been on disk for long."""
        if len(segments) == 1:
            return
        names = set(self.filesystem.list_names(self.directory))
        settled_ms = segments[-1].modified_ms - _SETTLED_MS
        for segment, following in pairwise(segments):
            segment.end_offset = following.base_offset
            note = segment.path(INDEX_NOTE)
            try:
                if (
                    segment.has_index_loaded
                    or note.name not in names
                    or not (was_clean or self.filesystem.modified_ms(note) < settled_ms)
                ):
                    segment.index  # noqa: B018  # verified, or rebuilt
            except OSError:
                continue  # the first read that needs it will fail
            segment.forget()


def _first_timestamp(segment: Segment) -> int | None:
    return next((header.max_timestamp for _, header in segment.headers()), None)


def _last_epoch(segments: list[Segment]) -> int:
    """The epoch of the log's last batch, when the last segment is still empty and the batch is in an earlier one."""
    for segment in reversed(segments[:-1]):
        _, start = segment.index.offsets.last() or (0, 0)
        last = NO_EPOCH
        for _, header in segment.headers(start):
            last = header.leader_epoch
        segment.forget()
        segment.close_file()
        if last != NO_EPOCH:
            return last
    return NO_EPOCH
