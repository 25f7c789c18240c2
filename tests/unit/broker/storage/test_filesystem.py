from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.storage.filesystem import FileSystem
from tests.support.logs import FailingDisk


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
