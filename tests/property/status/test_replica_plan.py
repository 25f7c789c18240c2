"""Whatever a cluster's assignment, racks and sizes are: what a plan keeps, how level it makes, and how little it moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from logbus.kafka.client import PartitionId
from logbus.status.replica_moves import Assignment, drained, levelled

from tests.support.examples import examples

BROKERS_MAX = 6


@st.composite
def assignments(draw: st.DrawFn) -> dict[PartitionId, tuple[int, ...]]:
    """Up to three topics, each of one factor, on brokers 1 to 6 as chance has it."""
    replicas: dict[PartitionId, tuple[int, ...]] = {}
    for topic in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        factor = draw(st.integers(1, 3))
        for partition in range(draw(st.integers(1, 8))):
            brokers = draw(st.permutations(range(1, BROKERS_MAX + 1)))
            replicas[topic, partition] = tuple(brokers[:factor])
    return replicas


@st.composite
def brokers_with_racks(draw: st.DrawFn) -> dict[int, str | None]:
    """Three brokers at least; all in racks, or some."""
    numbers = draw(st.lists(st.integers(1, BROKERS_MAX), min_size=3, unique=True))
    names = draw(st.sampled_from([(None,), ("r1", "r2"), ("r1", "r2", "r3"), ("r1", None)]))
    return {number: draw(st.sampled_from(names)) for number in numbers}


def moved(before: Assignment, after: Assignment) -> int:
    return sum(len(set(after[key]) - set(replicas)) for key, replicas in before.items())


def counts(replicas: Iterable[tuple[int, ...]], brokers: Iterable[int]) -> list[int]:
    held = Counter(broker for row in replicas for broker in row)
    return [held[broker] for broker in brokers]


def racks_used(replicas: Iterable[int], racks: Mapping[int, str | None]) -> int:
    return len({racks[broker] for broker in replicas if broker in racks})


@settings(max_examples=examples(100, at_least=30))
@given(assignments(), brokers_with_racks())
def test_a_plan_takes_nothing_away_and_keeps_apart_what_is_apart(before: Assignment, racks: dict[int, str | None]) -> None:
    after = levelled(before, racks)
    assert after.keys() == before.keys()
    for key, replicas in after.items():
        assert len(replicas) == len(set(replicas)) == len(before[key])
        assert set(replicas) <= racks.keys()
        if all(racks.values()):
            assert racks_used(replicas, racks) == min(len(replicas), len(set(racks.values())))
    assert levelled(after, racks) == after, "a second plan has nothing to do"


@settings(max_examples=examples(100, at_least=30))
@given(assignments(), st.lists(st.integers(1, BROKERS_MAX), min_size=3, unique=True))
def test_without_racks_replicas_and_leaders_are_level(before: Assignment, numbers: list[int]) -> None:
    after = levelled(before, dict.fromkeys(numbers))
    replicas = counts(after.values(), numbers)
    assert max(replicas) - min(replicas) <= 1
    leads = counts((row[:1] for row in after.values()), numbers)
    for begin, leader in enumerate(leads):
        for end, other in enumerate(leads):
            if leader - other > 1:
                shared = [row for row in after.values() if row[0] == numbers[begin] and numbers[end] in row]
                assert not shared, "one of these could be led by the other"


@settings(max_examples=examples(100, at_least=30))
@given(assignments())
def test_among_the_same_brokers_no_plan_could_move_less(before: Assignment) -> None:
    numbers = sorted({broker for row in before.values() for broker in row})
    if len(numbers) < max(map(len, before.values())):
        return
    held = counts(before.values(), numbers)
    fewest, more = divmod(sum(held), len(numbers))
    most = fewest + bool(more)
    least = max(sum(max(0, count - most) for count in held), sum(max(0, fewest - count) for count in held))
    assert moved(before, levelled(before, dict.fromkeys(numbers))) == least


@settings(max_examples=examples(100, at_least=30))
@given(assignments(), brokers_with_racks(), st.integers(1, BROKERS_MAX))
def test_a_drained_broker_is_empty_and_all_else_is_where_it_was(
    before: Assignment, racks: dict[int, str | None], broker: int
) -> None:
    racks = {number: racks.get(number) for number in range(1, BROKERS_MAX + 1) if number != broker}
    after = drained(before, racks, broker)
    for key, replicas in before.items():
        assert broker not in after[key]
        assert len(after[key]) == len(set(after[key])) == len(replicas)
        assert set(replicas) - {broker} <= set(after[key])
        if broker not in replicas:
            assert after[key] == replicas
        elif replicas[0] != broker:
            assert after[key][0] == replicas[0]
