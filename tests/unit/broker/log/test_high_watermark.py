"""Requests that wait until a record is safe, on one broker and in a cluster; a script says what the replicas have."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.api.purgatory import Deadline
from broker.errors import BrokerError
from broker.log.high_watermark import TURN_ENDS_MAX, ReplicatedHighWatermark
from broker.log.partition import Partition
from tests.support.engine import Harness
from tests.support.replicas import ScriptedWatermarks, append


@pytest.fixture
def judge() -> ScriptedWatermarks:
    return ScriptedWatermarks()


@pytest.fixture
def broker(tmp_path: Path, judge: ScriptedWatermarks) -> Harness:
    harness = Harness(tmp_path, watermarks=judge)
    harness.create("clicks")
    return harness


@pytest.fixture
def partition(broker: Harness) -> Partition:
    partition = broker.engine.partitions.held("clicks", 0)
    assert partition is not None
    broker.engine.partitions.lead(partition, 3)
    return partition


@pytest.fixture
def high_watermark(broker: Harness) -> ReplicatedHighWatermark:
    high_watermark = broker.engine.context.high_watermark
    assert isinstance(high_watermark, ReplicatedHighWatermark)
    return high_watermark


def test_each_who_waits_is_told_at_his_own_mark_and_offset(
    broker: Harness, partition: Partition, high_watermark: ReplicatedHighWatermark
) -> None:
    answered: list[str] = []
    append(broker, partition, 3)
    for offset in (3, 1, 2):  # DeleteRecords waits for offsets in any order
        high_watermark.when_visible(partition, offset, lambda error, offset=offset: answered.append(f"visible {offset}"))  # type: ignore[misc]
    high_watermark.when_replicated(partition, 2, lambda error: answered.append("replicated 2"))
    high_watermark.moved(partition, 2, 0)
    assert answered == ["replicated 2"]
    high_watermark.moved(partition, 3, 2)
    assert answered == ["replicated 2", "visible 1", "visible 2"]
    high_watermark.moved(partition, 3, 3)
    assert answered[-1] == "visible 3"


def test_a_flush_of_our_own_moves_what_is_visible_where_it_was_the_last_one(
    broker: Harness, partition: Partition, high_watermark: ReplicatedHighWatermark, judge: ScriptedWatermarks
) -> None:
    outcomes: list[BrokerError | None] = []
    append(broker, partition)
    judge.others_have(partition, written=1, flushed=1)
    high_watermark.when_visible(partition, 1, outcomes.append)
    broker.settle()
    assert outcomes == [None]
    assert (partition.replicated_offset, partition.visible_offset) == (1, 1)


def test_followers_are_told_that_somebody_waits_for_their_disks(
    broker: Harness, partition: Partition, high_watermark: ReplicatedHighWatermark, judge: ScriptedWatermarks
) -> None:
    append(broker, partition, 2)
    high_watermark.when_visible(partition, 1, lambda error: None)
    assert judge.wanted_by == [partition]


def test_safe_offsets_never_fall_while_the_lead_lasts(
    broker: Harness, partition: Partition, high_watermark: ReplicatedHighWatermark
) -> None:
    append(broker, partition, 2)
    high_watermark.moved(partition, 2, 1)
    with pytest.raises(AssertionError):
        high_watermark.moved(partition, 2, 0)
    high_watermark.moved(partition, 1, 1)
    assert (partition.replicated_offset, partition.visible_offset) == (2, 1)


def test_a_flush_of_a_follower_is_told_to_whoever_fetches(
    broker: Harness, partition: Partition, high_watermark: ReplicatedHighWatermark
) -> None:
    flushed: list[Partition] = []
    high_watermark.on_follower_flushed = flushed.append
    append(broker, partition)
    broker.engine.partitions.follow(partition, leader=2, epoch=4)
    broker.flush()
    assert flushed == [partition]
    partition.learn_visible(9)
    assert partition.visible_offset == 1, "what is not on this disk it cannot vouch for"


def test_the_place_of_the_visible_offset_is_known_where_a_turn_ended_and_searched_for_elsewhere(
    broker: Harness, partition: Partition, high_watermark: ReplicatedHighWatermark
) -> None:
    append(broker, partition, 2)
    append(broker, partition, 3)
    log = partition.log
    (whole,) = log.segments
    sizes = []
    for visible, is_known in ((1, False), (2, True), (4, False), (5, True)):
        high_watermark.moved(partition, 5, visible)
        position = partition.visible_position
        assert (position is not None) is is_known
        piece = log.locate(0, 1 << 20, upto_offset=visible, upto_position=position)
        searched = log.locate(0, 1 << 20, upto_offset=visible)
        sizes.append(piece.length)
        assert piece.length == searched.length
        piece.release()
        searched.release()
    assert sizes == [whole.size // 5 * count for count in (1, 2, 4, 5)]


def test_bytes_are_exposed_once_and_at_least_one_whenever_more_is_visible(
    broker: Harness, partition: Partition, high_watermark: ReplicatedHighWatermark
) -> None:
    exposed: list[int] = []
    high_watermark.on_advanced = lambda partition, byte_count: exposed.append(byte_count)
    append(broker, partition, 2)
    append(broker, partition, 3)
    written = partition.log.segments.size_bytes
    for visible in (1, 2, 2, 5):
        high_watermark.moved(partition, 5, visible)
    assert exposed == [1, written // 5 * 2, written // 5 * 3]


def test_a_follower_that_is_far_behind_costs_a_bounded_number_of_turn_ends(
    broker: Harness, partition: Partition, high_watermark: ReplicatedHighWatermark
) -> None:
    for _ in range(TURN_ENDS_MAX + 10):
        append(broker, partition)
    assert len(high_watermark._turn_ends[partition].ends) == TURN_ENDS_MAX
    high_watermark.moved(partition, 5, 5)
    piece = partition.log.locate(0, 1 << 20, upto_offset=5, upto_position=partition.visible_position)
    assert piece.length == partition.log.segments.size_bytes // (TURN_ENDS_MAX + 10) * 5
    piece.release()


def test_a_new_lead_begins_with_what_was_visible_and_knows_nothing_of_its_followers(
    broker: Harness, partition: Partition, high_watermark: ReplicatedHighWatermark, judge: ScriptedWatermarks
) -> None:
    append(broker, partition, 4)
    high_watermark.moved(partition, 3, 2)
    broker.engine.partitions.follow(partition, leader=2, epoch=4)
    broker.engine.partitions.lead(partition, 5)
    assert (partition.replicated_offset, partition.visible_offset, partition.epoch_start_offset) == (2, 2, 4)


def test_those_who_gave_up_are_not_kept_while_nothing_becomes_safe(
    broker: Harness, partition: Partition, high_watermark: ReplicatedHighWatermark
) -> None:
    append(broker, partition)
    outcomes: list[BrokerError | None] = []
    high_watermark.when_visible(partition, 1, outcomes.append, Deadline(30.0))
    for _ in range(10_000):
        impatient = Deadline(5.0)
        high_watermark.when_visible(partition, 1, lambda error: pytest.fail("it has given up"), impatient)
        impatient.is_over = True
    assert len(partition.awaits_visible) < 2_000
    partition.awaits_visible[:] = [wait for wait in partition.awaits_visible if not wait[2].is_over]  # type: ignore[union-attr]
    high_watermark.moved(partition, 1, 1)
    assert outcomes == [None]
