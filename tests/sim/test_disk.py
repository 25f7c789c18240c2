"""The simulated disk is a file system like the real one, and loses what was not synced."""

from __future__ import annotations

from pathlib import Path

import pytest
from logbus_broker.filesystem import BUFFERS_PER_WRITE_MAX, FileSystem

from tests.sim.disk import SimDisk, Stopped

Place = tuple[FileSystem, Path]


@pytest.fixture(params=["simulated", "real"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A file system and an empty directory in it."""
    if request.param == "real":
        return FileSystem(), tmp_path
    disk = SimDisk()
    return disk, disk.root


def nothing(low: int, high: int) -> int:
    return low


def everything(low: int, high: int) -> int:
    return high


# What both guarantee


def test_what_was_written_is_read(place: Place) -> None:
    disk, root = place
    file = disk.open(root / "file", create=True)
    disk.write_at(file, (b"head", b"", memoryview(b"tail")), 3)
    disk.write_at(file, (b"EA",), 4)
    assert disk.read_at(file, 100, 0) == b"\0\0\0hEAdtail"
    assert disk.read_at(file, 4, 9) == b"il"
    assert disk.size(file) == disk.size_of(root / "file") == 11


def test_more_buffers_than_one_call_takes_are_written(place: Place) -> None:
    disk, root = place
    file = disk.open(root / "file", create=True)
    disk.write_at(file, [b"%05d" % number for number in range(BUFFERS_PER_WRITE_MAX * 2 + 3)], 0)
    assert disk.size(file) == (BUFFERS_PER_WRITE_MAX * 2 + 3) * 5


@pytest.mark.parametrize("length", [0, 2, 9])
def test_a_file_is_cut_or_made_longer(place: Place, length: int) -> None:
    disk, root = place
    disk.write_bytes(root / "file", b"12345")
    disk.truncate(disk.open(root / "file"), length)
    assert disk.read_bytes(root / "file") == b"12345"[:length].ljust(length, b"\0")


def test_creating_refuses_a_file_that_exists_and_opening_one_that_does_not(place: Place) -> None:
    disk, root = place
    disk.open(root / "file", create=True)
    with pytest.raises(FileExistsError):
        disk.open(root / "file", create=True)
    for ask in (disk.open, disk.open_for_reading, disk.read_bytes, disk.size_of, disk.modified_ms, disk.list_names, disk.pin):
        with pytest.raises(FileNotFoundError):
            ask(root / "other")  # type: ignore[operator]


def test_an_open_file_outlives_its_name(place: Place) -> None:
    disk, root = place
    file = disk.open(root / "file", create=True)
    disk.write_at(file, (b"text",), 0)
    disk.rename(root / "file", root / "other")
    disk.remove(root / "other")
    assert disk.read_at(file, 9, 0) == b"text"
    assert disk.list_names(root) == []


def test_a_renamed_file_takes_the_place_of_another(place: Place) -> None:
    disk, root = place
    disk.write_bytes(root / "old", b"old")
    disk.write_bytes(root / "new", b"new")
    disk.rename(root / "new", root / "old")
    assert disk.list_names(root) == ["old"]
    assert disk.read_bytes(root / "old") == b"new"
    with pytest.raises(FileNotFoundError):
        disk.rename(root / "new", root / "old")


def test_whole_files_are_written_anew_and_replaced(place: Place) -> None:
    disk, root = place
    disk.write_bytes(root / "file", b"a longer text")
    disk.write_bytes(root / "file", b"short", durable=False)
    assert disk.read_bytes(root / "file") == b"short"
    disk.replace_bytes(root / "file", b"other")
    assert disk.read_bytes(root / "file") == b"other"
    assert disk.list_names(root) == ["file"]


def test_directories_are_made_with_their_parents_renamed_and_removed(place: Place) -> None:
    disk, root = place
    disk.make_directory(root / "a" / "b")
    disk.make_directory(root / "a" / "b")
    disk.write_bytes(root / "a" / "b" / "file", b"text")
    assert disk.is_directory(root / "a" / "b")
    assert not disk.is_directory(root / "a" / "b" / "file")
    disk.rename(root / "a", root / "c")
    assert disk.read_bytes(root / "c" / "b" / "file") == b"text"
    disk.sync_directory(root / "c")
    disk.remove(root / "c")
    disk.remove(root / "c")
    assert disk.list_names(root) == []


def test_a_pinned_directory_is_reached_by_its_path(place: Place) -> None:
    disk, root = place
    disk.make_directory(root / "a")
    pinned = disk.pin(root / "a")
    disk.write_bytes(pinned.path / "file", b"text")
    assert disk.read_bytes(root / "a" / "file") == b"text"


def test_times_can_be_set(place: Place) -> None:
    disk, root = place
    disk.write_bytes(root / "file", b"")
    disk.set_modified_ms(root / "file", 1_700_000_000_000)
    assert disk.modified_ms(root / "file") == 1_700_000_000_000


def test_a_lock_is_held_by_one_until_it_lets_go(place: Place) -> None:
    disk, root = place
    lock = disk.lock(root / ".lock")
    assert lock is not None
    assert disk.lock(root / ".lock") is None
    assert disk.is_locked(root / ".lock")
    del lock
    assert not disk.is_locked(root / ".lock")
    assert disk.lock(root / ".lock") is not None


# What only the simulated one does


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


def test_a_power_cut_leaves_what_was_synced(disk: SimDisk) -> None:
    file = disk.open(disk.root / "file", create=True)
    disk.write_at(file, (b"kept",), 0)
    disk.sync_data(file)
    disk.sync_directory(disk.root)
    disk.write_at(file, (b"lost",), 4)
    disk.open(disk.root / "other", create=True)
    disk.power_cut(nothing)
    assert disk.list_names(disk.root) == ["file"]
    assert disk.read_bytes(disk.root / "file") == b"kept"


def test_a_file_whose_name_was_not_synced_is_gone_though_its_bytes_were(disk: SimDisk) -> None:
    file = disk.open(disk.root / "file", create=True)
    disk.write_at(file, (b"text",), 0)
    disk.sync_data(file)
    disk.power_cut(nothing)
    assert disk.list_names(disk.root) == []


def test_a_rename_that_was_not_synced_may_be_undone_and_is_never_half_done(disk: SimDisk) -> None:
    disk.write_bytes(disk.root / "old", b"old")
    disk.write_bytes(disk.root / "new", b"new")
    disk.sync_directory(disk.root)
    disk.rename(disk.root / "new", disk.root / "old")
    disk.power_cut(nothing)
    assert disk.list_names(disk.root) == ["new", "old"]
    disk.rename(disk.root / "new", disk.root / "old")
    disk.power_cut(everything)
    assert disk.list_names(disk.root) == ["old"]
    assert disk.read_bytes(disk.root / "old") == b"new"


@pytest.mark.parametrize(
    ("chances", "left"),
    [
        ([2, 3, 0], b"firsec"),  # the names; then three bytes of the second write
        ([2, 3, 1], b"firsec\0\0\0"),  # ... and zeros for the rest
        ([1, 3, 0], b"fir"),
        ([0], b""),
    ],
)
def test_the_last_write_that_a_power_cut_leaves_may_be_torn(disk: SimDisk, chances: list[int], left: bytes) -> None:
    file = disk.open(disk.root / "file", create=True)
    disk.sync_directory(disk.root)
    disk.write_at(file, (b"fir",), 0)
    disk.write_at(file, (b"second",), 3)
    drawn = iter([0, *chances])  # no directory change is lost: there is none
    disk.power_cut(lambda low, high: next(drawn))
    assert disk.read_bytes(disk.root / "file") == left


def test_a_sync_that_fails_loses_what_the_next_one_does_not_bring_back(disk: SimDisk) -> None:
    file = disk.open(disk.root / "file", create=True)
    disk.sync_directory(disk.root)
    disk.write_at(file, (b"text",), 0)
    disk.failing_syncs = 1
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_data(file)
    disk.sync_data(file)
    assert disk.read_bytes(disk.root / "file") == b"text"
    disk.power_cut(everything)
    assert disk.read_bytes(disk.root / "file") == b""


def test_a_sync_brings_only_what_was_written_before_it_began(disk: SimDisk) -> None:
    file = disk.open(disk.root / "file", create=True)
    disk.sync_directory(disk.root)
    disk.write_at(file, (b"before",), 0)
    began_at = disk.writes
    disk.write_at(file, (b"after",), 6)
    with disk.syncing(began_at):
        disk.sync_data(file)
    disk.power_cut(nothing)
    assert disk.read_bytes(disk.root / "file") == b"before"


def test_a_full_disk_takes_what_fits_and_what_is_removed_makes_room(disk: SimDisk) -> None:
    file = disk.open(disk.root / "file", create=True)
    disk.write_at(file, (b"1234",), 0)
    disk.room = 2
    with pytest.raises(OSError, match="No space"):
        disk.write_at(file, (b"5678",), 4)
    assert disk.read_bytes(disk.root / "file") == b"123456"
    disk.write_at(file, (b"abcdef",), 0)  # the file does not grow
    disk.remove(disk.root / "file")
    assert disk.space(disk.root)[1] == 6


def test_the_process_ends_within_a_call_and_its_lock_with_it(disk: SimDisk) -> None:
    lock = disk.lock(disk.root / ".lock")
    disk.calls_left = 1
    disk.make_directory(disk.root / "a")
    with pytest.raises(Stopped):
        disk.replace_bytes(disk.root / "file", b"text")
    disk.release()
    assert lock is not None
    assert disk.lock(disk.root / ".lock") is not None
