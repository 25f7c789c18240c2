"""Deadlines expire in order and once, and those cancelled earlier do not fill the memory."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from logbus_broker.api.purgatory import Deadline, Deadlines, DelayedFetch, Purgatory

PARTITION: Any = object()
OTHER: Any = object()


class Scene:
    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.purgatory = Purgatory(self.deadlines)
        self.answered: list[str] = []

    def wait(
        self, name: str, *, missing: int, deadline: float = 10.0, partitions: tuple[Any, ...] = (PARTITION,)
    ) -> DelayedFetch:
        fetch = DelayedFetch(
            partitions=list(partitions), bytes_missing=missing, deadline=deadline, answer=lambda: self.answered.append(name)
        )
        self.purgatory.add(fetch)
        return fetch


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_fetch_is_answered_once_enough_bytes_are_exposed(scene: Scene) -> None:
    scene.wait("a", missing=100)
    scene.purgatory.exposed(PARTITION, 60)
    assert scene.answered == []
    scene.purgatory.exposed(PARTITION, 40)
    scene.purgatory.exposed(PARTITION, 40)
    assert scene.answered == ["a"]


def test_bytes_of_several_partitions_count_together(scene: Scene) -> None:
    scene.wait("a", missing=100, partitions=(PARTITION, OTHER))
    scene.purgatory.exposed(PARTITION, 50)
    scene.purgatory.exposed(OTHER, 50)
    assert scene.answered == ["a"]
    assert not scene.purgatory.has_waiters(PARTITION)
    assert not scene.purgatory.has_waiters(OTHER)


def test_a_cancelled_fetch_is_never_answered(scene: Scene) -> None:
    scene.purgatory.cancel(scene.wait("a", missing=1))
    scene.purgatory.exposed(PARTITION, 10)
    scene.deadlines.expire(100.0)
    assert scene.answered == []


def test_a_partition_that_goes_away_wakes_its_waiters(scene: Scene) -> None:
    scene.wait("a", missing=1000)
    scene.purgatory.wake(PARTITION)
    assert scene.answered == ["a"]


def test_cancelled_fetches_do_not_stay_until_their_deadline(scene: Scene) -> None:
    """A client that opens long polls and disconnects must not fill the memory with deadlines that are days away."""
    patient = scene.wait("patient", missing=1)
    for _ in range(10_000):
        scene.purgatory.cancel(scene.wait("impatient", missing=1, deadline=1e9))
    assert len(scene.purgatory) == 1
    assert len(scene.deadlines._heap) < 200
    assert scene.deadlines.due == patient.deadline


def test_those_who_wait_for_the_same_partition_are_answered_in_the_order_in_which_they_came(scene: Scene) -> None:
    names = [f"consumer-{number}" for number in range(50)]
    for name in names:
        scene.wait(name, missing=1)
    scene.purgatory.exposed(PARTITION, 1)
    assert scene.answered == names


class Wait(Deadline):
    """Records that it has expired."""

    __slots__ = ("ended",)

    def __init__(self, deadline: float, ended: list[float]) -> None:
        super().__init__(deadline)
        self.ended = ended

    def expire(self) -> None:
        self.ended.append(self.deadline)


def test_those_of_one_timeout_end_in_the_order_in_which_they_came() -> None:
    ended: list[float] = []
    deadlines = Deadlines()
    for now in (0.0, 1.0, 2.0):
        deadlines.add_in_order(Wait(now + 30, ended), 30_000)
        deadlines.add_in_order(Wait(now + 1, ended), 1_000)
    deadlines.add(Wait(2.5, ended))
    assert deadlines.due == 1.0
    deadlines.expire(2.5)
    assert sorted(ended) == [1.0, 2.0, 2.5]
    assert deadlines.due == 3.0
    deadlines.expire(32.0)
    assert sorted(ended) == [1.0, 2.0, 2.5, 3.0, 30.0, 31.0, 32.0]
    assert (len(deadlines), deadlines.due) == (0, inf)


def test_what_is_over_is_neither_ended_nor_waited_for() -> None:
    ended: list[float] = []
    deadlines = Deadlines()
    waits = [Wait(now + 30.0, ended) for now in range(3)]
    for wait in waits:
        deadlines.add_in_order(wait, 30_000)
    deadlines.cancel(waits[0])
    deadlines.cancel(waits[2])
    assert len(deadlines) == 1
    deadlines.expire(30.0)
    assert (ended, deadlines.due) == ([], 31.0)
    deadlines.expire(40.0)
    assert (ended, deadlines.due, len(deadlines)) == ([31.0], inf, 0)


def test_one_that_waits_long_does_not_keep_those_that_were_answered_behind_it() -> None:
    """A partition whose disk hangs, next to a busy one."""
    deadlines = Deadlines()
    deadlines.add_in_order(Wait(30.0, []), 30_000)
    for _ in range(10_000):
        wait = Wait(30.0, [])
        deadlines.add_in_order(wait, 30_000)
        deadlines.cancel(wait)
    assert len(deadlines) == 1
    assert sum(map(len, deadlines._queues.values())) < 200


def test_clients_that_name_a_thousand_timeouts_all_end_in_time() -> None:
    ended: list[float] = []
    deadlines = Deadlines()
    for timeout in range(1_000):
        deadlines.add_in_order(Wait(float(timeout), ended), timeout)
    assert len(deadlines._queues) < 20
    deadlines.expire(499.5)
    assert sorted(ended) == [float(timeout) for timeout in range(500)]
    deadlines.expire(1_000.0)
    assert len(ended) == 1_000
    deadlines.add_in_order(Wait(2_000.0, ended), 77_777)
    assert 77_777 in deadlines._queues, "the queues of those that ended are given to others"
