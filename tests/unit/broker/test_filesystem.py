"""Files, and who gets the last of the process's descriptors."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from logbus_broker.errors import StorageError
from logbus_broker.filesystem import FileSystem, OpenFile, OpenFiles

from tests.support.batches import plain_batch
from tests.support.logs import FailingDisk, append, files_with, flush, located_bytes, open_log, open_segments


@pytest.mark.parametrize("bytes_per_write", [None, 1, 3, 7, 1000])
def test_every_buffer_is_written_however_little_the_system_takes_at_once(tmp_path: Path, bytes_per_write: int | None) -> None:
    disk = FailingDisk()
    disk.bytes_per_write = bytes_per_write
    file = disk.open(tmp_path / "file", create=True)
    disk.write_at(file, (b"head", b"", b"middle-part", memoryview(b"tail")), 5)
    assert (tmp_path / "file").read_bytes() == bytes(5) + b"headmiddle-parttail"


def test_a_descriptor_closes_with_its_last_holder(tmp_path: Path) -> None:
    file = FileSystem().open(tmp_path / "file", create=True)
    descriptor, second_holder = file.fileno(), file
    del file
    assert os.fstat(descriptor)
    del second_holder
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_files_and_directories_are_for_the_owner_alone(tmp_path: Path) -> None:
    FileSystem().make_directory(tmp_path / "a" / "b")
    FileSystem().open(tmp_path / "a" / "b" / "file", create=True)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "b" / "file").stat().st_mode & 0o777 == 0o600


def test_replacing_leaves_the_old_file_when_the_new_one_cannot_be_written(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.replace_bytes(tmp_path / "file", b"old")
    disk.writable_bytes = 2
    with pytest.raises(OSError, match="No space left"):
        disk.replace_bytes(tmp_path / "file", b"newer")
    assert (tmp_path / "file").read_bytes() == b"old"


@contextmanager
def few_descriptors(filesystem: FileSystem, *, new_files: int, readers: int = 1) -> Iterator[None]:
    """New files may use `new_files` descriptors more than are used now, readers `readers` more than that."""
    numbers = [os.open(os.devnull, os.O_RDONLY) for _ in range(new_files + readers + 1)]
    for number in numbers:
        os.close(number)
    files = filesystem.open_files
    before = files.new_files_end, files.readers_end
    files.new_files_end, files.readers_end = numbers[new_files], numbers[new_files + readers]
    yield
    files.new_files_end, files.readers_end = before


class Idle:
    """A sealed segment, with a file if it has been opened."""

    def __init__(self, *files: OpenFile) -> None:
        self.files = list(files)
        self.is_open = True

    def forget(self) -> None:
        self.files.clear()
        self.is_open = False


def test_new_files_are_refused_before_readers_and_readers_before_flushes(tmp_path: Path) -> None:
    filesystem = FileSystem()
    with few_descriptors(filesystem, new_files=2, readers=2):
        files = [filesystem.open(tmp_path / str(number), create=True) for number in range(2)]
        for refused in (lambda: filesystem.open(tmp_path / "2", create=True), lambda: filesystem.pin(tmp_path)):
            with pytest.raises(OSError, match="kept for flushes: raise `ulimit -n`") as caught:
                refused()
            assert caught.value.errno == errno.EMFILE
        assert not (tmp_path / "2").exists()
        files += [filesystem.open(tmp_path / str(number)) for number in range(2)]
        with pytest.raises(OSError, match="kept for flushes"):
            filesystem.open(tmp_path / "0")
        filesystem.replace_bytes(tmp_path / "checkpoint", b"what a flush writes")
        assert filesystem.read_bytes(tmp_path / "checkpoint")
        filesystem.open_files.keep(Idle(files.pop()))
        files.append(filesystem.open(tmp_path / "0"))
        files.clear()
        assert filesystem.open(tmp_path / "2", create=True)


def test_a_low_limit_is_shared_in_the_same_order() -> None:
    for limit in (64, 140, 1024, 1 << 20):
        files = OpenFiles(limit)
        assert limit > files.readers_end > files.new_files_end > files.connections_end >= limit // 2


def test_the_segment_that_was_not_read_for_longest_is_closed_first() -> None:
    files = OpenFiles(16)
    segments = [Idle() for _ in range(6)]
    for segment in (*segments[:4], segments[0], segments[4]):
        files.keep(segment)
    assert [segment.is_open for segment in segments] == [True, False, True, True, True, True]
    files.drop(segments[2])
    files.keep(segments[5])
    assert [files.close_oldest() for _ in range(5)] == [True] * 4 + [False]
    assert segments[2].is_open


def test_a_log_that_may_open_no_new_segment_is_flushed_and_read_and_goes_on(tmp_path: Path) -> None:
    """The flush could not open the directory: nothing became visible, and no sealed segment was closed."""
    filesystem = FileSystem()
    log = open_log(tmp_path, filesystem=filesystem, segment_bytes=100)
    with few_descriptors(filesystem, new_files=3, readers=1):
        for _ in range(4):
            append(log, plain_batch(value=b"x" * 100))
        with pytest.raises(StorageError, match="cannot create a new segment .* kept for flushes"):
            append(log, plain_batch(value=b"x" * 100))
        assert (log.end_offset, log.offline_reason) == (4, "")
        flush(log)
        assert log.flushed_offset == 4
        assert all(located_bytes(log, offset, 1, upto_offset=4) for offset in range(4))
        append(log, plain_batch(value=b"x" * 100))
    log.close()


def test_readers_of_many_logs_share_the_descriptors(tmp_path: Path) -> None:
    filesystem = FileSystem()
    logs = [open_log(tmp_path / name, filesystem=filesystem, segment_bytes=100) for name in "abc"]
    for log in logs:
        for _ in range(5):
            append(log, plain_batch(value=b"x" * 100))
        flush(log)
    opened = len(open_segments(tmp_path))
    with few_descriptors(filesystem, new_files=1, readers=1):
        for offset in range(4):
            assert all(located_bytes(log, offset, 1, upto_offset=5) for log in logs)
    assert len(open_segments(tmp_path)) == opened + 2


def test_a_log_with_more_unflushed_segments_than_descriptors_is_recovered(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=100)
    for _ in range(40):
        append(log, plain_batch(value=b"x" * 100))
    del log
    filesystem = FileSystem()
    # Some to spare: clients of tests before this one may still open sockets in their threads.
    with few_descriptors(filesystem, new_files=10):
        log = open_log(tmp_path, filesystem=filesystem, segment_bytes=100)
    assert (log.offline_reason, log.end_offset, len(files_with(tmp_path, ".log"))) == ("", 40, 40)
    assert log.recovery.checked_bytes
