from __future__ import annotations

import pytest

from broker.controller.place import check_assignments, place
from broker.errors import InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor

THREE = {1: "", 2: "", 3: ""}


def test_leads_go_round_and_what_a_broker_loses_is_spread_over_the_others() -> None:
    assert place(6, 2, THREE, seed=0) == ((1, 2), (2, 3), (3, 1), (1, 3), (2, 1), (3, 2))


def test_new_partitions_of_a_topic_go_on_where_the_old_ones_ended() -> None:
    assert place(2, 2, THREE, seed=0) + place(4, 2, THREE, seed=0, first=2) == place(6, 2, THREE, seed=0)


def test_the_seed_says_where_the_round_begins() -> None:
    assert [place(1, 1, THREE, seed=seed)[0] for seed in range(4)] == [(1,), (2,), (3,), (1,)]


def test_racks_count_only_where_all_brokers_have_one() -> None:
    assert len(set(place(20, 2, {1: "a", 2: "a", 3: ""}, seed=0))) == 6


@pytest.mark.parametrize(
    ("partitions", "factor", "error", "sentence"),
    [
        (1, 4, InvalidReplicationFactor, "replication factor 4 is larger than the number of live brokers, 3"),
        (1, 0, InvalidReplicationFactor, "at least 1"),
        (0, 1, InvalidPartitions, "at least 1"),
    ],
)
def test_what_cannot_be_placed_is_refused(partitions: int, factor: int, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        place(partitions, factor, THREE, seed=0)


def test_assignments_by_hand_are_taken_as_they_are() -> None:
    assert check_assignments({1: [2, 1], 0: [3, 2]}, THREE) == ((3, 2), (2, 1))
    assert check_assignments({4: [2]}, THREE, first=4) == ((2,),)


@pytest.mark.parametrize(
    ("assignments", "sentence"),
    [
        ({}, "all from 0 on"),
        ({1: [1]}, "all from 0 on"),
        ({0: []}, "is empty or names a broker twice"),
        ({0: [1, 1]}, "is empty or names a broker twice"),
        ({0: [1, 9]}, "no live broker has the id 9"),
        ({0: [1], 1: [1, 2]}, "partition 1 has 2 replicas, partition 0 another number"),
    ],
)
def test_assignments_that_make_no_sense_are_refused(assignments: dict[int, list[int]], sentence: str) -> None:
    with pytest.raises(InvalidReplicaAssignment, match=sentence):
        check_assignments(assignments, THREE)
