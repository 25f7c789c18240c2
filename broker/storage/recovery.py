"""Opens the segments of a partition, and after a crash finds where the log truly ends.

After a stop in good order everything is on the disk and only the last few batches are looked at. After a crash, batches below
the recovery point were flushed: they must be there, and what is wrong with them is damage, never mended silently. Batches
beyond it may be torn, missing, or full of zeros where the system had promised a length before it wrote the bytes: the log is
cut at the first that is not whole, whose checksum does not match, or whose offset does not follow, and later segments go. Only
what was never acknowledged as flushed can be lost that way. What remains is flushed before anybody sees it.

Compaction leaves gaps between batches, so in the sealed segments of a log that has been compacted an offset only has to be
larger than the one before; each segment still begins where the one before it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broker.errors import StorageError
from broker.storage.compaction import CLEANED, SWAP, finish_exchange
from broker.storage.filesystem import FileSystem
from broker.storage.leader_epochs import LogEpochs, load_leader_epochs
from broker.storage.scan import checksum_matches, scan_headers
from broker.storage.segment import DELETED, LOG, SUFFIXES, Segment
from broker.storage.segment_index import SegmentIndex

TEMPORARY = ".tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What opening a log found and did."""

    was_clean: bool
    was_new: bool = False  # there was no segment yet
    checked_bytes: int = 0  # whose checksums were computed
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


@dataclass(slots=True, kw_only=True)
class Survey:
    """What a reading of one segment found; its file is not changed yet."""

    segment: Segment
    index: SegmentIndex
    file_bytes: int
    end_offset: int
    end_position: int
    checked_bytes: int
    last_epoch: int  # of its last whole batch, -1 where it has none
    reason: str  # why the walk ended before the file did; empty: it did not

    @property
    def excess_bytes(self) -> int:
        return self.file_bytes - self.end_position


