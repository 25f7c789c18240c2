"""Asynchronous flushes by the kernel: submitted, waited for, refused, failed."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from logbus_broker.filesystem import FileSystem, OpenFile
from logbus_broker.log.thread_pool import KernelSync, error_of

MANY = 100


@pytest.fixture
def kernel() -> Iterator[KernelSync]:
    kernel = KernelSync.open()
    if kernel is None:
        pytest.skip("this system has no asynchronous fdatasync: pool threads flush here")
    yield kernel
    kernel.close()


@pytest.fixture
def file(tmp_path: Path) -> OpenFile:
    file = FileSystem().open(tmp_path / "log", create=True)
    FileSystem().write_at(file, [b"a batch"], 0)
    return file


def test_a_file_is_synced_and_the_descriptor_says_so(kernel: KernelSync, file: OpenFile) -> None:
    outcomes: list[OSError | None] = []
    assert kernel.sync(file, outcomes.append)
    assert (outcomes, kernel.running) == ([], 1), "nothing is results before it is collected"
    ready, _, _ = select.select([kernel.fileno()], [], [])
    assert ready == [kernel.fileno()]
    kernel.collect()
    assert (outcomes, kernel.running) == ([None], 0)
    assert select.select([kernel.fileno()], [], [], 0) == ([], [], [])


def test_close_waits_for_all_that_was_asked(kernel: KernelSync, file: OpenFile) -> None:
    outcomes: list[OSError | None] = []
    assert all(kernel.sync(file, outcomes.append) for _ in range(MANY))
    kernel.close()
    assert outcomes == [None] * MANY


def test_collecting_twice_tells_once(kernel: KernelSync, file: OpenFile) -> None:
    outcomes: list[OSError | None] = []
    assert kernel.sync(file, outcomes.append)
    select.select([kernel.fileno()], [], [])
    kernel.collect()
    kernel.collect()
    assert outcomes == [None]


def test_one_who_raises_takes_no_result_of_another_along(kernel: KernelSync, file: OpenFile, defects: list[str]) -> None:
    outcomes: list[OSError | None] = []

    def broken(error: OSError | None) -> None:
        raise RuntimeError("a defect")

    assert all(kernel.sync(file, then) for then in (broken, outcomes.append, outcomes.append))
    kernel.close()
    assert (outcomes, kernel.running) == ([None, None], 0)
    assert len(defects) == 1, "and it is said"
    defects.clear()


class Context:
    """Has more finished requests than it returns from one call."""

    def __init__(self, *results: int) -> None:
        self.told = list(results)

    def poll(self) -> int:
        return sum(self.told)

    def process_events(self, requests_max: int) -> int:
        return self.told.pop(0) if self.told else 0


def test_all_that_is_finished_is_collected_for_one_call_of_the_kernel() -> None:
    context = Context(256, 256, 3)
    KernelSync(context, None).collect()
    assert context.told == []


def test_a_file_stays_open_until_it_is_synced(kernel: KernelSync, tmp_path: Path) -> None:
    outcomes: list[OSError | None] = []
    descriptor = FileSystem().open(tmp_path / "deleted", create=True)
    number = descriptor.fileno()
    assert kernel.sync(descriptor, outcomes.append)
    del descriptor
    os.fstat(number)
    kernel.close()
    assert outcomes == [None]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_what_the_kernel_cannot_sync_is_left_to_a_thread(kernel: KernelSync) -> None:
    ours, theirs = os.pipe()
    pipe = OpenFile(Path("pipe"), theirs)
    try:
        assert not kernel.sync(pipe, lambda error: pytest.fail("nobody was asked"))
    finally:
        os.close(ours)
    assert kernel.running == 0


@pytest.mark.parametrize("result", [-errno.EIO, (1 << 64) - errno.EIO])
def test_an_error_is_the_one_that_fdatasync_would_have_raised(result: int) -> None:
    error = error_of(result)
    assert error is not None
    assert (error.errno, str(error)) == (errno.EIO, f"[Errno {errno.EIO}] Input/output error")
    assert error_of(0) is None
