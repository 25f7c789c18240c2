"""Which file is this? A log file is recognised by its content, so that a renamed, copied or compressed one is not sent again.

Log rotation renames files, truncates them in place or compresses them. So a source is recognised by a fingerprint of its first
bytes and of the last line sent, at its position. If device, inode and both fingerprints match, it is the same file, grown or
not. With another inode (renamed across disks, copied, compressed) it is the same only if enough of it was sent that the match is
no coincidence. If the file itself is still there, a rotated copy of it has nothing more to send; another copy (of a machine that
was cloned) is a source of its own that begins behind the lines that both have. Anything else is a new source, sent from its
beginning.
"""

from __future__ import annotations

import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from logbus.errors import LogGone, UnreadableLog
from logbus.shipper import line_reader
from logbus.shipper.line_reader import open_log

TEXT_HEAD_BYTES = 8192  # enough to recognise a file that is not text
_ZEROS_NO_HOLE = re.compile(rb"(?<!\0)\0{1,%d}(?!\0)" % (line_reader.HOLE_BYTES_MIN - 1))
_PACKED = re.compile(rf"\.(?:{'|'.join(line_reader.SUFFIXES)})$")
# What rotation appends to a name: app.log.1, app.log.2.gz, app.log-20260522, app.log-20260522-1779, app.log.2026-05-22_10
_SUFFIX = re.compile(r"[.-]\d[\dT_.:-]*")
# The same before the extension: app-20260522.log, app.2026-05-22.0.log.gz. Only a date: app-1.log is another process's log.
_INFIX = re.compile(r"[._-]\d{4}-?\d\d-?\d\d[\dT_.:-]*")
UNKNOWN_INODE = 0  # no file has it
RENAMED = "was renamed or removed while it was being read, perhaps by a rotation: run again"
HEAD_BYTES = 1024  # enough for several stamped lines: two logs do not share them by coincidence
CONTENT_IDENTITY_BYTES_MIN = 1024  # a file of which less was sent is recognised only by its inode


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The digest of `length` bytes at `position`; the bytes there now either match or are something else."""

    position: int = 0
    length: int = 0
    digest: str = ""

    @classmethod
    def of(cls, content: bytes, *, position: int = 0) -> Fingerprint:
        return cls(position=position, length=len(content), digest=_digest(content))

    def matches(self, content: bytes) -> bool:
        return len(content) >= self.length and (not self.length or _digest(content[: self.length]) == self.digest)


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One log file and how far it was sent: every line before `position` is acknowledged."""

    source_id: str
    path: str
    device: int
    inode: int
    head: Fingerprint
    last_line: Fingerprint = field(default_factory=Fingerprint)
    position: int = 0
    timestamp_ms: int | None = None  # of the last line that had one
    ahead: tuple[int, ...] = ()  # lines beyond `position` that an interrupted run had already sent
    written_ns: int = 0  # when the file was last written, as the last run saw it: an older rotated file is nothing new

    @property
    def bytes_known(self) -> int:
        """How many bytes of its content are known: all that was ever sent, even if it is to be sent again."""
        return max(self.position, self.last_line.position + self.last_line.length)

    @property
    def is_blank(self) -> bool:
        """The file was empty: it is known by its path and inode alone."""
        return not self.bytes_known and not self.head.length


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """What a report names: a file, a byte of its text, and how many pieces of how many bytes begin there."""

    path: str
    position: int
    pieces: int = 1
    bytes: int = 0


