"""Deadlines expire in order and once, and those cancelled earlier do not fill the memory."""

from __future__ import annotations

from math import inf

from broker.handlers.deadlines import Deadline, Deadlines


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
