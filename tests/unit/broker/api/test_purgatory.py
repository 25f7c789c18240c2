"""Deadlines expire in order and once, and those cancelled earlier do not fill the memory."""

from __future__ import annotations

from math import inf

from broker.api.purgatory import Deadline, Deadlines, DelayedFetch, Purgatory

PARTITION, OTHER = object(), object()


def waiting(
    answered: list[str], name: str, *, missing: int, deadline: float = 10.0, partitions: tuple[object, ...] = (PARTITION,)
) -> DelayedFetch:
    return DelayedFetch(
        partitions=list(partitions), bytes_missing=missing, deadline=deadline, answer=lambda: answered.append(name)
    )  # type: ignore[arg-type]


def test_a_fetch_is_answered_once_enough_bytes_are_exposed() -> None:
    answered: list[str] = []
    deadlines = Deadlines()
    purgatory = Purgatory(deadlines)
    purgatory.add(waiting(answered, "a", missing=100))
    purgatory.exposed(PARTITION, 60)  # type: ignore[arg-type]
    assert answered == []
    purgatory.exposed(PARTITION, 40)  # type: ignore[arg-type]
    purgatory.exposed(PARTITION, 40)  # type: ignore[arg-type]
    assert answered == ["a"]


def test_bytes_of_several_partitions_count_together() -> None:
    answered: list[str] = []
    deadlines = Deadlines()
    purgatory = Purgatory(deadlines)
    purgatory.add(waiting(answered, "a", missing=100, partitions=(PARTITION, OTHER)))
    purgatory.exposed(PARTITION, 50)  # type: ignore[arg-type]
    purgatory.exposed(OTHER, 50)  # type: ignore[arg-type]
    assert answered == ["a"]
    assert not purgatory.has_waiters(PARTITION)  # type: ignore[arg-type]
    assert not purgatory.has_waiters(OTHER)  # type: ignore[arg-type]


def test_a_cancelled_fetch_is_never_answered() -> None:
    answered: list[str] = []
    deadlines = Deadlines()
    purgatory = Purgatory(deadlines)
    fetch = waiting(answered, "a", missing=1)
    purgatory.add(fetch)
    purgatory.cancel(fetch)
    purgatory.exposed(PARTITION, 10)  # type: ignore[arg-type]
    deadlines.expire(100.0)
    assert answered == []


def test_a_partition_that_goes_away_wakes_its_waiters() -> None:
    answered: list[str] = []
    deadlines = Deadlines()
    purgatory = Purgatory(deadlines)
    purgatory.add(waiting(answered, "a", missing=1000))
    purgatory.wake(PARTITION)  # type: ignore[arg-type]
    assert answered == ["a"]


def test_cancelled_fetches_do_not_stay_until_their_deadline() -> None:
    """A client that opens long polls and disconnects must not fill the memory with deadlines that are days away."""
    deadlines = Deadlines()
    purgatory = Purgatory(deadlines)
    patient = waiting([], "patient", missing=1)
    purgatory.add(patient)
    for _ in range(10_000):
        fetch = waiting([], "impatient", missing=1, deadline=1e9)
        purgatory.add(fetch)
        purgatory.cancel(fetch)
    assert len(purgatory) == 1
    assert len(deadlines._heap) < 200
    assert deadlines.due == patient.deadline


def test_those_who_wait_for_the_same_partition_are_answered_in_the_order_in_which_they_came() -> None:
    answered: list[str] = []
    purgatory = Purgatory(Deadlines())
    names = [f"consumer-{number}" for number in range(50)]
    for name in names:
        purgatory.add(waiting(answered, name, missing=1))
    purgatory.exposed(PARTITION, 1)  # type: ignore[arg-type]
    assert answered == names


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
