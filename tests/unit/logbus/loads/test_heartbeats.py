from __future__ import annotations

import threading

import pytest
from logbus.loads.attempts import heartbeats
from sqlalchemy.exc import OperationalError


def test_it_beats_at_once_and_again_and_again() -> None:
    beats = threading.Semaphore(0)
    with heartbeats(beats.release, every_seconds=0.001):
        assert all(beats.acquire(timeout=60) for _ in range(3))


def test_it_has_stopped_when_it_is_left() -> None:
    threads: set[threading.Thread] = set()
    with heartbeats(lambda: threads.add(threading.current_thread())):
        pass
    assert [thread.is_alive() for thread in threads] == [False]


def test_a_beat_that_fails_is_followed_by_the_next() -> None:
    beats = threading.Semaphore(0)

    def fail() -> None:
        beats.release()
        raise OperationalError("update", None, Exception("the warehouse restarts"))

    with heartbeats(fail, every_seconds=0.001):
        assert all(beats.acquire(timeout=60) for _ in range(3))


def test_the_error_of_the_block_comes_through() -> None:
    with pytest.raises(KeyError), heartbeats(lambda: None):
        raise KeyError
