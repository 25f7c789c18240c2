"""Partition logs on real files for tests, on disks that fail on order, and after simulated crashes."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from logbus_broker.clock import Clock
from logbus_broker.filesystem import FileSystem, OpenFile
from logbus_broker.log.cleaner import begin_compaction
from logbus_broker.log.compaction import CompactionPass, Exchange, OffsetMap
from logbus_broker.log.flusher import FlushTicket
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.protocol.batch import BatchHeader, Buffer
from logbus_broker.protocol.records import Record, read_records
from logbus_broker.settings import LogConfig

from tests.support.batches import NOW_MS, plain_batch, stamped
from tests.support.manual_clock import ManualClock


def headers_from(log: PartitionLog, offset: int) -> Iterator[BatchHeader]:
    """The header of every batch from the one that contains `offset` to the end."""
    log.require_online()
    if offset < log.end_offset:
        yield from (header for _, _, header in log.segments.walk_from(offset))


class FailingDisk(FileSystem):
    """A real disk with faults: space for `writable_bytes` more, at most `bytes_per_write` per call, and calls that fail, by
    name."""

    def __init__(self) -> None:
        self.writable_bytes: int | None = None
        self.bytes_per_write: int | None = None
        self.failing: set[str] = set()
        self.calls: list[str] = []

    def write_some(self, file: OpenFile, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        if self.bytes_per_write is not None:
            data = data[: self.bytes_per_write]
        if self.writable_bytes is not None:
            data = data[: self.writable_bytes]
            if not data:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.writable_bytes -= len(data)
        return super().write_some(file, (data,), position)

    def sync_data(self, file: OpenFile) -> None:
        self._fail("sync_data", errno.EIO)
        super().sync_data(file)

    def sync_directory(self, path: Path) -> None:
        self._fail("sync_directory", errno.EIO)
        super().sync_directory(path)

    def truncate(self, file: OpenFile, length: int) -> None:
        self._fail("truncate", errno.EIO)
        super().truncate(file, length)

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        self._fail("create" if create else "open", errno.EMFILE)
        return super().open(path, create=create)

    def rename(self, path: Path, target: Path) -> None:
        self._fail("rename", errno.EIO)
        super().rename(path, target)

    def write_bytes(self, path: Path, data: Buffer, *, durable: bool = True) -> None:
        self._fail("write_bytes", errno.ENOSPC)
        super().write_bytes(path, data, durable=durable)

    def _fail(self, name: str, number: int) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise OSError(number, f"injected failure of {name}")


class CountingDisk(FileSystem):
    """Notes how many buffers each write has, how many bytes each read, and the suffixes of files that are read whole."""

    def __init__(self) -> None:
        self.writes: list[int] = []
        self.reads: list[int] = []
        self.whole: list[str] = []

    def write_some(self, file: OpenFile, buffers: Sequence[Buffer], position: int) -> int:
        self.writes.append(len(buffers))
        return super().write_some(file, buffers, position)

    def read_at(self, file: OpenFile, length: int, position: int) -> bytes:
        data = super().read_at(file, length, position)
        self.reads.append(len(data))
        return data

    def read_bytes(self, path: Path) -> bytes:
        self.whole.append(path.suffix)
        return super().read_bytes(path)


def open_log(
    directory: Path,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    filesystem: FileSystem | None = None,
    clock: Clock | None = None,
    is_replica: bool = False,
    **config: Any,
) -> PartitionLog:
    """Open the log in `directory`, by default as after a crash."""
    filesystem = filesystem or FileSystem()
    filesystem.make_directory(directory)
    return PartitionLog.open(
        directory,
        config=LogConfig(**config),
        filesystem=filesystem,
        clock=clock or ManualClock(),
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        is_replica=is_replica,
    )


def append(log: PartitionLog, *batches: bytearray) -> None:
    """Give the batches consecutive offsets and append them in one call."""
    offset, views, headers = log.end_offset, [], []
    for batch in batches:
        view, header = stamped(batch, offset)
        views.append(view)
        headers.append(header)
        offset = header.next_offset
    log.append(views, headers)


def append_each(log: PartitionLog, count: int, *shape: int, **fields: Any) -> None:
    """That many batches, one after the other."""
    for _ in range(count):
        append(log, plain_batch(*shape, **fields))


def truncate(log: PartitionLog, offset: int, *, resets: bool = False) -> None:
    ticket = log.begin_truncation(offset, resets=resets)
    ticket.run()
    log.finish_truncation(ticket)


def segments_in(directory: Path) -> list[int]:
    """The base offsets of the segments whose files are there."""
    return [int(path.name[:20]) for path in files_with(directory, ".log")]


def begun_flush(log: PartitionLog) -> FlushTicket:
    """A flush that the log needs now."""
    ticket = log.begin_flush()
    assert ticket is not None
    return ticket


def flush(log: PartitionLog) -> None:
    """Flush everything written to the disk, as the broker does outside its loop."""
    ticket = log.begin_flush()
    if ticket is not None:
        ticket.run()
        log.finish_flush(ticket)


def pass_over(
    log: PartitionLog,
    first_dirty: int = 0,
    *,
    now_ms: int = NOW_MS,
    filesystem: FileSystem | None = None,
    map_bytes: int = 1 << 20,
    producers: Iterable[int] = (),
    limit_offset: int | None = None,
) -> CompactionPass | None:
    """Begin a compaction pass; None if the log needs none."""
    return begin_compaction(
        log,
        first_dirty,
        filesystem=filesystem or FileSystem(),
        producer_offsets=frozenset(producers),
        offset_map=OffsetMap(map_bytes),
        now_ms=now_ms,
        limit_offset=limit_offset,
    )


def compact(log: PartitionLog, first_dirty: int = 0, **options: Any) -> int:
    """One whole pass, as the cleaner drives it; returns the offset up to which the log is clean."""
    work = pass_over(log, first_dirty, **options)
    if work is None:
        return first_dirty
    for event in work.steps():
        if isinstance(event, Exchange):
            log.segments.exchange(event.old, event.new)
    log.end_compaction()
    return work.clean_offset


def read_all(log: PartitionLog) -> list[Record]:
    """Every record of the log."""
    return [record for batch in log.batches_from(log.log_start_offset) for record in read_records(batch)]


def located_bytes(log: PartitionLog, offset: int, max_bytes: int, *, upto_offset: int) -> bytes:
    """The bytes that a consumer would receive."""
    piece = log.locate(offset, max_bytes, upto_offset=upto_offset)
    assert piece._file is not None, "not released"
    data = log._filesystem.read_at(piece._file, piece.length, piece.position)
    piece.release()
    return data


def open_segments(directory: Path) -> list[str]:
    """The log files of this directory that this process holds open, including removed ones."""
    targets = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            targets.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(target for target in targets if target.startswith(f"{directory}/") and ".log" in target)


def files_with(directory: Path, suffix: str) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name.endswith(suffix))


def crash_copy(directory: Path, target: Path, *, without: Iterable[str] = ()) -> Path:
    """The files as a crash would leave them if everything written had reached the disk, except those with a suffix in
    `without`."""
    shutil.copytree(directory, target)
    for suffix in without:
        for path in files_with(target, suffix):
            path.unlink()
    return target
