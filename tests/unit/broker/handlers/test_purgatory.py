from __future__ import annotations

from broker.handlers.deadlines import Deadlines
from broker.handlers.purgatory import Purgatory, WaitingFetch

PARTITION, OTHER = object(), object()


def waiting(
    answered: list[str], name: str, *, missing: int, deadline: float = 10.0, partitions: tuple[object, ...] = (PARTITION,)
) -> WaitingFetch:
    return WaitingFetch(
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
