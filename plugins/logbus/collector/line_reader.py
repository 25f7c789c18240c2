"""Lines of a log file with the byte positions at which they begin and end, in memory bounded by the longest line allowed.

A line ends with a newline; what follows the last newline is a line still being written and is left for the next run, unless the
caller asks for it or the file is compressed (compressed.py). A line longer than the limit is skipped and counted, never held in
memory. A hole (a run of zero bytes, where a file was truncated under a program that does not append, or a machine lost power)
ends a line and is passed over; one at the end of the file may still be filled in.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

from logbus.collector.compressed import open_log
from logbus.errors import UnreadableLog

HOLE_BYTES_MIN = 16  # a line with its time is longer; in UTF-16 and in programs there are shorter runs of zero bytes
LINE_FEED = ord("\n")
HOLE = re.compile(rb"\0{%d,}" % HOLE_BYTES_MIN)


class Line(NamedTuple):
    """One line without its line ending, or None if it was too long; `end` is where the next one begins. If the text was put
    together from several lines, `first_text` is that of the first one, as it is in the file. `is_followed`: by others that began
    before it ended (cut_lines.py), so the file can be read from its end on only when these are sent, too."""

    position: int
    end: int
    text: bytes | None
    first_text: bytes | None = None
    is_followed: bool = False


def read_lines(
    file: IO[bytes],
    *,
    position: int,
    line_bytes_max: int,
    last_line_is_complete: bool,
    holes: dict[int, int] | None = None,
) -> Generator[Line, None, bytes]:
    """The lines from `position` on, to which `file` is already positioned. Returns the unfinished one that follows them, if it is
    too long its beginning. The position and length of each hole that text follows are added to `holes`."""
    limit = max(line_bytes_max, 4 * HOLE_BYTES_MIN) + 2  # with the line ending; or holes would not be recognised
    rest = b""  # what was read beyond a hole
    new_line = tuple.__new__  # in half the time of `Line(...)`, which is a function in Python
    while piece := _completed(rest, file, limit) if rest else file.readline(limit):
        if position and piece[-1] == LINE_FEED and b"\0" not in piece and not rest:  # nearly all lines
            text, end = piece[:-2] if piece[-2:-1] == b"\r" else piece[:-1], position + len(piece)
            yield new_line(Line, (position, end, text if len(text) <= line_bytes_max else None, None, False))
            position = end
            continue
        rest, end, is_cut = b"", position + len(piece), len(piece) == limit
        if not position and piece.startswith(codecs.BOM_UTF8):  # of Windows editors and spreadsheets: not part of the line
            piece, position = piece[len(codecs.BOM_UTF8) :], len(codecs.BOM_UTF8)
        hole = HOLE.search(piece) if b"\0" in piece else None
        if hole is not None:
            text = piece[: hole.start()]
            end, rest = _pass_zeros(file, position + hole.end(), piece[hole.end() :], limit)
            if not rest:  # a writer may still fill them in
                end = position + hole.start()
                if not last_line_is_complete:
                    return text
            if rest and holes is not None:
                holes[position + hole.start()] = end - position - hole.start()
        elif piece.endswith(b"\n"):
            text = piece[:-2] if piece.endswith(b"\r\n") else piece[:-1]
        elif is_cut:
            end, complete, rest = _pass_over(file, end, limit)
            if not complete and not last_line_is_complete:
                return piece
            yield Line(position, end, None)
            position = end
            continue
        elif last_line_is_complete:
            text = piece
        else:
            return piece
        if text or hole is None:
            yield Line(position, end, text if len(text) <= line_bytes_max else None)
        position = end
    return b""


def first_lines(path: Path, count: int, line_bytes_max: int) -> list[Line]:
    """The first lines; of a damaged file those that can be read: reading all of it will report the damage."""
    found: list[Line] = []
    with open_log(path) as file, suppress(EOFError):
        for line in islice(read_lines(file, position=0, line_bytes_max=line_bytes_max, last_line_is_complete=True), count):
            found.append(line)
    return found


def _completed(rest: bytes, file: IO[bytes], limit: int) -> bytes:
    return rest if rest.endswith(b"\n") else rest + file.readline(limit - len(rest))


def _pass_over(file: IO[bytes], position: int, limit: int) -> tuple[int, bool, bytes]:
    """Reads to the end of a line that is too long; returns where it ends, whether with a newline or a hole, and the hole's
    beginning."""
    while piece := file.readline(limit):
        if b"\0" in piece and (hole := HOLE.search(piece)) is not None:
            return position + hole.start(), True, piece[hole.start() :]
        position += len(piece)
        if piece.endswith(b"\n"):
            return position, True, b""
    return position, False, b""


def _pass_zeros(file: IO[bytes], position: int, rest: bytes, limit: int) -> tuple[int, bytes]:
    """Reads to the end of a hole; returns where it ends, and what was read beyond it: nothing at the end of the file."""
    while not rest and (piece := file.readline(limit)):
        rest = piece.lstrip(b"\0")
        position += len(piece) - len(rest)
    return position, rest


def damaged(path: Path, error: Exception, *, sent: bool = False) -> UnreadableLog:
    """The error for a damaged file. `sent`: what was read before the damage is being sent."""
    done = "What was read before is sent" if sent else "Nothing was sent"
    return UnreadableLog(f"cannot read {path} to its end: {error}. {done}; restore the file, or leave it out, and run again")
