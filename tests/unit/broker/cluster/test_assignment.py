from __future__ import annotations

from collections.abc import Iterable

import pytest
from logbus_broker.cluster.assignment import (
    Reassigned,
    check_assignments,
    finish,
    is_reassigned,
    moving,
    originals,
    place_replicas,
    reassign,
    targets,
)
from logbus_broker.cluster.metadata_image import ClusterTopic
from logbus_broker.errors import InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor

from tests.unit.broker.cluster.cases import changed, decided, present, state, topic, with_state

THREE = {1: "", 2: "", 3: ""}


def test_leads_go_round_and_what_a_broker_loses_is_spread_over_the_others() -> None:
    assert place_replicas(6, 2, THREE, seed=0) == ((1, 2), (2, 3), (3, 1), (1, 3), (2, 1), (3, 2))


def test_new_partitions_of_a_topic_go_on_where_the_old_ones_ended() -> None:
    assert place_replicas(2, 2, THREE, seed=0) + place_replicas(4, 2, THREE, seed=0, first=2) == place_replicas(
        6, 2, THREE, seed=0
    )


def test_the_seed_says_where_the_round_begins() -> None:
    assert [place_replicas(1, 1, THREE, seed=seed)[0] for seed in range(4)] == [(1,), (2,), (3,), (1,)]


def test_racks_count_only_where_all_brokers_have_one() -> None:
    assert len(set(place_replicas(20, 2, {1: "a", 2: "a", 3: ""}, seed=0))) == 6


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
        place_replicas(partitions, factor, THREE, seed=0)


def test_assignments_by_hand_are_taken_as_they_are() -> None:
    assert check_assignments({1: [2, 1], 0: [3, 2]}, THREE) == ((3, 2), (2, 1))
    assert check_assignments({4: [2]}, THREE, first=4) == ((2,),)


@pytest.mark.parametrize(
    ("assignments", "sentence"),
    [
        ({}, "consecutive, from 0 on"),
        ({1: [1]}, "consecutive, from 0 on"),
        ({0: []}, "is empty or names a broker twice"),
        ({0: [1, 1]}, "is empty or names a broker twice"),
        ({0: [1, 9]}, "no live broker has the id 9"),
        ({0: [1], 1: [1, 2]}, "partition 1 has 2 replicas, but partition 0 has 1"),
    ],
)
def test_assignments_that_make_no_sense_are_refused(assignments: dict[int, list[int]], sentence: str) -> None:
    with pytest.raises(InvalidReplicaAssignment, match=sentence):
        check_assignments(assignments, THREE)


REPLICAS = (1, 2, 3)


def moved(partition: ClusterTopic, *target: int) -> ClusterTopic:
    step = reassign(partition, {0: target})
    assert step is not None
    assert step.moved == ()
    assert step.topic.version == partition.version + 1
    return step.topic


def cancel(partition: ClusterTopic, indexes: Iterable[int]) -> Reassigned | None:
    """Move partitions back to where they were, as a broker does that is asked to; None if none of them moves."""
    return reassign(partition, {index: originals(partition, index) for index in indexes if is_reassigned(partition, index)})


def with_isr(partition: ClusterTopic, leader: int, *isr: int) -> ClusterTopic:
    return with_state(partition, 0, state(leader, isr))


def test_the_new_replicas_are_added_first_and_nobody_stops() -> None:
    begun = moved(topic(REPLICAS, state(1, REPLICAS)), 4, 5, 1)
    assert begun.replicas == ((4, 5, 1, 2, 3),)
    assert (begun.adding, begun.removing) == ({0: (4, 5)}, {0: (2, 3)})
    assert (originals(begun, 0), targets(begun, 0)) == (REPLICAS, (4, 5, 1))
    assert finish(begun, 1) is None


