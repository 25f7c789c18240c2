"""Lines that a container runtime has cut, put together again: what the container wrote as one line is one record.

CRI runtimes (containerd, CRI-O; Podman's k8s-file) mark a piece `P`, and the last one of a line, or a whole line, `F`. Docker's
json-file cuts after 16 KiB: such a piece has no newline at the end of its `log`. A shorter `log` without one is what a container
wrote last before it ended, and no piece of what it writes when it is started again.

Lines of stdout and stderr alternate, so others may lie between the pieces of one. Records keep the order of their positions, a
record's position being that of its first piece: what lies between waits until the line is whole. Then all of these follow one
another, marked as a group, because a file cannot be read again from the middle of one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from logbus.collector.line_reader import Line

DOCKER_PIECE_BYTES = 16 << 10  # as a JSON string it is no shorter
PIECES_APART_MS_MAX = 5_000  # they are written within milliseconds; the rest of a line does not come later than this
HELD_BYTES_MAX = 16 << 20  # of all the lines of a group
_DOCKER, _DOCKER_STREAM = b'{"log":"', b'","stream":"'
_CRI_CUT = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.+Z-]+ std(?:out|err) P")  # of nearly all lines this alone is asked
_CRI = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (stdout|stderr) ([PF])(?::\S*)? ")


class CutPiece(NamedTuple):
    """What a line of a container's log holds: `text[start:stop]` was written to `stream`, and more of it follows, or not."""

    stream: bytes
    start: int
    stop: int
    is_last: bool
    tag: int | None = None  # where CRI's P or F is


def piece_of(text: bytes) -> CutPiece | None:
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
        if group is not None and group.bytes + len(text or b"") > HELD_BYTES_MAX:
            yield from group.whole()
            group = None
        if group is None and (text is None or (len(text) < DOCKER_PIECE_BYTES and not is_cut(text))):
            yield line
            continue
        piece = piece_of(text) if text is not None else None
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