def check_readable(path: Path) -> None:
    """Raises UnreadableLog, with what to do, for anything that cannot be read as a log file."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.name == "-":
            raise UnreadableLog(
                "ship reads files, so that it can continue where it stopped: `logbus produce TOPIC` reads standard input"
            ) from None
        raise LogGone(f"{path} does not exist") from None
    except OSError as error:
        raise _not_allowed(path, error) from error
    if stat.S_ISDIR(mode):
        raise UnreadableLog(f"{path} is a directory: name the files in it, for example {path / '*.log'}")
    if not stat.S_ISREG(mode):
        raise UnreadableLog(
            f"{path} is not a regular file, so a later run could not continue where this one stops. "
            f"`logbus produce TOPIC < {path}` reads a pipe"
        )
    try:
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise LogGone(f"{path} {RENAMED}") from None
    except OSError as error:
        raise _not_allowed(path, error) from error
    zeros = _ZEROS_NO_HOLE.search(_read(path, 0, TEXT_HEAD_BYTES))
    if zeros is not None and zeros.end() < TEXT_HEAD_BYTES:  # at the end of what was read a hole may begin
        raise UnreadableLog(
            f"{path} is not a text file: byte {zeros.start()} is NUL. Unpack it if it is an archive (files that are "
            "gzip, bzip2, xz, zstd or lz4 alone are read as they are), and convert it if it is UTF-16 (iconv -f UTF-16 -t UTF-8)"
        )


@contextmanager
def missing_files_as_log_gone() -> Iterator[None]:
    """Raises LogGone if a file is renamed while it is being examined."""
    try:
        yield
    except FileNotFoundError as error:
        raise LogGone(f"{error.filename} {RENAMED}") from error


def _not_allowed(path: Path, error: OSError) -> UnreadableLog:
    return UnreadableLog(f"cannot read {path}: {error.strerror}. Run as a user who may read it, or change its mode")


def _random_id() -> str:
    return secrets.token_hex(8)


def identify(paths: Sequence[Path], sent_before: Sequence[Source], *, new_id: Callable[[], str] = _random_id) -> list[Source]:
    """The source that each path is now; a path that turns out to be the same file as an earlier one is left out."""
    inodes = {(source.device, source.inode) for source in sent_before}
    sources: dict[str, Source] = {}
    for path in sorted(paths, key=lambda path: _device_and_inode(path) not in inodes):  # the file itself before its copies
        source = _identify(path, [*sources.values(), *sent_before], new_id=new_id)
        sources.setdefault(source.source_id, source)
    by_path = {source.path: source for source in sources.values()}
    return [by_path[name] for name in dict.fromkeys(str(path) for path in paths) if name in by_path]


def known_source(path: Path, sent_before: Sequence[Source]) -> Source | None:
    """The known source that the file is, under whatever name; None if nothing was sent from it yet."""
    source = _identify(path, sent_before, new_id=lambda: "")
    return source if source.source_id else None


def _identify(path: Path, candidates: Sequence[Source], *, new_id: Callable[[], str]) -> Source:
    device, inode = _device_and_inode(path)
    written_ns = path.stat().st_mtime_ns
    head = _read(path, 0, HEAD_BYTES)
    if _device_and_inode(path) != (device, inode):
        raise LogGone(f"{path} {RENAMED}")
    now: dict[str, Any] = {
        "path": str(path),
        "device": device,
        "inode": inode,
        "head": Fingerprint.of(head),
        "written_ns": written_ns,
    }
    for source in sorted(candidates, key=lambda source: (source.is_blank, (source.device, source.inode) != (device, inode))):
        same_inode = (source.device, source.inode) == (device, inode)
        if source.is_blank and source.path != str(path):
            continue  # another file may have got its inode
        is_copy = source.bytes_known >= CONTENT_IDENTITY_BYTES_MIN or _may_be_rotated(path, source)
        if not ((same_inode or is_copy) and (_holds(path, head, source) or _is_beginning(path, head, source))):
            continue
        here = replace(source, **now)
        if same_inode or not _is_still_there(source):
            return here
        if _may_be_rotated(path, source):
            return source
        common, line_end, is_shorter = _common_bytes(path, Path(source.path))
        if is_shorter:
            return source  # it may still be being copied
        if common >= source.bytes_known:
            return replace(here, source_id=new_id(), position=max(source.position, line_end), ahead=())
    return Source(source_id=new_id(), **now)


def _is_still_there(source: Source) -> bool:
    """Whether the source's own file is where it was, and still holds what was sent of it."""
    path = Path(source.path)
    try:
        is_itself = _device_and_inode(path) == (source.device, source.inode)
        return is_itself and _holds(path, _read(path, 0, HEAD_BYTES), source)
    except (OSError, UnreadableLog):
        return False


