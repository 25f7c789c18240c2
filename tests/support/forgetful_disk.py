"""A disk that forgets what was not synced: it works on real files and also keeps track of what a power cut may leave.

Every file's writes and every directory's changes are recorded in order, with the syncs between them. `crash` builds a directory
as it might be found afterwards: of each file all that was synced and, of later writes, as many as `chance` keeps, the last one
perhaps torn or filled with zeros; of each directory's creations, renames and removals all that were synced and, of the later
ones, the first few in their order, as a journalling file system keeps them.

A sync that fails leaves the file unchanged for readers, but what was not synced will never reach the disk: the next sync succeeds
without it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker.records.batch import Buffer
from broker.storage.filesystem import FileSystem, OpenFile, PinnedDirectory

Chance = Callable[[int, int], int]  # a number from the first to the second, both included


@dataclass
class _Inode:
    """One file's content over time: what is synced, and the changes since."""

    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # (position, data), or (length, None) for a truncation

    def after(self, count: int, *, torn_at: int | None = None, zeros: bool = False) -> bytes:
        data = bytearray(self.synced)
        for number, (position, piece) in enumerate(self.pending[:count]):
            if piece is None:
                del data[position:]
                continue
            if torn_at is not None and number == count - 1:
                piece = piece[:torn_at] + (bytes(len(piece) - torn_at) if zeros else b"")
            if position > len(data):
                data += bytes(position - len(data))
            data[position : position + len(piece)] = piece
        return bytes(data)

    def sync(self) -> None:
        self.synced, self.pending = self.after(len(self.pending)), []


Change = tuple[str, _Inode | None]  # the name, and what it refers to from now on


class ForgetfulDisk(FileSystem):
    """Works below one directory; `crash` builds what is left of it."""

    def __init__(self) -> None:
        self._inodes: dict[Path, _Inode] = {}
        self._open: dict[OpenFile, _Inode] = {}  # by identity, whatever the file's name is now
        self._synced: dict[Path, dict[str, _Inode]] = {}
        self._changes: dict[Path, list[list[Change]]] = {}
        self.failing_syncs = 0  # this many of the next file syncs fail and lose what was not synced

    def crash(self, directory: Path, target: Path, chance: Chance) -> None:
        """Write what may be left of `directory` into the new directory `target`."""
        names = dict(self._synced.get(directory, {}))
        changes = self._changes.get(directory, [])
        for change in changes[: chance(0, len(changes))]:
            _apply(names, change)
        target.mkdir()
        for name, inode in names.items():
            (target / name).write_bytes(_left(inode, chance))

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        file = super().open(path, create=create)
        if create:
            self._bind(path, _Inode())
        self._open[file] = self._inodes[path]
        return file

    def write_some(self, file: OpenFile, buffers: Sequence[Buffer], position: int) -> int:
        written = super().write_some(file, buffers, position)
        self._of(file).pending.append((position, b"".join(map(bytes, buffers))[:written]))
        return written

    def truncate(self, file: OpenFile, length: int) -> None:
        super().truncate(file, length)
        self._of(file).pending.append((length, None))

    def pin(self, path: Path) -> PinnedDirectory:
        return PinnedDirectory(None, path)  # directories are not renamed here, and files are identified by path

    def sync_data(self, file: OpenFile) -> None:
        if self.failing_syncs:
            self.failing_syncs -= 1
            self._of(file).pending = []  # clean from now on: still readable, but never written
            raise OSError(errno.EIO, "Input/output error", str(file.path))
        super().sync_data(file)
        self._of(file).sync()

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        for change in self._changes.pop(path, []):
            _apply(self._synced.setdefault(path, {}), change)

    def rename(self, path: Path, target: Path) -> None:
        super().rename(path, target)
        inode = self._inodes[target] = self._inodes.pop(path)
        self._note(path.parent, [(path.name, None), (target.name, inode)])

    def remove(self, path: Path) -> None:
        super().remove(path)
        if self._inodes.pop(path, None):
            self._note(path.parent, [(path.name, None)])

    def write_bytes(self, path: Path, data: Buffer, *, durable: bool = True) -> None:
        path.write_bytes(data)
        inode = self._inodes.get(path) or self._bind(path, _Inode())
        inode.pending += [(0, None), (0, bytes(data))]
        if durable:
            inode.sync()

    def replace_bytes(self, path: Path, data: Buffer) -> None:
        temporary = path.with_name(path.name + ".tmp")
        self.write_bytes(temporary, data)
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def adopt(self, directory: Path) -> None:
        """Treat the files in `directory` as synced: what a crash has left is on the disk."""
        for path in directory.iterdir():
            inode = self._inodes[path] = _Inode(path.read_bytes())
            self._synced.setdefault(directory, {})[path.name] = inode

    def _bind(self, path: Path, inode: _Inode) -> _Inode:
        self._inodes[path] = inode
        self._note(path.parent, [(path.name, inode)])
        return inode

    def _note(self, directory: Path, change: list[Change]) -> None:
        self._changes.setdefault(directory, []).append(change)

    def _of(self, file: OpenFile) -> _Inode:
        return self._open[file]


def _apply(names: dict[str, _Inode], change: list[Change]) -> None:
    for name, inode in change:
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _left(inode: _Inode, chance: Chance) -> bytes:
    """All that was synced, and some of the first writes after it."""
    count = chance(0, len(inode.pending))
    piece = inode.pending[count - 1][1] if count else None
    if piece is None:
        return inode.after(count)
    return inode.after(count, torn_at=chance(0, len(piece)), zeros=bool(chance(0, 1)))
