"""Plans of a few partitions, and what speaks against one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from logbus.errors import TopicMissing, UserError
from logbus.kafka.client import PartitionId
from logbus.kafka.cluster import ClusterFacts, partition_bytes
from logbus.status.replica_moves import (
    BrokerShare,
    changes,
    drainage,
    drained,
    levelled,
    proposal,
    seconds_at,
    shares,
    validate,
)

from tests.support.fake_reassignments import SIZE, FakeReassignments

THREE: Mapping[int, None] = dict.fromkeys((1, 2, 3))


def cluster(*replicas: tuple[int, ...], brokers: Mapping[int, str | None] = THREE) -> FakeReassignments:
    return FakeReassignments(brokers, {("t", index): row for index, row in enumerate(replicas)})


def test_a_new_broker_gets_its_share_and_nothing_else_moves() -> None:
    before = {("t", index): (1, 2) for index in range(6)}
    after = levelled(before, THREE)
    assert sum(3 in row for row in after.values()) == 4
    assert sum(row != before[key] for key, row in after.items()) >= 4
    assert sorted(row[0] for row in after.values()) == [1, 1, 2, 2, 3, 3]


def test_of_a_topic_the_smallest_partition_moves() -> None:
    before: dict[PartitionId, tuple[int, ...]] = {("t", index): (1,) for index in range(3)}
    sizes = {("t", 0): 9, ("t", 1): 2, ("t", 2): 5}
    assert levelled(before, dict.fromkeys((1, 2)), sizes)["t", 1] == (2,)


def test_a_rack_that_is_used_twice_is_left_while_another_has_a_broker() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    assert set(levelled({("t", 0): (1, 2)}, racks)["t", 0]) in ({1, 3}, {2, 3})
    assert levelled({("t", 0): (1, 2)}, {1: "a", 2: "a", 3: None}) == {("t", 0): (1, 2)}, "one broker has none"


def test_where_racks_forbid_the_direct_way_it_goes_over_a_third_broker() -> None:
    # Broker 4 is empty, in rack b. Only what has its other replica in rack a may come: none of broker 1's, whose others are in b.
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    before = {("t", 0): (1, 3), ("t", 1): (1, 3), ("t", 2): (1, 3), ("t", 3): (2, 3)}
    after = levelled(before, racks)
    held = [sum(broker in row for row in after.values()) for broker in racks]
    assert held == [2, 2, 2, 2]
    assert all(len({racks[broker] for broker in row}) == 2 for row in after.values())


def test_too_few_brokers_are_refused_with_the_partitions_that_lack_one() -> None:
    with pytest.raises(UserError, match=r"too few brokers: 1, 2 would be left.* t-0"):
        drained({("t", 0): (1, 2, 3), ("u", 0): (1,)}, dict.fromkeys((1, 2)), 3)
    with pytest.raises(UserError, match="too few brokers: none would be left"):
        drainage(cluster((1,), brokers={1: None}).facts(), 1)


def test_a_broker_that_is_gone_is_emptied_only_if_somebody_says_so() -> None:
    facts = cluster((1, 4), (2, 3)).facts()
    with pytest.raises(UserError, match=r"broker 4 is gone: .*--brokers 1,2,3"):
        proposal(facts, None, (), {})
    assert 4 not in proposal(facts, (1, 2, 3), (), {})["t", 0]
    assert 4 not in drainage(facts, 4)["t", 0]


def test_a_broker_is_drained_while_another_that_comes_first_in_many_partitions_is_gone() -> None:
    facts = cluster((3, 1), (1, 9), (9, 1), (9, 2), (9, 1)).facts()
    after = drainage(facts, 3)
    assert after == {
        ("t", 0): after["t", 0],
        **{("t", index): row for index, row in enumerate([(1, 9), (9, 1), (9, 2), (9, 1)], 1)},
    }
    assert set(after["t", 0]) == {1, 2}
    assert all(row[0] in (1, 2) for row in levelled({("t", 0): (9, 1), ("t", 1): (9, 2)}, {1: None, 2: None}).values())


def test_what_does_not_exist_is_named() -> None:
    facts = cluster((1, 2)).facts()
    with pytest.raises(UserError, match="broker 7 is not there: the cluster has 1, 2, 3"):
        proposal(facts, (1, 7), (), {})
    with pytest.raises(UserError, match="broker 7 is not there, and has no replica"):
        drainage(facts, 7)
    with pytest.raises(TopicMissing, match="no topic nowhere"):
        proposal(facts, None, ("nowhere",), {})


def test_changes_are_what_is_not_there_yet_and_what_it_costs() -> None:
    facts = cluster((1, 2), (2, 3)).facts()
    (part,) = changes(facts, {("t", 0): (3, 2), ("t", 1): (2, 3)}, partition_bytes(list(facts.directories)))
    assert (part.before, part.after, part.added, part.removed, part.size_bytes) == ((1, 2), (3, 2), (3,), (1,), SIZE)
    one, two, three = shares(facts, [part])
    assert one == BrokerShare(broker_id=1, replicas=(1, 0), leads=(1, 0), bytes_in=0, bytes_out=SIZE)
    assert (two.replicas, three.replicas, three.leads, three.bytes_in) == ((2, 2), (1, 2), (0, 1), SIZE)
    assert seconds_at(100, [one, two, three]) == SIZE / 100


def test_what_is_already_moving_counts_as_if_it_were_there() -> None:
    moving = cluster((1, 2))
    moving.alter({("t", 0): (3, 2)})
    assert changes(moving.facts(), drainage(moving.facts(), 1), {}) == []


def refused(facts: ClusterFacts, targets: Mapping[PartitionId, tuple[int, ...]]) -> str:
    with pytest.raises(UserError) as raised:
        validate(facts, changes(facts, targets, {}))
    return str(raised.value)


def test_a_move_that_would_not_end_or_would_end_badly_is_refused() -> None:
    parts = cluster((1, 2))
    assert "broker 9 is not there" in refused(parts.facts(), {("t", 0): (1, 9)})
    parts.insync_min = {"t": 2}
    assert "t-0 (1 of min.insync.replicas=2)" in refused(parts.facts(["t"]), {("t", 0): (1,)})
    validate(parts.facts(["t"]), changes(parts.facts(["t"]), {("t", 0): (3, 2)}, {}))
    parts.parts["t", 0] = replace(parts.parts["t", 0], in_sync=(1,))
    assert "t-0 (1 of min.insync.replicas=2)" in refused(parts.facts(["t"]), {("t", 0): (3, 2)}), "2 is behind"
    parts.parts["t", 0] = replace(parts.parts["t", 0], leader=None)
    assert "t-0 has no leader" in refused(parts.facts(["t"]), {("t", 0): (1, 3)})