class DamagedLog(StorageError):
    """Batches that had been flushed are gone or damaged: the partition stays offline until a person has looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOpener:
    """Opens one partition's directory."""

    directory: Path
    filesystem: FileSystem
    index_interval_bytes: int
    recovery_point: int
    log_start_offset: int
    may_have_gaps: bool = False  # compaction has been here

    def open_or_explain(self, *, clean: bool) -> OpenedLog:
        """The log, or no segments and the reason: a partition that cannot be opened must not keep the others from being
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
        """The log as it is; DamagedLog where flushed batches are not whole."""
        self._finish_exchanges()
        bases = self._remove_leftovers()
        if not bases:
            return self._open_empty(clean)
        segments = [self._existing(base) for base in bases]
        opened = self._open_clean(segments) if clean else None
        return opened or self._recover(segments)

    def _opened(self, segments: list[Segment], end_offset: int, recovery: Recovery, last_epoch: int = -1) -> OpenedLog:
        if self.log_start_offset > end_offset:
            raise DamagedLog(f"{self.directory}: ends at offset {end_offset}, but its start had moved to {self.log_start_offset}")
        start = max(self.log_start_offset, segments[0].base_offset)
        written = load_leader_epochs(self.filesystem, self.directory, segments, end_offset=end_offset, last_epoch=last_epoch)
        epochs = LogEpochs(self.filesystem, self.directory, written, rises=not (recovery.was_clean or recovery.was_new))
        return OpenedLog(segments=segments, log_start_offset=start, end_offset=end_offset, recovery=recovery, epochs=epochs)

    def _finish_exchanges(self) -> None:
        """A crash came while compacted segments took the places of the old ones: the new ones are whole, so they stay."""
        names = self.filesystem.list_names(self.directory)
        for name in names:
            if name.endswith(LOG + SWAP):
                base_offset = int(name[: -len(LOG + SWAP)])
                end_offset = self._end_of_swap(name, base_offset)
                old = [base for base in _bases(names) if base_offset <= base < end_offset]
                finish_exchange(self.filesystem, [self._existing(base) for base in old], self._named(name, base_offset))

    def _end_of_swap(self, name: str, base_offset: int) -> int:
        file = self.filesystem.open(self.directory / name)
        size, position, end_offset = self.filesystem.size(file), 0, base_offset
        for position, header in scan_headers(self.filesystem, file, 0, size):
            position += header.size
            end_offset = header.next_offset
        if position != size or end_offset == base_offset:
            raise DamagedLog(f"{self.directory / name}: no batch at position {position} of {size}, though it had been flushed")
        return end_offset

    def _named(self, name: str, base_offset: int) -> Segment:
        """The segment of a file whose name is not final yet."""
        size = self.filesystem.size_of(self.directory / name)
        return Segment(
            self.directory, base_offset, size=size, interval_bytes=self.index_interval_bytes, filesystem=self.filesystem
        )

    def _remove_leftovers(self) -> list[int]:
        """Remove what a stop in the middle of something left; returns the segments' base offsets."""
        names = self.filesystem.list_names(self.directory)
        bases = _bases(names)
        known = set(bases)
        for name in names:
            stem, dot, suffix = name.partition(".")
            is_orphan = dot + suffix in SUFFIXES and stem.isdigit() and int(stem) not in known
            if name.endswith((DELETED, TEMPORARY, CLEANED)) or is_orphan:
                self.filesystem.remove(self.directory / name)
        return bases

    def _existing(self, base_offset: int) -> Segment:
        return Segment.existing(self.directory, base_offset, interval_bytes=self.index_interval_bytes, filesystem=self.filesystem)

    def _open_empty(self, clean: bool) -> OpenedLog:
        """A new log, or one whose files are gone."""
        if self.recovery_point > self.log_start_offset:
            raise DamagedLog(f"{self.directory}: no segment, but records up to offset {self.recovery_point} had been flushed")
        segment = Segment.create(
            self.directory, self.log_start_offset, interval_bytes=self.index_interval_bytes, filesystem=self.filesystem
        )
        self.filesystem.sync_directory(self.directory)
        return self._opened([segment], self.log_start_offset, Recovery(was_clean=clean, was_new=True))

    def _open_clean(self, segments: list[Segment]) -> OpenedLog | None:
        """Believe the files; None where the last segment does not end with a whole batch, so that the stop was not clean after
        all."""
        last = segments[-1]
        entries = last.index.offsets
        start = entries.entry(len(entries) - 1)[1] if len(entries) else 0
        position, end_offset, last_epoch = start, last.base_offset, -1
        for position, header in scan_headers(self.filesystem, last.file, start, last.size):
            position += header.size
            end_offset, last_epoch = header.next_offset, header.leader_epoch
        if position != last.size or end_offset < self.recovery_point:
            return None
        last.first_timestamp = self._first_timestamp(last)
        return self._opened(segments, end_offset, Recovery(was_clean=True), last_epoch)

    def _recover(self, segments: list[Segment]) -> OpenedLog:
        """Read first, and change files only when it is sure that no flushed batch is missing."""
        flushed = sum(following.base_offset <= self.recovery_point for following in segments[1:])
        surveys, reason = self._survey_all(segments[flushed:])
        end_offset = surveys[-1].end_offset
        if end_offset < self.recovery_point:
            raise DamagedLog(
                f"{self.directory}: batches up to offset {self.recovery_point} had been flushed, "
                f"but the log ends at {end_offset}: {reason or 'the rest is gone'}"
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

    def _survey_all(self, segments: list[Segment]) -> tuple[list[Survey], str]:
        surveys: list[Survey] = []
        expected, reason = segments[0].base_offset, ""
        for segment in segments:
            if segment.base_offset != expected:  # also where there are gaps: compaction keeps the last batch of a segment
                return surveys, f"segment {segment.path(LOG).name} does not begin at offset {expected}"
            survey = self._survey(segment, may_have_gaps=self.may_have_gaps and segment is not segments[-1])
            surveys.append(survey)
            expected, reason = survey.end_offset, survey.reason
            if reason:
                break
        return surveys, reason

    def _survey(self, segment: Segment, *, may_have_gaps: bool) -> Survey:
        index = SegmentIndex(base_offset=segment.base_offset, interval_bytes=self.index_interval_bytes)
        expected, end, checked, last_epoch = segment.base_offset, 0, 0, -1
        for position, header in scan_headers(self.filesystem, segment.file, 0, segment.size):
            if header.base_offset < expected or (header.base_offset > expected and not may_have_gaps):
                break
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
        return Survey(
            segment=segment,
            index=index,
            file_bytes=segment.size,
            end_offset=expected,
            end_position=end,
            checked_bytes=checked,
            last_epoch=last_epoch,
            reason=reason,
        )

    def _apply(self, surveys: list[Survey], removed: list[Segment]) -> None:
        for segment in reversed(removed):
            for path in segment.mark_deleted():
                self.filesystem.remove(path)
        for survey in surveys:
            survey.segment.adopt_index(survey.index)
            if survey.excess_bytes:
                survey.segment.cut(survey.end_position)
            self.filesystem.sync_data(survey.segment.file)
        surveys[-1].segment.first_timestamp = self._first_timestamp(surveys[-1].segment)
        self.filesystem.sync_directory(self.directory)

    def _first_timestamp(self, segment: Segment) -> int | None:
        return next((header.max_timestamp for _, header in segment.headers()), None)


def _bases(names: list[str]) -> list[int]:
    """First offsets of the segments among these files."""
    return sorted(int(name[: -len(LOG)]) for name in names if name.endswith(LOG) and name[: -len(LOG)].isdigit())
