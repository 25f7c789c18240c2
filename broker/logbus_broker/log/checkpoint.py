"""What a start knows about a log without reading it: Kafka's checkpoint files, one number for each partition, in text; and the
marks next to a log that say that the checkpoints, or its pages in memory, cannot be trusted.

0                   version
2                   entries
access 0 1500       topic, partition, offset
access 1 1487
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from logbus_broker.errors import StartupError, storage_errors
from logbus_broker.filesystem import FileSystem, offset_name, parse_offset_name
from logbus_broker.setting_parsers import INT32_MAX, INT64_MAX, between, whole_number

logger = logging.getLogger("broker.log")

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
VISIBLE_OFFSETS = "replication-offset-checkpoint"  # in a cluster only
CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, CLEANED_OFFSETS, VISIBLE_OFFSETS)

TopicPartition = tuple[str, int]
Offsets = dict[TopicPartition, int]
Job = Callable[[], None]

_VERSION = "0"
# What records and answers have room for: a larger offset could be read here, and would then fail wherever it is used.
_parse_index, _parse_offset = between(0, INT32_MAX), between(0, INT64_MAX)

# `<offset>-<number>.cut`: an empty file next to a log, which says that the log has been truncated to this offset since the data
# directory's checkpoints were written.
#
# A checkpoint records below which offset everything is on disk, and where the log begins. A truncation makes both untrue, and a
# start that trusted them would take the log for damaged. Rewriting the checkpoints for each truncation would mean writing the
# entries of ten thousand partitions for each of the thousand that are truncated after one election. So a truncation leaves this
# mark instead, durably, before it changes a file, and a start trusts no checkpoint beyond it. If no segment is left, the log
# begins at the newest mark.
#
# The mark is removed once checkpoints that include the truncation have been written. Each has its own number, so that removing it
# cannot remove the mark of a later truncation to the same offset.
_CUT_SUFFIX = re.compile(r"-(?P<number>0|[1-9][0-9]{0,17})\.cut")


def read_checkpoint(filesystem: FileSystem, path: Path) -> Offsets:
    """The file's entries; none if there is no file. StartupError if it is not a checkpoint file."""
    try:
        text = filesystem.read_bytes(path).decode()
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise StartupError(_fault(path, "it is not text")) from None
    lines = text.splitlines() if text.strip("\0") else []  # a power failure may leave zeros
    try:
        if len(lines) < 2:
            raise ValueError("it is empty" if not lines else f"it ends after {lines[0]!r}")
        version, count, *entries = lines
        if version != _VERSION or whole_number(count) != len(entries):
            raise ValueError(f"version {version} with {len(entries)} of {count} entries")
        return dict(map(_parse_entry, entries))
    except ValueError as error:
        raise StartupError(_fault(path, str(error))) from None


def write_checkpoint(filesystem: FileSystem, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the file atomically; it is on disk when this returns."""
    lines = [
        _VERSION,
        str(len(offsets)),
        *(f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())),
    ]
    filesystem.replace_bytes(path, "\n".join(lines).encode() + b"\n")


def _parse_entry(line: str) -> tuple[TopicPartition, int]:
    fields = line.split(" ")
    if len(fields) != 3:
        raise ValueError(f"{line[:100]!r} is not a topic, a partition and an offset")
    topic, partition, offset = fields
    return (topic, _parse_index(partition)), _parse_offset(offset)


def _fault(path: Path, reason: str) -> str:
    return f"cannot read {path}: {reason}. It may be removed after an unclean stop: every log is then checked from its beginning"


class Checkpoints:
    """All of a data directory. The loop changes them; jobs, which any thread may run, one after the other, write them."""

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._offsets = {name: read_checkpoint(filesystem, directory / name) for name in CHECKPOINTS}

    def recovery_point(self, topic: str, partition: int) -> int:
        """Below it everything had been flushed when the checkpoint was written."""
        return self._offsets[RECOVERY_POINTS].get((topic, partition), 0)

    def log_start_offset(self, topic: str, partition: int) -> int:
        """Where the log began when the checkpoint was written."""
        return self._offsets[LOG_START_OFFSETS].get((topic, partition), 0)

    def visible_offset(self, topic: str, partition: int) -> int:
        """Below it every in-sync replica had everything on its disk when the checkpoint was written."""
        return self._offsets[VISIBLE_OFFSETS].get((topic, partition), 0)

    def note_cut(self, topic: str, partition: int, offset: int) -> None:
        """The log has been truncated to `offset`, perhaps before this start: what now follows it is neither compacted nor known
        to other replicas."""
        for name in (CLEANED_OFFSETS, VISIBLE_OFFSETS):
            offsets = self._offsets[name]
            if offsets.get((topic, partition), 0) > offset:
                offsets[topic, partition] = offset

    def cleaned_offset(self, topic: str, partition: int) -> int:
        """Below it the log has been compacted."""
        return self._offsets[CLEANED_OFFSETS].get((topic, partition), 0)

    def note_cleaned_offset(self, topic: str, partition: int, offset: int) -> None:
        """A compaction pass has ended; `cleaned_offsets_job` writes this to disk."""
        self._offsets[CLEANED_OFFSETS][topic, partition] = offset

    def cleaned_offsets_job(self) -> Job:
        """A job for any thread that writes how far each log is compacted."""
        return self.write_job([CLEANED_OFFSETS])

    def forget(self, partitions: Iterable[TopicPartition]) -> Job | None:
        """Drop the checkpoint entries of partitions that are about to be created; returns a job that writes this to disk, None
        if there are none."""
        # In every file, whichever the new topic needs: an entry of a former topic left in any of them would be trusted.
        stale = set(partitions)
        changed = [name for name, offsets in self._offsets.items() if not stale.isdisjoint(offsets)]
        for name in changed:
            for key in stale & self._offsets[name].keys():
                del self._offsets[name][key]
        return self.write_job(changed) if changed else None

    def write_job(self, names: Iterable[str]) -> Job:
        """A job for any thread that writes these files as they are now."""
        offsets_now = {name: dict(self._offsets[name]) for name in names}

        def write() -> None:
            for name, offsets in offsets_now.items():
                with storage_errors(f"write {self._directory / name}"):
                    write_checkpoint(self._filesystem, self._directory / name, offsets)

        return write

    def replace(self, name: str, offsets: Offsets) -> None:
        """`write_job` writes this to disk."""
        self._offsets[name] = offsets


class CutMark(NamedTuple):
    """One truncation of a log."""

    number: int
    offset: int

    @property
    def name(self) -> str:
        return offset_name(self.offset, f"-{self.number}.cut")


def read_cut_marks(filesystem: FileSystem, directory: Path) -> tuple[CutMark, ...]:
    """The marks of the log in `directory`, the newest last."""
    marks = map(parse_cut_mark, filesystem.list_names(directory))
    return tuple(sorted(mark for mark in marks if mark is not None))


def parse_cut_mark(name: str) -> CutMark | None:
    parsed = parse_offset_name(name)
    match = _CUT_SUFFIX.fullmatch(parsed[1]) if parsed is not None else None
    return CutMark(int(match["number"]), parsed[0]) if parsed is not None and match is not None else None


def leave_cut_mark(filesystem: FileSystem, directory: Path, mark: CutMark) -> None:
    """The mark is on disk when this returns. Any thread."""
    filesystem.write_bytes(directory / mark.name, b"", durable=False)
    filesystem.sync_directory(directory)


def remove_cut_mark(filesystem: FileSystem, directory: Path, mark: CutMark) -> None:
    """The checkpoints include the truncation now. Any thread."""
    filesystem.remove(directory / mark.name)
