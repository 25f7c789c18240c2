"""`<offset>-<number>.cut`: an empty file next to a log, which says that the log has been truncated to this offset since the data
directory's checkpoints were written.

A checkpoint records below which offset everything is on disk, and where the log begins. A truncation makes both untrue, and a
start that trusted them would take the log for damaged. Rewriting the checkpoints for each truncation would mean writing the
entries of ten thousand partitions for each of the thousand that are truncated after one election. So a truncation leaves this
mark instead, durably, before it changes a file, and a start trusts no checkpoint beyond it. If no segment is left, the log begins
at the newest mark.

The mark is removed once checkpoints that include the truncation have been written. Each has its own number, so that removing it
cannot remove the mark of a later truncation to the same offset.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import NamedTuple

from broker.storage.file_names import offset_name, parse_offset_name
from broker.storage.filesystem import FileSystem

_SUFFIX = re.compile(r"-(?P<number>0|[1-9][0-9]{0,17})\.cut")


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
    match = _SUFFIX.fullmatch(parsed[1]) if parsed is not None else None
    return CutMark(int(match["number"]), parsed[0]) if parsed is not None and match is not None else None


def leave_cut_mark(filesystem: FileSystem, directory: Path, mark: CutMark) -> None:
    """The mark is on disk when this returns. Any thread."""
    filesystem.write_bytes(directory / mark.name, b"", durable=False)
    filesystem.sync_directory(directory)


def remove_cut_mark(filesystem: FileSystem, directory: Path, mark: CutMark) -> None:
    """The checkpoints include the truncation now. Any thread."""
    filesystem.remove(directory / mark.name)


# `flush-failed`: a file next to a log, which says that the log's pages in memory cannot be trusted.
#
# When the disk refuses a flush, the kernel may keep the pages it could not write and mark them clean: they can be read, their
# checksums match, and the next flush succeeds without them. A start that trusted them would show consumers records that a power
# failure then takes away. So the broker leaves this mark, and a start that finds it rewrites everything beyond the recovery
# point, the same bytes to the same place, and flushes that before trusting it. Only then is the mark removed.
#
# The mark need not be durable: it only has to live as long as those pages do. After a reboot they are gone, and what can be read
# is what is on disk. If even the mark cannot be written, a log line says so, and what the operator can do.

logger = logging.getLogger("broker.storage")

FLUSH_FAILED = "flush-failed"


def leave_mark(filesystem: FileSystem, directory: Path) -> None:
    """A flush of the log in `directory` has failed."""
    try:
        filesystem.write_bytes(directory / FLUSH_FAILED, b"", durable=False)
    except OSError as error:
        logger.critical(
            "%s: a flush failed and cannot be noted (%s): make an empty file %s there before the broker is started again, "
            "or reboot the machine; a start that does not know of it may show records that are not on the disk",
            directory,
            error,
            FLUSH_FAILED,
        )


def remove_mark(filesystem: FileSystem, directory: Path) -> None:
    """Everything in the log is on disk now."""
    filesystem.remove(directory / FLUSH_FAILED)
