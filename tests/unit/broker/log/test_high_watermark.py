"""Requests that wait until a record is safe, on one broker and in a cluster; a script says what the replicas have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from logbus_broker.api.purgatory import Deadline
from logbus_broker.errors import BrokerError
from logbus_broker.log.high_watermark import TURN_ENDS_MAX, ReplicatedHighWatermark
from logbus_broker.log.partition import Partition

from tests.support.engine import Harness
from tests.support.replicas import ScriptedWatermarks, append


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """A partition that this broker leads."""

    broker: Harness
    partition: Partition
    high_watermark: ReplicatedHighWatermark
    judge: ScriptedWatermarks

    def append(self, count: int = 1) -> None:
        append(self.broker, self.partition, count)


@pytest.fixture
def led(tmp_path: Path) -> Led:
    judge = ScriptedWatermarks()
    broker = Harness(tmp_path, watermarks=judge)
    broker.create("clicks")
    partition, high_watermark = broker.engine.partitions.held("clicks", 0), broker.engine.context.high_watermark
    assert partition is not None
    assert isinstance(high_watermark, ReplicatedHighWatermark)
    broker.engine.partitions.lead(partition, 3)
    return Led(broker=broker, partition=partition, high_watermark=high_watermark, judge=judge)


def test_each_who_waits_is_told_at_his_own_mark_and_offset(led: Led) -> None:
    answered: list[str] = []
    led.append(3)
    for offset in (3, 1, 2):  # DeleteRecords waits for offsets in any order
        led.high_watermark.when_visible(led.partition, offset, lambda error, offset=offset: answered.append(f"visible {offset}"))  # type: ignore[misc]
    led.high_watermark.when_replicated(led.partition, 2, lambda error: answered.append("replicated 2"))
    led.high_watermark.moved(led.partition, 2, 0)
    assert answered == ["replicated 2"]
    led.high_watermark.moved(led.partition, 3, 2)
    assert answered == ["replicated 2", "visible 1", "visible 2"]
    led.high_watermark.moved(led.partition, 3, 3)
    assert answered[-1] == "visible 3"


def test_a_flush_of_our_own_moves_what_is_visible_where_it_was_the_last_one(led: Led) -> None:
    outcomes: list[BrokerError | None] = []
    led.append()
    led.judge.others_have(led.partition, written=1, flushed=1)
    led.high_watermark.when_visible(led.partition, 1, outcomes.append)
    led.broker.settle()
    assert outcomes == [None]
    assert (led.partition.replicated_offset, led.partition.visible_offset) == (1, 1)


def test_followers_are_told_that_somebody_waits_for_their_disks(led: Led) -> None:
    led.append(2)
    led.high_watermark.when_visible(led.partition, 1, lambda error: None)
    assert led.judge.wanted_by == [led.partition]


def test_safe_offsets_never_fall_while_the_lead_lasts(led: Led) -> None:
    led.append(2)
    led.high_watermark.moved(led.partition, 2, 1)
    with pytest.raises(AssertionError):
        led.high_watermark.moved(led.partition, 2, 0)
    led.high_watermark.moved(led.partition, 1, 1)
    assert (led.partition.replicated_offset, led.partition.visible_offset) == (2, 1)


def test_a_flush_of_a_follower_is_told_to_whoever_fetches(led: Led) -> None:
    flushed: list[Partition] = []
    led.high_watermark.on_follower_flushed = flushed.append
    led.append()
    led.broker.engine.partitions.follow(led.partition, leader=2, epoch=4)
    led.broker.flush()
    assert flushed == [led.partition]
    led.partition.learn_visible(9)
    assert led.partition.visible_offset == 1, "what is not on this disk it cannot vouch for"


def test_the_place_of_the_visible_offset_is_known_where_a_turn_ended_and_searched_for_elsewhere(led: Led) -> None:
    led.append(2)
    led.append(3)
    log = led.partition.log
    (whole,) = log.segments
    sizes = []
    for visible, is_known in ((1, False), (2, True), (4, False), (5, True)):
        led.high_watermark.moved(led.partition, 5, visible)
        position = led.partition.visible_position
        assert (position is not None) is is_known
        piece = log.locate(0, 1 << 20, upto_offset=visible, upto_position=position)
        searched = log.locate(0, 1 << 20, upto_offset=visible)
        sizes.append(piece.length)
        assert piece.length == searched.length
        piece.release()
        searched.release()
    assert sizes == [whole.size // 5 * count for count in (1, 2, 4, 5)]


def test_bytes_are_exposed_once_and_at_least_one_whenever_more_is_visible(led: Led) -> None:
    exposed: list[int] = []
    led.high_watermark.on_advanced = lambda partition, byte_count: exposed.append(byte_count)
    led.append(2)
    led.append(3)
    written = led.partition.log.segments.size_bytes
    for visible in (1, 2, 2, 5):
        led.high_watermark.moved(led.partition, 5, visible)
    assert exposed == [1, written // 5 * 2, written // 5 * 3]


def test_a_follower_that_is_far_behind_costs_a_bounded_number_of_turn_ends(led: Led) -> None:
    for _ in range(TURN_ENDS_MAX + 10):
        led.append()
    assert len(led.high_watermark._turn_ends[led.partition].ends) == TURN_ENDS_MAX
    led.high_watermark.moved(led.partition, 5, 5)
    piece = led.partition.log.locate(0, 1 << 20, upto_offset=5, upto_position=led.partition.visible_position)
    assert piece.length == led.partition.log.segments.size_bytes // (TURN_ENDS_MAX + 10) * 5
    piece.release()


def test_a_new_lead_begins_with_what_was_visible_and_knows_nothing_of_its_followers(led: Led) -> None:
    led.append(4)
    led.high_watermark.moved(led.partition, 3, 2)
    led.broker.engine.partitions.follow(led.partition, leader=2, epoch=4)
    led.broker.engine.partitions.lead(led.partition, 5)
    assert (led.partition.replicated_offset, led.partition.visible_offset, led.partition.epoch_start_offset) == (2, 2, 4)


def test_those_who_gave_up_are_not_kept_while_nothing_becomes_safe(led: Led) -> None:
    led.append()
    outcomes: list[BrokerError | None] = []
    led.high_watermark.when_visible(led.partition, 1, outcomes.append, Deadline(30.0))
    for _ in range(10_000):
        impatient = Deadline(5.0)
        led.high_watermark.when_visible(led.partition, 1, lambda error: pytest.fail("it has given up"), impatient)
        impatient.is_over = True
    assert len(led.partition.awaits_visible) < 2_000
    led.partition.awaits_visible[:] = [wait for wait in led.partition.awaits_visible if not wait[2].is_over]  # type: ignore[union-attr]
    led.high_watermark.moved(led.partition, 1, 1)
    assert outcomes == [None]