def _common_bytes(path: Path, other: Path) -> tuple[int, int, bool]:
    """How many first bytes of text the two have in common, where the last whole line of these ends, and whether the first ends
    there while the other goes on."""
    common, line_end = 0, 0
    with suppress(EOFError), open_log(path) as first, open_log(other) as second:
        while True:
            of_first, of_second = first.read(line_reader.PIECE_BYTES), second.read(line_reader.PIECE_BYTES)
            pairs = zip(of_first, of_second, strict=False)
            shorter = min(len(of_first), len(of_second))
            same = shorter if of_first == of_second else next((at for at, (a, b) in enumerate(pairs) if a != b), shorter)
            if (newline := of_first.rfind(b"\n", 0, same)) >= 0:
                line_end = common + newline + 1
            common += same
            if same < line_reader.PIECE_BYTES:
                return common, line_end, same == len(of_first) < len(of_second)
    return common, line_end, False


def is_beginning_of(path: Path, log: Path) -> bool:
    """Whether the log begins with all that the file holds: copytruncate has copied it, or is at it."""
    common, _, is_shorter = _common_bytes(path, log)
    return is_shorter or not line_reader.holds_more(path, common)


def is_rotated(name: str, log: str) -> bool:
    """Whether rotation would give the log a name like this."""
    name = unpacked_name(name)
    if name.startswith(log):
        return _SUFFIX.fullmatch(name[len(log) :]) is not None
    stem, dot, ending = log.rpartition(".")
    infix = name.removeprefix(stem).removesuffix(dot + ending)
    return bool(dot) and name == f"{stem}{infix}.{ending}" and _INFIX.fullmatch(infix) is not None


def unpacked_name(name: str) -> str:
    """`app.log.1` of `app.log.1.gz`."""
    return _PACKED.sub("", name)


def _may_be_rotated(path: Path, source: Source) -> bool:
    """Whether this may be a rotated copy, perhaps compressed, of the log that was sent. Of a small log, all that was sent may be
    too little to tell two logs apart; a rotated file that begins with the same lines in the same place is not sent again."""
    log_path = Path(source.path)
    if not source.position or not path.parent.is_relative_to(log_path.parent):  # logrotate's olddir is usually within it
        return False
    return is_rotated(path.name, log_path.name) or (
        is_rotated(log_path.name, log := _log_of(path)) and is_rotated(path.name, log)
    )


def _log_of(path: Path) -> str:
    """The name before rotation."""
    name = unpacked_name(path.name)
    return _INFIX.sub("", name) if _INFIX.search(name) else re.sub(_SUFFIX.pattern + "$", "", name)


def _holds(path: Path, head: bytes, source: Source) -> bool:
    """Whether the file begins like the source, and holds its last sent line in the same place. If it is damaged before that
    place, its beginning decides: nothing of it is sent again, and reading it reports the damage."""
    if not source.head.matches(head):
        return False
    line = source.last_line
    try:
        return not line.length or line == _fingerprint_at(path, line.position, line.length)
    except EOFError:
        return bool(source.head.length)


def _fingerprint_at(path: Path, position: int, length: int) -> Fingerprint:
    if not line_reader.is_compressed(path):
        return Fingerprint.of(_read(path, position, length, or_less=False), position=position)
    return _fingerprint_in(path, position, length, line_reader.version_of(path))


@lru_cache(line_reader.FILES_REMEMBERED)
def _fingerprint_in(path: Path, position: int, length: int, version: tuple[int, ...]) -> Fingerprint:
    return Fingerprint.of(_read(path, position, length, or_less=False), position=position)


def _is_beginning(path: Path, head: bytes, source: Source) -> bool:
    """Whether this is a rotated copy that ends before the last line sent: copytruncate made it, and more lines were sent of the
    log itself before it was truncated."""
    is_head_whole = source.head.length == HEAD_BYTES and source.head.matches(head)
    return is_head_whole and _may_be_rotated(path, source) and not line_reader.holds_more(path, source.position - 1)


def _read(path: Path, position: int, length: int, *, or_less: bool = True) -> bytes:
    """The bytes there; `or_less`: of a damaged file those that precede the damage."""
    data = b""
    try:
        with open_log(path, position) as file:
            # One call for all of them would lose those that it had unpacked before it met the damage.
            while len(data) < length and (piece := cast(BufferedReader, file).read1(length - len(data))):
                data += piece
    except EOFError:
        if not or_less:
            raise
    except OSError as error:
        raise line_reader.damaged(path, error) from error
    return data


def _device_and_inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


