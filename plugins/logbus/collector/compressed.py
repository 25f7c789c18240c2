"""The text of a log file, whatever it is compressed with: gzip, bzip2, xz, zstd or lz4.

Positions count bytes of the text, so they are the same before and after a file is compressed. Each library has its own errors for
data that end early or make no sense; here all of them are EOFError. Compressed files are never appended to.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

READ_BUFFER_BYTES = 1 << 20
PIECE_BYTES = 1 << 16  # of text; Arrow loses what it has unpacked of a piece before it meets damage
SUFFIXES = ("gz", "bz2", "xz", "zst", "lz4")
MAGIC_BYTES = 10
FILES_REMEMBERED = 4096


def _by_arrow(codec: str) -> Callable[[IO[bytes]], Any]:
    def unpack(packed: IO[bytes]) -> Any:
        import pyarrow  # a second of CPU, so only for a file that needs it

        return pyarrow.CompressedInputStream(pyarrow.PythonFile(packed, "r"), codec)

    return unpack


FORMATS: tuple[tuple[re.Pattern[bytes], Callable[[IO[bytes]], Any]], ...] = (
    (re.compile(rb"\x1f\x8b"), gzip.open),
    (re.compile(rb"BZh[1-9]1AY&SY"), bz2.open),
    (re.compile(rb"\xfd7zXZ\x00"), lzma.open),
    (re.compile(rb"\x28\xb5\x2f\xfd"), _by_arrow("zstd")),
    (re.compile(rb"\x04\x22\x4d\x18"), _by_arrow("lz4")),
)


class _Unpacked(io.RawIOBase):
    """The text of compressed data, from the beginning to the end."""

    def __init__(self, packed: IO[bytes], text: Any) -> None:
        self._packed = packed
        self._text = text

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._packed.fileno()

    def readinto(self, buffer: Any) -> int:
        try:
            piece = self._text.read1(len(buffer))
        except (OSError, zlib.error, lzma.LZMAError) as error:
            if getattr(error, "errno", None) is not None:  # the disk's
                raise
            raise EOFError(str(error)) from error
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._packed.close()
        super().close()


def _format_of(start: bytes) -> Callable[[IO[bytes]], Any] | None:
    return next((unpack for magic, unpack in FORMATS if magic.match(start)), None)


def is_compressed(path: Path) -> bool:
    with path.open("rb") as file:
        return _format_of(file.read(MAGIC_BYTES)) is not None


def open_log(path: Path, position: int = 0) -> IO[bytes]:
    """The file's text from `position` on. EOFError if compressed data are damaged before that."""
    packed = io.BufferedReader(io.FileIO(path), READ_BUFFER_BYTES)
    try:
        unpack = _format_of(packed.peek(MAGIC_BYTES))
        if unpack is None:
            packed.seek(position)
            return packed
        text = io.BufferedReader(_Unpacked(packed, unpack(packed)), PIECE_BYTES)
        while position and (piece := text.read1(min(position, PIECE_BYTES))):
            position -= len(piece)
        return text
    except BaseException:
        packed.close()
        raise


def holds_more(path: Path, position: int) -> bool:
    """Whether text follows the position; True as well if the file is damaged before it, which reading it reports."""
    if not is_compressed(path):
        return path.stat().st_size > position
    return _holds_more(path, position, version_of(path))


@lru_cache(FILES_REMEMBERED)
def _holds_more(path: Path, position: int, version: tuple[int, ...]) -> bool:
    try:
        with open_log(path, position) as file:
            return bool(file.read(1))
    except EOFError:
        return True


def version_of(path: Path) -> tuple[int, ...]:
    """What changes if the file does. What is read far behind in a compressed file is kept with it: a shipper that follows looks
    at all rotated files each second."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def text_bytes(path: Path) -> int:
    """The length of the text for a progress bar: exact for a plain file, at least what is on disk for a compressed one."""
    stored_bytes = path.stat().st_size
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b" or stored_bytes < 4:
            return stored_bytes
        file.seek(-4, 2)  # gzip's own count, modulo 4 GiB, of its last part
        return max(stored_bytes, int.from_bytes(file.read(4), "little"))
