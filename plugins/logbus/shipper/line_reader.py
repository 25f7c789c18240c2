"""The lines of a log file, with the byte positions at which they begin and end, in memory bounded by the longest line allowed.

A file may be compressed with gzip, bzip2, xz, zstd or lz4. Positions count bytes of the text, so they are the same before and
after. Each library has its own errors for data that end early or make no sense; here all of them are EOFError. Compressed files
are never appended to.

A line ends with a newline; what follows the last newline is a line still being written and is left for the next run, unless the
caller asks for it or the file is compressed. A line longer than the limit is skipped and counted, never held in memory. A hole (a
run of zero bytes, where a file was truncated under a program that does not append, or a machine lost power) ends a line and is
passed over; one at the end of the file may still be filled in.

Lines that a container runtime has cut are put together again: what the container wrote as one line is one record.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from logbus.errors import UnreadableLog

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


LINE_FEED = ord("\n")
HOLE_BYTES_MIN = 16  # a line with its time is longer; in UTF-16 and in programs there are shorter runs of zero bytes
HOLE = re.compile(rb"\0{%d,}" % HOLE_BYTES_MIN)


class Line(NamedTuple):
    """One line without its line ending, or None if it was too long; `end` is where the next one begins. If the text was put
    together from several lines, `first_text` is that of the first one, as it is in the file. `is_followed`: by others that began
    before it ended (`whole_lines`), so the file can be read from its end on only when these are sent, too."""

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
    first: list[Line] = []
    with open_log(path) as file, suppress(EOFError):
        for line in islice(read_lines(file, position=0, line_bytes_max=line_bytes_max, last_line_is_complete=True), count):
            first.append(line)
    return first


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


# CRI runtimes (containerd, CRI-O; Podman's k8s-file) mark a piece `P`, and the last one of a line, or a whole line, `F`. Docker's
# json-file cuts after 16 KiB: such a piece has no newline at the end of its `log`. A shorter one without it is what a container
# wrote last before it ended, and no piece of what it writes when it is started again.
#
# Lines of stdout and stderr alternate, so others may lie between the pieces of one. Records keep the order of their positions, a
# record's position being that of its first piece: what lies between waits until the line is whole. Then all of these follow one
# another, marked as a group, because a file cannot be read again from the middle of one.

DOCKER_PIECE_BYTES = 16 << 10  # as a JSON string it is no shorter
PIECES_APART_MS_MAX = 5_000  # they are written within milliseconds; the rest of a line does not come later than this
GROUP_BYTES_MAX = 16 << 20  # of all the lines of a group
_DOCKER, _DOCKER_STREAM = b'{"log":"', b'","stream":"'
_CRI_CUT = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.+Z-]+ std(?:out|err) P")
_CRI = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (stdout|stderr) ([PF])(?::\S*)? ")


class CutPiece(NamedTuple):
    """What a line of a container's log holds: `text[start:stop]` was written to `stream`, and more of it follows, or not."""

    stream: bytes
    start: int
    stop: int
    is_last: bool
    tag: int | None = None  # where CRI's P or F is


def _piece_of(text: bytes) -> CutPiece | None:
    """None for a line of another format."""
    if text.startswith(_DOCKER):
        start, stop = len(_DOCKER), text.find(_DOCKER_STREAM)
        stream = text[stop + len(_DOCKER_STREAM) :][: len(b"stdout")]
        return (
            CutPiece(stream, start, stop, stop - start < DOCKER_PIECE_BYTES or _ends_with_newline(text[:stop]))
            if stop > 0
            else None
        )
    match = _CRI.match(text)
    return CutPiece(match[1], match.end(), len(text), match[2] == b"F", match.start(2)) if match else None


def _ends_with_newline(string: bytes) -> bool:
    """Whether a JSON string ends with an escaped newline, and not with an escaped backslash and an n."""
    before = string[:-1]
    return string.endswith(b"n") and (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


@dataclass(slots=True)
class _Pending:
    """A line that waits, with the pieces of it so far."""

    line: Line
    piece: CutPiece | None
    time_ms: int | None
    contents: list[bytes]
    bytes: int
    is_whole: bool = True

    def whole(self, end: int, *, is_followed: bool) -> Line:
        position, _, text, *_ = self.line
        if self.piece is None or text is None or len(self.contents) == 1:
            return Line(position, end, text, is_followed=is_followed)
        before, after = text[: self.piece.start], text[self.piece.stop :]
        if self.piece.tag is not None and self.is_whole:
            before = before[: self.piece.tag] + b"F" + before[self.piece.tag + 1 :]
        return Line(position, end, b"".join([before, *self.contents, after]), text, is_followed)


class _Group:
    """The lines from the first piece of one on, in the order of their positions; `cut`: those of which more is expected."""

    def __init__(self, line_bytes_max: int) -> None:
        self.lines: list[_Pending] = []
        self.cut: dict[bytes, _Pending] = {}
        self.end = 0
        self.bytes = 0
        self._line_bytes_max = line_bytes_max

    def add(self, line: Line, piece: CutPiece | None, time_ms: int | None) -> None:
        size = len(line.text or b"")
        for stream, cut in list(self.cut.items()):
            if time_ms is not None and cut.time_ms is not None and time_ms > cut.time_ms + PIECES_APART_MS_MAX:
                del self.cut[stream]
        pending = self.cut.pop(piece.stream, None) if piece is not None else None
        if pending is None or pending.bytes + size > self._line_bytes_max:
            pending = _Pending(line, piece, time_ms, [], 0)
            self.lines.append(pending)
        if piece is not None and line.text is not None:
            pending.contents.append(line.text[piece.start : piece.stop])
            pending.is_whole = piece.is_last
            if not piece.is_last:
                self.cut[piece.stream] = pending
        pending.bytes += size
        self.bytes += size
        self.end = line.end

    def whole(self) -> Iterator[Line]:
        for pending in self.lines[:-1]:
            yield pending.whole(pending.line.end, is_followed=True)
        yield self.lines[-1].whole(self.end, is_followed=False)


def whole_lines(
    lines: Iterable[Line], *, line_bytes_max: int, time_of: Callable[[bytes], int | None], may_go_on: Callable[[], bool]
) -> Iterator[Line]:
    """The lines, those that were cut put together. `may_go_on`: asked at the end of the file, whether what is missing may still
    be written; then what waits for it is left out. Otherwise what there is of a line is a line."""
    group: _Group | None = None
    is_cut = _CRI_CUT.match
    for line in lines:
        text = line.text
        if group is None and text is not None and b" P" not in text and len(text) < DOCKER_PIECE_BYTES:  # nearly all lines
            yield line
            continue
        if group is not None and group.bytes + len(text or b"") > GROUP_BYTES_MAX:
            yield from group.whole()
            group = None
        if group is None and (text is None or (len(text) < DOCKER_PIECE_BYTES and not is_cut(text))):
            yield line
            continue
        piece = _piece_of(text) if text is not None else None
        if group is None:
            if piece is None or piece.is_last:
                yield line
                continue
            group = _Group(line_bytes_max)
        group.add(line, piece, time_of(text) if text is not None else None)
        if not group.cut:
            yield from group.whole()
            group = None
    if group is not None and not may_go_on():
        yield from group.whole()
