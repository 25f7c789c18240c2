"""Where a table's Parquet files are: a directory for each window, and in every file's name the attempt that wrote it.

    <table>/_window_start=20150517T100000Z/w7_a2_t12_3f6c0a9be01d.parquet

The name alone shows which attempt a file belongs to, so leftovers are found without opening one; its last part is
random, so that no name is ever reused, not even by a ledger that was lost and started again. A file whose name begins
with "." is still being written. The file system is any that pyarrow supports by URI; a plain path is local.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pyarrow import fs

from logbus.errors import UserError

ATTEMPT_IN_NAME = re.compile(r"\.?w\d+_a(\d+)_t\d+_\w+\.parquet")
STAMP = "%Y%m%dT%H%M%SZ"
WINDOW_FOLDER = re.compile(r"_window_start=(\d{8}T\d{6}Z)")


def window_folder(start: datetime) -> str:
    return f"_window_start={start:{STAMP}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFile:
    """A file that attempt `number` at the window that begins at `start` has written."""

    start: datetime
    number: int
    path: str
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class Directory:
    """A table's directory. `uri` is what tasks are given; paths are those of `filesystem`."""

    uri: str
    filesystem: fs.FileSystem
    path: str

    @classmethod
    def at(cls, uri: str) -> Directory:
        """Opens no connection yet; raises `UserError` for anything but an absolute path or a URI."""
        try:
            filesystem, path = fs.FileSystem.from_uri(uri)
        except (ValueError, OSError) as error:
            raise UserError(f"{uri!r} cannot be a directory of files; give an absolute path or a URI: {error}") from None
        return cls(uri.rstrip("/"), filesystem, path.rstrip("/"))

    def path_of(self, file: str) -> str:
        """The path of a file that a task named by its URI."""
        return self.path + file.removeprefix(self.uri)

    def attempt_files(self, start: datetime) -> Iterator[AttemptFile]:
        """The window's files, finished or not."""
        selector = fs.FileSelector(f"{self.path}/{window_folder(start)}", allow_not_found=True)
        for info in self.filesystem.get_file_info(selector):
            match = ATTEMPT_IN_NAME.fullmatch(info.base_name)
            if match:
                yield AttemptFile(start=start, number=int(match[1]), path=info.path, changed_at=info.mtime)

    def all_attempt_files(self) -> Iterator[AttemptFile]:
        """The files of all windows."""
        for info in self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True)):
            match = WINDOW_FOLDER.fullmatch(info.base_name)
            if match:
                yield from self.attempt_files(datetime.strptime(match[1], STAMP).replace(tzinfo=UTC))

    def remove_attempts(self, start: datetime, is_over: Callable[[int], bool]) -> None:
        """Removes the files of those attempts at a window. A file that another process has just removed is not an error."""
        for file in list(self.attempt_files(start)):
            if is_over(file.number):
                self.remove(file.path)

    def remove(self, path: str) -> None:
        try:
            self.filesystem.delete_file(path)
        except FileNotFoundError:
            pass
