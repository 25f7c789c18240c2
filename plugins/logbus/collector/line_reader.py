"""Lines of a log file with the byte positions at which they begin and end, in memory bounded by the longest line allowed.

Positions count bytes of the uncompressed text, so they are the same before and after a file is compressed. A line ends
with a newline; what follows the last newline is a line still being written and is left for the next run, unless the
caller asks for it or the file is compressed (those are never appended to). A line longer than the limit is skipped and
counted, never held in memory.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Generator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, cast

from logbus.errors import UnreadableLog

GZIP_MAGIC = b"\x1f\x8b"
READ_BUFFER_BYTES = 1 << 20
SKIP_PIECE_BYTES = 1 << 20
# What reading a compressed file raises where its data end early or make no sense. BadGzipFile is an OSError.
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)


class Line(NamedTuple):
    """One line without its line ending, or None if it was too long; `end` is where the next one begins."""

    position: int
    end: int
    text: bytes | None


def is_compressed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == GZIP_MAGIC


def open_log(path: Path) -> IO[bytes]:
    """The file's text from its beginning, decompressed if it is gzip."""
    if is_compressed(path):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb", buffering=READ_BUFFER_BYTES)


def text_bytes(path: Path) -> int:
    """The length of the text, for a progress bar: exact for plain files, gzip's own field (modulo 4 GiB) for compressed ones."""
    stored_bytes = path.stat().st_size
    if not is_compressed(path):
        return stored_bytes
    with path.open("rb") as file:
        file.seek(-4, 2)
        return max(stored_bytes, int.from_bytes(file.read(4), "little"))


def read_lines(
    file: IO[bytes], *, position: int, line_bytes_max: int, last_line_is_complete: bool
) -> Generator[Line, None, bool]:
    """The lines from `position` on, to which `file` is already positioned. Returns whether an unfinished one follows them."""
    limit = line_bytes_max + 2  # with the line ending
    while piece := file.readline(limit):
        end, is_cut = position + len(piece), len(piece) == limit
        if not position and piece.startswith(codecs.BOM_UTF8):  # of Windows editors and spreadsheets: not part of the line
            piece, position = piece[len(codecs.BOM_UTF8) :], len(codecs.BOM_UTF8)
        if piece.endswith(b"\n"):
            text = piece[:-2] if piece.endswith(b"\r\n") else piece[:-1]
        elif is_cut:
            end, complete = _pass_over(file, end)
            if not complete and not last_line_is_complete:
                return True
            yield Line(position, end, None)
            position = end
            continue
        elif last_line_is_complete:
            text = piece
        else:
            return True
        yield Line(position, end, text if len(text) <= line_bytes_max else None)
        position = end
    return False


def first_lines(path: Path, count: int, line_bytes_max: int) -> list[Line]:
    """The first lines; of a damaged file those that can be read: reading all of it will report the damage."""
    found: list[Line] = []
    with open_log(path) as file, suppress(*DAMAGE):
        for line in islice(read_lines(file, position=0, line_bytes_max=line_bytes_max, last_line_is_complete=True), count):
            found.append(line)
    return found


def _pass_over(file: IO[bytes], position: int) -> tuple[int, bool]:
    """Reads to the end of a line that is too long; returns where it ends, and whether with a newline."""
    while piece := file.readline(SKIP_PIECE_BYTES):
        position += len(piece)
        if piece.endswith(b"\n"):
            return position, True
    return position, False


def damaged(path: Path, error: Exception, *, sent: bool = False) -> UnreadableLog:
    """The error for a damaged file. `sent`: what was read before the damage is being sent."""
    done = "What was read before is sent" if sent else "Nothing was sent"
    return UnreadableLog(f"cannot read {path} to its end: {error}. {done}; restore the file, or leave it out, and run again")
