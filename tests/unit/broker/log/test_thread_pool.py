"""What runs outside the loop: what flushes, and how the outcome returns to the loop's thread."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from logbus_broker.errors import StorageError
from logbus_broker.filesystem import FileSystem, OpenFile
from logbus_broker.log.flusher import FlushTicket
from logbus_broker.log.segment import Segment
from logbus_broker.log.thread_pool import SystemThreadPool


class Kernel:
    """Accepts requests if `takes` is set; the test gives the answers."""

    def __init__(self, *, takes: bool = True) -> None:
        self.takes = takes
        self.asked: list[Callable[[OSError | None], None]] = []

    def sync(self, file: OpenFile, then: Callable[[OSError | None], None]) -> bool:
        if self.takes:
            self.asked.append(then)
        return self.takes

    def close(self) -> None:
        while self.asked:
            self.asked.pop()(None)


def ticket_of(directory: Path, *, with_directory: bool = False) -> FlushTicket:
    segment = Segment.create(directory, 0, interval_bytes=4096, filesystem=FileSystem())
    return FlushTicket(FileSystem(), sealed=[], active=segment, end_offset=5, directory=directory if with_directory else None)


def flushed(pool: SystemThreadPool, ticket: FlushTicket) -> list[BaseException | None]:
    outcomes: list[BaseException | None] = []
    pool.flush(ticket, lambda _, error: outcomes.append(error))
    return outcomes


@pytest.mark.parametrize("error", [None, OSError(errno.EIO, "Input/output error")])
def test_a_single_file_is_flushed_by_the_kernel_and_told_when_drained(tmp_path: Path, error: OSError | None) -> None:
    kernel = Kernel()
    pool = SystemThreadPool(1, 1, lambda: pytest.fail("no thread was needed"), kernel)  # type: ignore[arg-type]
    outcomes = flushed(pool, ticket_of(tmp_path))
    kernel.asked.pop()(error)
    assert outcomes == []
    pool.drain()
    (outcome,) = outcomes
    if error is None:
        assert outcome is None
    else:
        assert isinstance(outcome, StorageError)
        assert str(outcome) == f"cannot flush {tmp_path}: {error}"


@pytest.mark.parametrize(("takes", "with_directory"), [(False, False), (True, True)], ids=["it refuses", "more than one file"])
def test_what_the_kernel_alone_cannot_do_runs_on_a_thread(tmp_path: Path, takes: bool, with_directory: bool) -> None:
    kernel, woken = Kernel(takes=takes), threading.Event()
    pool = SystemThreadPool(1, 1, woken.set, kernel)  # type: ignore[arg-type]
    outcomes = flushed(pool, ticket_of(tmp_path, with_directory=with_directory))
    assert woken.wait(60)
    assert kernel.asked == []
    pool.close()
    assert outcomes == [None]


def test_closing_waits_for_the_kernel_too(tmp_path: Path) -> None:
    pool = SystemThreadPool(1, 1, lambda: None, Kernel())  # type: ignore[arg-type]
    outcomes = flushed(pool, ticket_of(tmp_path))
    pool.close()
    assert outcomes == [None]


def test_jobs_that_wait_for_each_other_run_together_and_keep_their_order() -> None:
    pool, both = SystemThreadPool(1, 2, lambda: None), threading.Barrier(2)
    outcomes: list[object] = []

    def job(number: int) -> int:
        both.wait(60)
        return number

    pool.store(lambda: pool.run_together([partial(job, 1), partial(job, 2)]), lambda *outcome: outcomes.append(outcome))
    pool.close()
    assert outcomes == [([1, 2], None)]


def test_the_first_error_of_jobs_that_run_together_is_raised() -> None:
    pool = SystemThreadPool(1, 2, lambda: None)
    with pytest.raises(ZeroDivisionError):
        pool.run_together([lambda: 1, lambda: 1 // 0, lambda: 2])
    pool.close()
