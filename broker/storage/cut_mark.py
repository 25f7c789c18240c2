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
