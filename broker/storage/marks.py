"""`<offset>-<number>.cut`: an empty file beside a log that says that the log has been cut at this offset since the checkpoints of
the data directory were written.

A checkpoint says below which offset everything is on the disk, and where the log begins. A cut makes both untrue, and a start
that believed them would take the log for damaged. To write the checkpoints anew for each cut would be to write what they say of
ten thousand partitions for each of a thousand that are cut after one election. So a cut leaves this mark instead, durably,
before it changes a file, and a start believes no checkpoint beyond it. Where no segment is left, the log begins at the newest
mark.

The mark goes when checkpoints that know of the cut have been written. Each has a number of its own, so that what removes it
cannot remove that of a later cut at the same offset.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import NamedTuple

from broker.storage.filesystem import FileSystem

_NAME = re.compile(r"(?P<offset>\d{20})-(?P<number>\d+)\.cut")


class CutMark(NamedTuple):
    """One cut of a log."""

    number: int
    offset: int

    @property
    def name(self) -> str:
        return f"{self.offset:020d}-{self.number}.cut"


def read_cut_marks(filesystem: FileSystem, directory: Path) -> tuple[CutMark, ...]:
    """Those of the log in `directory`, the newest last."""
    matches = map(_NAME.fullmatch, filesystem.list_names(directory))
    return tuple(sorted(CutMark(int(match["number"]), int(match["offset"])) for match in matches if match))


def leave_cut_mark(filesystem: FileSystem, directory: Path, mark: CutMark) -> None:
    """It is on the disk when this returns. Any thread."""
    filesystem.write_bytes(directory / mark.name, b"", durable=False)
    filesystem.sync_directory(directory)


def remove_cut_mark(filesystem: FileSystem, directory: Path, mark: CutMark) -> None:
    """The checkpoints know of the cut. Any thread."""
    filesystem.remove(directory / mark.name)


# `flush-failed`: a file beside a log that says that its pages in memory cannot be believed.
#
# When the disk refuses a flush, the system may keep the pages that it could not write, and call them clean: they can be read,
# their checksums match, and the next flush succeeds without them. A start that believed them would show records to consumers
# that a power cut then takes. So the broker leaves this mark, and a start that finds it writes everything behind the recovery
# point once more, the same bytes to the same place, and flushes that before it believes it. Only then is the mark removed.
#
# The mark need not be durable: it has to live as long as those pages do. After a reboot they are gone, and what can be read is
# what the disk holds. Where even the mark cannot be written, the log says so, and what a person can do.

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
    """All that the log holds is on the disk."""
    filesystem.remove(directory / FLUSH_FAILED)
