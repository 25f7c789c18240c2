"""The only module that calls the operating system for files, who gets its last descriptors, and the names of partitions'
directories and files. Everything else takes a FileSystem, so a test can pass in a disk that is full, writes half of what it is
given, or fails to flush.

A name is the broker's own only if formatting its parsed parts gives the same name again. `a-00`, `7.log` and digits of other
scripts are somebody else's: what has such a name is neither read nor renamed nor removed.

Every method passes on the system's OSError; the callers know what that means for the log and raise StorageError.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

from logbus_broker.protocol.batch import Buffer
from logbus_broker.setting_parsers import INT32_MAX, INT64_MAX

PARTITION_METADATA = "partition.metadata"
TEMPORARY = ".tmp"  # a file that is about to replace the one without it
_NAME_BYTES_MAX = 255
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"

_PARTITION = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>[0-9]{1,10})")
_RETIRED = re.compile(rf"(?P<name>.+)\.(?P<id>[0-9a-f]{{32}})(?P<suffix>{DELETE_SUFFIX}|{STRAY_SUFFIX})")
_OF_OFFSET = re.compile(r"(?P<offset>[0-9]{20})(?P<suffix>[.-].+)")


def partition_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition(name: str) -> tuple[str, int] | None:
    """Topic and partition of a directory with this name; None if it is no partition's."""
    match = _PARTITION.fullmatch(name)
    if match is None:
        return None
    topic, partition = match["topic"], int(match["partition"])
    return (topic, partition) if partition <= INT32_MAX and partition_name(topic, partition) == name else None


def retired_name(name: str, unique: str, suffix: str) -> str:
    """What a partition's directory is renamed to when it is deleted (DELETE_SUFFIX) or set aside (STRAY_SUFFIX); `unique` has 32
    hexadecimal digits."""
    # The topic's name is shortened if the whole is too long for a file name: the unique part tells it from others, the name is
    # only for people.
    suffix = f".{unique}{suffix}"
    return name[: _NAME_BYTES_MAX - len(suffix)] + suffix


def is_retired(name: str, suffixes: tuple[str, ...] = (DELETE_SUFFIX, STRAY_SUFFIX)) -> bool:
    """Whether `retired_name` formats such a name."""
    match = _RETIRED.fullmatch(name)
    if match is None or match["suffix"] not in suffixes:
        return False
    return parse_partition(match["name"]) is not None or len(name) == _NAME_BYTES_MAX


def offset_name(offset: int, suffix: str) -> str:
    """A file in a partition's directory that is named after an offset; the suffix begins with a dot or a hyphen."""
    return f"{offset:020d}{suffix}"


def parse_offset_name(name: str) -> tuple[int, str] | None:
    """Offset and suffix of such a file; None if it is another."""
    match = _OF_OFFSET.fullmatch(name)
    if match is None or int(match["offset"]) > INT64_MAX:
        return None
    return int(match["offset"]), match["suffix"]


def offsets_in(names: list[str], suffix: str) -> list[int]:
    """The offsets, ascending, after which files with this suffix are named."""
    parsed = map(parse_offset_name, names)
    return sorted(file[0] for file in parsed if file is not None and file[1] == suffix)


# The only module that calls the operating system for files, and who gets its last descriptors. Everything else takes a
# FileSystem, so a test can pass in a disk that is full, writes half of what it is given, or fails to flush.


_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
BUFFERS_PER_WRITE_MAX = os.sysconf("SC_IOV_MAX") if os.sysconf("SC_IOV_MAX") > 0 else 16  # the system's limit for one pwritev

KEPT = 16  # flush threads (4), pool threads (2), the small files' thread and the loop, twice
_KEPT_PART_MAX = 8  # of a very low limit not everything is kept
_IDLE_PART = 4
_PARTITIONS_PART = 2


class _Closable(Protocol):
    """A sealed segment."""

    def forget(self) -> None:
        """Close the file if nothing prevents it. Any thread."""