def test_the_list_and_the_in_sync_set_end_in_one_write() -> None:
    begun = with_isr(moved(topic(REPLICAS, state(1, REPLICAS)), 4, 5, 1), 1, 1, 2, 3, 4, 5)
    step = finish(begun, 2)
    assert step is not None
    assert step.moved == (0,)
    assert step.topic.replicas == ((4, 5, 1),)
    assert (step.topic.adding, step.topic.removing) == ({}, {})
    end = step.topic.states[0]
    assert (end.leader, end.leader_epoch, end.isr, end.version) == (1, 7, (1, 4, 5), 4)


def test_a_leader_that_goes_hands_over_before_the_end() -> None:
    begun = with_isr(moved(topic(REPLICAS, state(1, REPLICAS)), 4, 5), 1, 1, 2, 3, 4)
    assert decided(begun, present(1, 2, 3, 4, 5)) is None, "5 is not there yet"
    ready = with_isr(begun, 1, 1, 2, 3, 4, 5)
    assert finish(ready, 1) is None
    assert changed(ready, present(1, 2, 3, 4, 5)).handover_to == 4


def test_the_end_waits_for_min_insync_replicas() -> None:
    begun = with_isr(moved(topic(REPLICAS, state(1, REPLICAS)), 1, 2), 1, 1, 3)
    assert finish(begun, 2) is None
    assert finish(begun, 1) is not None


def test_a_move_within_the_same_brokers_changes_the_preferred_leader_at_once() -> None:
    begun = moved(topic(REPLICAS, state(1, REPLICAS)), 2, 1, 3)
    assert (begun.replicas, begun.adding, begun.removing) == (((2, 1, 3),), {}, {})
    assert reassign(begun, {0: (2, 1, 3)}) is None


def test_a_cancelled_move_goes_back_without_waiting_for_the_dead() -> None:
    begun = with_isr(moved(topic(REPLICAS, state(1, REPLICAS)), 4, 5), 1, 1, 3, 4)
    back = cancel(begun, [0])
    assert back is not None
    assert (originals(back.topic, 0), targets(back.topic, 0)) == (REPLICAS, REPLICAS)
    step = finish(back.topic, 2)
    assert step is not None
    assert step.topic.replicas == (REPLICAS,)
    assert step.topic.states[0].isr == (1, 3)
    assert cancel(step.topic, [0]) is None


def test_whoever_is_not_a_target_any_more_leaves_in_the_last_step() -> None:
    begun = moved(moved(topic(REPLICAS, state(1, REPLICAS)), 4, 2, 3), 5, 2, 3)
    assert begun.replicas == ((5, 2, 3, 4, 1),)
    assert originals(begun, 0) == (2, 3, 1)
    step = finish(with_isr(begun, 2, 1, 2, 3, 4, 5), 1)
    assert step is not None
    assert (step.topic.replicas, step.topic.states[0].isr) == (((5, 2, 3),), (2, 3, 5))


def test_partitions_whose_state_is_being_written_wait() -> None:
    begun = with_isr(moved(topic(REPLICAS, state(1, REPLICAS)), 1, 2), 1, 1, 2, 3)
    assert finish(begun, 1, busy=[0]) is None


def test_ten_partitions_move_at_a_time() -> None:
    many = topic((1, 2), *[state(1, (1, 2))] * 25)
    step = reassign(many, dict.fromkeys(range(25), (3, 2)))
    assert step is not None
    assert list(moving([step.topic], {1, 2, 3})) == [("t", index) for index in range(10)]
    assert moving([step.topic], {1, 2}) == {}
    done = with_state(step.topic, 0, state(1, (1, 2, 3)))
    assert list(moving([done], {1, 2, 3}, 3)) == [("t", 1), ("t", 2), ("t", 3)]


@pytest.mark.parametrize("target", [(), (1, 1)])
def test_targets_that_make_no_sense_are_refused(target: tuple[int, ...]) -> None:
    with pytest.raises(InvalidReplicaAssignment):
        reassign(topic(REPLICAS, state(1, REPLICAS)), {0: target})
