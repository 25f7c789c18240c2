"""A run of bytes in a segment file, on its way to a consumer."""

from __future__ import annotations

from broker.storage.filesystem import OpenFile


class FileSlice:
    """`length` bytes from `position` of an open file. It keeps the file open until it is released, even if the segment is
    deleted. `more_follows`: there is more that might have been read, had limits or the end of the segment not been in the way."""

    __slots__ = ("_file", "length", "more_follows", "position")

    def __init__(self, file: OpenFile, position: int, length: int, more_follows: bool = False) -> None:
        self._file: OpenFile | None = file
        self.position = position
        self.length = length
        self.more_follows = more_follows

    def fileno(self) -> int:
        """The descriptor to send from; valid until `release`."""
        assert self._file is not None, "a released slice has no file"
        return self._file.fileno()

    def release(self) -> None:
        """Release the file; it is closed once no other holder is left. Calling this again is harmless."""
        self._file = None
