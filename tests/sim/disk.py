"""A disk in memory that keeps what was written apart from what is on it.

Readers see what was written, as through the page cache, also after their process was killed. `power_cut` leaves what was synced
and, of each file's later writes, any prefix, the last of them torn or filled with zeros; likewise of each directory's later
creations, renames and removals. It can be full (a write takes what fits), refuse to sync (then what was not synced is
never written, though the next sync succeeds), and stop the process or the machine within any call.

A flush takes time, and need not cover what is written while it runs: `syncing_upto` bounds what syncs may count as synced.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from weakref import ReferenceType, ref

from logbus_broker.filesystem import FileSystem, OpenFile, PinnedDirectory
from logbus_broker.protocol.batch import Buffer

Chance = Callable[[int, int], int]  # a number in the given range, both ends included

SIZE = 1 << 40


class Stopped(BaseException):
    """The process or the machine ends inside a disk call; no code of the process can catch it."""


class Inode:
    """A file's bytes: `data` as readers see them, `synced` as they are on the disk, `pending` the difference: the number of
    the write, its position and its bytes, or a length and None if the file was truncated."""

    __slots__ = ("data", "modified_ms", "pending", "synced")

    def __init__(self, data: Buffer = b"") -> None:
        self.data = bytearray(data)
        self.synced = bytearray(data)
        self.pending: list[tuple[int, int, bytes | None]] = []
        self.modified_ms = 0

    def sync(self, upto: int | None = None) -> None:
        count = len(self.pending)
        while count and upto is not None and self.pending[count - 1][0] > upto:
            count -= 1
        for _, position, piece in self.pending[:count]:
            change(self.synced, position, piece)
        del self.pending[:count]

    def left(self, chance: Chance) -> Inode:
        """What a power cut leaves."""
        left = bytearray(self.synced)
        count = chance(0, len(self.pending))
        for _, position, piece in self.pending[: max(count - 1, 0)]:
            change(left, position, piece)
        if count:
            _, position, piece = self.pending[count - 1]
            if piece is not None:
                torn = chance(0, len(piece))
                piece = piece[:torn] + (bytes(len(piece) - torn) if chance(0, 1) else b"")
            change(left, position, piece)
        inode = Inode(left)
        inode.modified_ms = self.modified_ms
        return inode


class Directory:
    """Names: as readers see them, as they are on the disk, and the changes in between. A rename is one change of two names."""

    __slots__ = ("changes", "names", "synced")

    def __init__(self) -> None:
        self.names: dict[str, Inode | Directory] = {}
        self.synced: dict[str, Inode | Directory] = {}
        self.changes: list[list[tuple[str, Inode | Directory | None]]] = []

    def change(self, *names: tuple[str, Inode | Directory | None]) -> None:
        rename(self.names, names)
        self.changes.append(list(names))

    def sync(self) -> None:
        for names in self.changes:
            rename(self.synced, names)
        self.changes = []

    def left(self, chance: Chance) -> Directory:
        """What a power cut leaves."""
        names = dict(self.synced)
        for changed in self.changes[: chance(0, len(self.changes))]:
            rename(names, changed)
        directory = Directory()
        for name, node in names.items():
            directory.names[name] = node.left(chance)
        directory.synced = dict(directory.names)
        return directory


class SimFile(OpenFile):
    """An open file of the simulated disk; it has no descriptor."""

    __slots__ = ("inode",)

    def __init__(self, path: Path, inode: Inode) -> None:
        self.path = path
        self.inode = inode

    def fileno(self) -> int:
        raise AssertionError("a simulated file has no descriptor")

    def __del__(self) -> None:  # type: ignore[override]
        pass


class SimDisk(FileSystem):
    """See the module docstring. Everything is below `root`."""

    def __init__(self, root: Path = Path("/disk"), now_ms: Callable[[], int] = lambda: 0) -> None:
        self.root = root
        self._below = len(str(root)) + 1  # where names begin in the text of a path
        self._now_ms = now_ms
        self._tree = Directory()
        self.serial = 0  # raised when the files are others, with the same contents
        self._locks: dict[Inode, ReferenceType[SimFile]] = {}
        self.writes = 0  # how many there were, which is the number of the last one
        self.room: int | None = None  # how many more bytes fit; None: no limit
        self.failing_syncs = 0  # how many of the next syncs fail
        self.calls_left = -1  # the process is stopped inside the call after this many; -1: never
        self.syncing_upto: int | None = None

    # Faults

    def power_cut(self, chance: Chance) -> None:
        """From now on reads return what was on the disk. Files still open belong to the machine before the cut."""
        self._tree = self._tree.left(chance)
        self.release()

    def release(self) -> None:
        """The process is gone, and its locks with it."""
        self._locks = {}
        self.calls_left = -1

    def replace(self) -> None:
        """An empty disk in place of this one."""
        self._tree = Directory()
        self.room, self.failing_syncs = None, 0  # the old disk's faults are gone with it
        self.release()

    def copy(self) -> Directory:
        """Everything that readers see, to be put back later."""
        return self._tree.left(lambda low, high: high)

    def put_back(self, tree: Directory, *, as_files: bool) -> None:
        """What `copy` returned. `as_files`: one by one, so they are other files; else the whole file system as it was."""
        self._tree = tree
        self.serial += as_files
        self.release()

    def damage(self, path: Path, position: int) -> None:
        """A bit of what is on the disk changes; once more, and it is as it was."""
        inode = self._inode(path)
        inode.data[position] ^= 1
        inode.synced[position] ^= 1

    @contextmanager
    def syncing(self, upto: int | None) -> Iterator[None]:
        """Syncs inside began when there had been `upto` writes; None: just now."""
        before, self.syncing_upto = self.syncing_upto, upto
        try:
            yield
        finally:
            self.syncing_upto = before

    def _called(self) -> None:
        if self.calls_left >= 0:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise Stopped

    # Finding

    def _find(self, path: Path) -> Inode | Directory | None:
        node: Inode | Directory | None = self._tree
        below = str(path)[self._below :]
        for name in below.split("/") if below else ():
            if not isinstance(node, Directory):
                return None
            node = node.names.get(name)
        return node

    def _existing(self, path: Path) -> Inode | Directory:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return node

    def _inode(self, path: Path) -> Inode:
        node = self._existing(path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        return node

    def _directory(self, path: Path) -> Directory:
        node = self._existing(path)
        if isinstance(node, Inode):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path))
        return node

    # The file system

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        self._called()
        if not create:
            return SimFile(path, self._inode(path))
        if self._find(path) is not None:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        return SimFile(path, self._made(path))

    def _made(self, path: Path) -> Inode:
        inode = Inode()
        inode.modified_ms = self._now_ms()
        self._directory(path.parent).change((path.name, inode))
        return inode

    def open_for_reading(self, path: Path) -> OpenFile:
        return SimFile(path, self._inode(path))

    def read_at(self, file: OpenFile, length: int, position: int) -> bytes:
        return bytes(inode_of(file).data[position : position + length])

    def write_some(self, file: OpenFile, buffers: Sequence[Buffer], position: int) -> int:
        self._called()
        return self._write(inode_of(file), b"".join(buffers), position, file.path)

    def _write(self, inode: Inode, piece: bytes, position: int, path: Path) -> int:
        added = max(position + len(piece) - len(inode.data), 0)
        if self.room is not None and added:
            if added - self.room >= len(piece):
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            piece = piece[: len(piece) - max(added - self.room, 0)]
            self.room = max(self.room - added, 0)
        self._change(inode, position, piece)
        return len(piece)

    def _change(self, inode: Inode, position: int, piece: bytes | None) -> None:
        self.writes += 1
        change(inode.data, position, piece)
        inode.pending.append((self.writes, position, piece))
        inode.modified_ms = self._now_ms()

    def truncate(self, file: OpenFile, length: int) -> None:
        self._called()
        self._change(inode_of(file), length, None)

    def sync_data(self, file: OpenFile) -> None:
        self._called()
        inode = inode_of(file)
        if self.failing_syncs:
            self.failing_syncs -= 1
            inode.pending = []  # clean from now on: still readable, and never written to the disk
            raise OSError(errno.EIO, "Input/output error", str(file.path))
        inode.sync(self.syncing_upto)

    def sync_directory(self, path: Path) -> None:
        self._called()
        directory = self._directory(path)
        if self.failing_syncs:
            self.failing_syncs -= 1
            raise OSError(errno.EIO, "Input/output error", str(path))
        directory.sync()

    def pin(self, path: Path) -> PinnedDirectory:
        self._directory(path)
        return PinnedDirectory(None, path)

    def size(self, file: OpenFile) -> int:
        return len(inode_of(file).data)

    def size_of(self, path: Path) -> int:
        return len(self._inode(path).data)

    def identity(self, path: Path) -> str:
        return str(self.serial)

    def modified_ms(self, path: Path) -> int:
        return self._inode(path).modified_ms

    def set_modified_ms(self, path: Path, modified_ms: int) -> None:
        self._inode(path).modified_ms = modified_ms

    def list_names(self, directory: Path) -> list[str]:
        return sorted(self._directory(directory).names)

    def space(self, directory: Path) -> tuple[int, int]:
        self._directory(directory)
        return SIZE, SIZE if self.room is None else self.room

    def is_directory(self, path: Path) -> bool:
        return isinstance(self._find(path), Directory)

    def make_directory(self, path: Path) -> None:
        if not self.is_directory(path):
            self.make_directory(path.parent)
            self._called()
            self._directory(path.parent).change((path.name, Directory()))

    def rename(self, path: Path, target: Path) -> None:
        self._called()
        assert path.parent == target.parent, "the broker renames within a directory"
        directory = self._directory(path.parent)
        node = directory.names.get(path.name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        self._give_back(directory.names.get(target.name))
        directory.change((path.name, None), (target.name, node))

    def _give_back(self, node: Inode | Directory | None) -> None:
        if isinstance(node, Inode) and self.room is not None:
            self.room += len(node.data)

    def remove(self, path: Path) -> None:
        self._called()
        node = self._find(path)
        if isinstance(node, Directory):
            for name in sorted(node.names):
                self.remove(path / name)
        self._give_back(node)
        if node is not None:
            self._directory(path.parent).change((path.name, None))

    def read_bytes(self, path: Path) -> bytes:
        return bytes(self._inode(path).data)

    def write_bytes(self, path: Path, data: Buffer, *, durable: bool = True) -> None:
        self._called()
        inode = self._inode(path) if self._find(path) is not None else self._made(path)
        if inode.data:
            self._give_back(inode)
            self._change(inode, 0, None)
        if self._write(inode, bytes(data), 0, path) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        if durable:
            with self.syncing(None):  # includes what this very call wrote, whenever the calling job began
                self.sync_data(SimFile(path, inode))

    def replace_bytes(self, path: Path, data: Buffer) -> None:
        temporary = path.with_name(path.name + ".tmp")
        self.write_bytes(temporary, data)
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def is_locked(self, path: Path) -> bool:
        held = self._locks.get(inode) if isinstance(inode := self._find(path), Inode) else None
        return held is not None and held() is not None

    def lock(self, path: Path) -> OpenFile | None:
        if self.is_locked(path):
            return None
        inode = self._inode(path) if self._find(path) is not None else self._made(path)
        file = SimFile(path, inode)
        self._locks[inode] = ref(file)
        self._change(inode, 0, None)
        self._change(inode, 0, b"1\n")
        return file


def inode_of(file: OpenFile) -> Inode:
    assert isinstance(file, SimFile), "a file of this disk"
    return file.inode


def change(data: bytearray, position: int, piece: bytes | None) -> None:
    """One write, or a truncation to the length `position`."""
    if piece is None:
        if position < len(data):
            del data[position:]
        else:
            data += bytes(position - len(data))
        return
    if position > len(data):
        data += bytes(position - len(data))
    data[position : position + len(piece)] = piece


def rename(names: dict[str, Inode | Directory], changed: Sequence[tuple[str, Inode | Directory | None]]) -> None:
    for name, node in changed:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node