# -- rotated files, found from a log's name alone: a rotation between two runs of a cron job loses nothing that is beside it -----
#
# logrotate and similar tools rename `access.log` to `access.log.1` or `access.log-20260522`, perhaps compress it, and a new
# `access.log` begins. A run that is given only `access.log` would miss what was written between the last run and the rotation. So
# it also looks at files with such names in the same directory:
#
# - a file whose content was sent before and that has more: its rest is sent;
# - a file never seen before, if the named file is a new one and this one was written after the newest known file, as the last run
#   saw it: it was begun and rotated between two runs. The same if all that was seen of the named file is that it was empty.
#
# A log whose file is neither under its name nor beside it, though lines of it were sent, has gone where this does not look
# (another directory, an archive), or was truncated. That is reported.
#
# Files older than the first run are not lost lines: they are only mentioned, and sent if they are named.
#
# Symbolic links are left out: whoever may write in the log's directory could have a shipper with more rights send any file by
# one. A file that is named may be a link, as the logs of Kubernetes are.


def beside(path: Path) -> list[Path]:
    """Files that look like rotated ones of this log, the least recently written first."""
    logs = [path, path.resolve()] if path.is_symlink() else [path]  # Kubernetes' logs are rotated where their links lead
    try:
        named = {file for log in logs for file in log.parent.iterdir() if is_rotated(file.name, log.name)}
        files = [file for file in named if file.is_file() and not file.is_symlink() and not _is_being_compressed(file)]
        return sorted(files, key=lambda file: file.stat().st_mtime)
    except OSError:
        return []


def _is_being_compressed(path: Path) -> bool:
    """gzip and its like remove a file once its compressed copy is complete: until then the file itself is the one to read."""
    name = unpacked_name(path.name)
    return name != path.name and path.with_name(name).exists()


def unsent(paths: Sequence[Path], sent_before: Sequence[Source]) -> tuple[list[Path], list[Source]]:
    """Rotated files of these logs that hold lines not yet sent; and the sources that were last known under these names and are
    neither there nor beside them: whether they got more lines is unknown. LogGone if a rotation is under way."""
    looks = [_look_beside(path, sent_before) for path in paths]
    files = [file for with_more, _ in looks for file in with_more if file not in paths]
    return files, [source for _, gone in looks for source in gone]


def never_sent(paths: Sequence[Path], sent_before: Sequence[Source]) -> list[Path]:
    """Rotated files of logs that are sent for the first time: they are left alone, and only mentioned."""
    return [file for path in paths if not _sources_of(path, sent_before) for file in beside(path) if file not in paths]


def _sources_of(path: Path, sent_before: Sequence[Source]) -> list[Source]:
    names = {str(path), *map(str, beside(path))}
    return [source for source in sent_before if source.path in names]


def _look_beside(path: Path, sent_before: Sequence[Source]) -> tuple[list[Path], list[Source]]:
    ours = _sources_of(path, sent_before)
    if not ours:
        return [], []
    with_more: list[Path] = []
    strangers: list[Path] = []
    by_source: dict[str, Path] = {}
    is_renamed = False
    for file in beside(path):
        # A file that is renamed at this moment is found by the next run, under its new name.
        try:
            check_readable(file)
            source = known_source(file, sent_before)
            if source is None:
                strangers.append(file)
                continue
            by_source[source.source_id] = file
            if line_reader.holds_more(file, source.position):
                with_more.append(file)
        except (LogGone, FileNotFoundError):
            is_renamed = True
    current = known_source(path, sent_before) if path.exists() else None
    visible = {*by_source, current.source_id if current is not None else None}
    last = next((source for source in reversed(ours) if source.path == str(path)), None)
    if last is not None and last.is_blank and any(file.stat().st_ino == last.inode for file in beside(path)):
        visible.add(last.source_id)  # nothing but its inode is known of it
    gone = [last] if last is not None and last.source_id not in visible else []
    if gone and is_renamed:
        raise LogGone(f"{path} {RENAMED}")
    if current is not None and not any(source.is_blank for source in sent_before if source.source_id == current.source_id):
        return with_more, gone  # it has not been rotated since: strangers are older than the first run
    newest_known_ns = max(source.written_ns for source in ([last] if last is not None else ours))
    newer = [file for file in strangers if file.stat().st_mtime_ns > newest_known_ns]
    return with_more + [file for file in newer if not (path.exists() and is_beginning_of(file, path))], gone