class OpenFiles:
    """Which file descriptors may be used for what, and the sealed segments that stay open for their next reader.
    `descriptors_max` is the process's limit: the first number that the system does not give out. Any thread, except `keep` and
    `drop`, which are the loop's.

    A record becomes visible only if its flush can open a directory, write an index, replace a checkpoint. So whoever adds
    descriptors has to leave some of the last ones to those who need them more urgently:

        new partitions                  half of the limit, since their active segments stay open for good
        connections                     4 times `kept`
        segments, pinned directories    2 times: a new one is refused with a retriable error
        segments opened by readers      once: a fetch that cannot be served now is retried
        flushes, checkpoints, indexes   nothing: each thread opens one file at a time, and closes it at once

    The system always gives out the lowest free number. So a descriptor's own number says how many are left, and only partitions
    are counted.

    A sealed segment that is on disk stays open for its next reader, which is a cache: the least recently read one is closed when
    there are more than a quarter of the limit, or when a descriptor is needed."""

    def __init__(self, descriptors_max: int = 1 << 20, kept: int = KEPT) -> None:
        kept = min(kept, descriptors_max // _KEPT_PART_MAX)
        # The first numbers that may not be used any more.
        self.readers_end = descriptors_max - kept
        self.new_files_end = descriptors_max - 2 * kept
        self.connections_end = descriptors_max - 4 * kept
        self.partitions_max = descriptors_max // _PARTITIONS_PART
        self._idle_max = descriptors_max // _IDLE_PART
        self._idle: OrderedDict[_Closable, None] = OrderedDict()  # the least recently read one first

    def keep(self, segment: _Closable) -> None:
        """A reader uses this segment."""
        idle = self._idle
        idle[segment] = None
        idle.move_to_end(segment)
        if len(idle) > self._idle_max:
            self.close_oldest()

    def drop(self, segment: _Closable) -> None:
        """It is closed, or gone."""
        self._idle.pop(segment, None)

    def close_oldest(self) -> bool:
        """Close the segment that was not read for longest; False if there is none."""
        try:
            segment, _ = self._idle.popitem(last=False)
        except KeyError:
            return False
        segment.forget()
        return True


class OpenFile:
    """An open descriptor that is closed with the last reference to it.

    A segment that retention deletes may still be on its way to a consumer. The sender holds this object, so the descriptor's
    number cannot be closed, and reused for another file, while it is sending.
    """

    __slots__ = ("__weakref__", "_descriptor", "path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def __del__(self, close=os.close) -> None:  # type: ignore[no-untyped-def]  # bound early: `os` may be gone when the interpreter ends
        close(self._descriptor)


class FileSlice:
    """`length` bytes from `position` of an open segment file, on their way to a consumer. It keeps the file open until
    it is released, even if the segment is deleted. `more_follows`: there is more that might have been read, had limits or the end
    of the segment not been in the way."""

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

    @property
    def file(self) -> OpenFile:
        """Valid until `release`."""
        assert self._file is not None, "a released slice has no file"
        return self._file

    def release(self) -> None:
        """Release the file; it is closed once no other holder is left. Calling this again is harmless."""
        self._file = None


class PinnedDirectory:
    """A path that refers to the same directory for as long as this object lives, even if another directory takes its name."""

    __slots__ = ("_file", "path")

    def __init__(self, file: OpenFile | None, path: Path) -> None:
        self._file = file
        self.path = path


class FileSystem:
    """The machine's files."""

    @cached_property
    def open_files(self) -> OpenFiles:
        """Which descriptors may be used for what; set by the process that knows its limit."""
        return OpenFiles()

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        """Open a segment for reading and writing; with `create` the file must not exist yet. OSError (EMFILE) before the
        descriptors are used that are kept for flushes."""
        if create:
            return self._open_below(self.open_files.new_files_end, path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        return self._open_below(self.open_files.readers_end, path, os.O_RDWR)

    def _open_below(self, end: int, path: Path, flags: int) -> OpenFile:
        """Open with a descriptor below `end`; sealed segments that nobody is reading are closed if that helps."""
        while True:
            descriptor = os.open(path, flags | os.O_CLOEXEC, _FILE_MODE)
            if descriptor < end:
                return OpenFile(path, descriptor)
            os.close(descriptor)
            if flags & os.O_CREAT:
                os.unlink(path)
            if not self.open_files.close_oldest():
                raise OSError(errno.EMFILE, "the last file descriptors are kept for flushes: raise `ulimit -n`", str(path))

    def open_for_reading(self, path: Path) -> OpenFile:
        """Open, for a moment, a file that must not, or cannot, be modified."""
        return OpenFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def read_at(self, file: OpenFile, length: int, position: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the file's end."""
        return os.pread(file.fileno(), length, position)

    def write_at(self, file: OpenFile, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of `buffers` at `position`: one system call unless the system accepts only a part."""
        written = self.write_some(file, buffers[:BUFFERS_PER_WRITE_MAX], position)
        total = sum(map(len, buffers))
        while written < total:
            rest = _after(buffers, written)
            written += self.write_some(file, rest[:BUFFERS_PER_WRITE_MAX], position + written)

    def write_some(self, file: OpenFile, buffers: Sequence[Buffer], position: int) -> int:
        """Write a first part of `buffers`, usually all of them; returns how many bytes, at least one."""
        written = os.pwritev(file.fileno(), buffers, position)
        if not written:
            raise OSError(errno.EIO, "the system wrote nothing", str(file.path))
        return written

    def truncate(self, file: OpenFile, length: int) -> None:
        os.ftruncate(file.fileno(), length)

    def sync_data(self, file: OpenFile) -> None:
        """Return when the file's bytes and its length are on disk."""
        os.fdatasync(file.fileno())

    def sync_directory(self, path: Path) -> None:
        """Return when the directory's names are on disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def pin(self, path: Path) -> PinnedDirectory:
        """The directory that has this name now: what a pool thread does there cannot affect a topic of the same name created
        since. The link below /proc refers to the directory itself, not to its name."""
        file = self._open_below(self.open_files.new_files_end, path, os.O_RDONLY | os.O_DIRECTORY)
        return PinnedDirectory(file, Path(f"/proc/self/fd/{file.fileno()}"))

    def size(self, file: OpenFile) -> int:
        return os.fstat(file.fileno()).st_size

    def size_of(self, path: Path) -> int:
        return os.stat(path).st_size

    def identity(self, path: Path) -> str:
        """Of the file itself: a copy of it, or one restored from a backup, has another."""
        status = os.stat(path)
        return f"{status.st_ino} {status.st_ctime_ns}"

    def modified_ms(self, path: Path) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: Path, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def list_names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))

    def space(self, directory: Path) -> tuple[int, int]:
        """Bytes of the file system that holds it: total, and available to us."""
        status = os.statvfs(directory)
        return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def make_directory(self, path: Path) -> None:
        """Create it and its parents, with access for the owner only; an existing one is left as it is."""
        path.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)

    def rename(self, path: Path, target: Path) -> None:
        os.rename(path, target)

    def remove(self, path: Path) -> None:
        """Remove a file, a link, or a directory with all its contents; a missing one is not an error."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def read_bytes(self, path: Path) -> bytes:
        return path.read_bytes()

    def write_bytes(self, path: Path, data: Buffer, *, durable: bool = True) -> None:
        """Overwrite the whole file, which is on disk when this returns if `durable`; a crash may leave only a part of
        it."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
        file = OpenFile(path, descriptor)
        if data:
            self.write_at(file, (data,), 0)
        if durable:
            self.sync_data(file)

    def replace_bytes(self, path: Path, data: Buffer) -> None:
        """Replace the file atomically: it is either old or new, whatever happens; the new one is on disk when this returns."""
        temporary = path.with_name(path.name + TEMPORARY)
        self.write_bytes(temporary, data)
        os.replace(temporary, path)
        self.sync_directory(path.parent)

    def is_locked(self, path: Path) -> bool:
        """Whether a process holds the lock; if none does, the check takes it for an instant."""
        try:
            file = self.open_for_reading(path)
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def lock(self, path: Path) -> OpenFile | None:
        """Lock the file and write this process's id into it, or None if another process holds it. The lock ends with the object,
        or with the process."""
        file = OpenFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE))
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        self.truncate(file, 0)
        self.write_at(file, (f"{os.getpid()}\n".encode(),), 0)
        return file


def _after(buffers: Sequence[Buffer], written: int) -> list[Buffer]:
    """The part of `buffers` after their first `written` bytes."""
    rest: list[Buffer] = []
    for buffer in buffers:
        if written < len(buffer):
            rest.append(memoryview(buffer)[written:])
            written = 0
        else:
            written -= len(buffer)
    return rest
