"""A broker in a cluster: what clients get while it leads, when it loses leadership, and when replicas are missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.api.handler import Pending
from logbus_broker.errors import BrokerError, NotLeaderOrFollower, StorageError
from logbus_broker.log.partition import Partition
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class, response_class
from logbus_broker.settings import LogConfig

from tests.support.engine import Harness, batch, produced
from tests.support.logs import headers_from
from tests.support.replicas import ScriptedWatermarks
from tests.support.wire import Wanted

LATEST = -1


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
    return lead(broker, 1)


def lead(broker: Harness, epoch: int) -> Partition:
    partition = broker.engine.partitions.held("clicks", 0)
    assert partition is not None
    broker.engine.partitions.lead(partition, epoch)
    return partition


def lose(broker: Harness, partition: Partition) -> None:
    broker.engine.partitions.follow(partition, leader=2, epoch=partition.leader_epoch + 1)


def produce(broker: Harness, *, acks: int = -1, timeout_ms: int = 1000, **fields: Any) -> Pending:
    return broker.produce(batch(b"a", **fields), acks=acks, timeout_ms=timeout_ms)


def code_of(pending: Pending) -> int:
    return int(produced(pending).error_code)


def answered(broker: Harness, **fields: Any) -> int:
    """The code of a Produce that is answered in its turn."""
    pending = produce(broker, **fields)
    broker.turn()
    return code_of(pending)


def fetch(broker: Harness, **limits: int) -> Any:
    return broker.fetch(Wanted(topic="clicks"), **limits)


def latest(broker: Harness, *, version: int = 7) -> Pending:
    row = request_class(ApiKey.LIST_OFFSETS).ListOffsetsTopic
    part = row.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=LATEST)
    topics = [row(name="clicks", partitions=[part])]
    answer = broker.begin(ApiKey.LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=topics)
    assert isinstance(answer, Pending)
    return answer


def latest_of(broker: Harness, pending: Pending, *, version: int = 7) -> tuple[int, int]:
    assert pending.done
    data = b"".join(part for part in pending.parts or [] if isinstance(part, bytes))
    (row,) = response_class(ApiKey.LIST_OFFSETS).decode(data, version=version).topics[0].partitions
    return row.error_code, row.offset


# -- which partitions are found --------------------------------------------------------------------------------------------------


def test_what_is_held_and_not_led_is_led_elsewhere_and_what_is_not_there_is_unknown(broker: Harness) -> None:
    assert answered(broker) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert broker.fetched(fetch(broker)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    by_id = broker.engine.partitions.get_by_id
    topic_id = broker.engine.partitions.registry.get("clicks").topic_id.bytes
    with pytest.raises(NotLeaderOrFollower):
        by_id(topic_id, 0)
    partition = lead(broker, 1)
    assert by_id(topic_id, 0) is broker.engine.partitions.get("clicks", 0) is partition


def test_a_broker_alone_leads_all_that_it_opens_in_the_epoch_that_recovery_found(tmp_path: Path) -> None:
    for epoch in (0, 1):
        broker = Harness(tmp_path)
        if not epoch:
            broker.create("clicks")
        partition = broker.engine.partitions.get("clicks", 0)
        assert (partition.is_led, partition.leader_epoch) == (True, epoch)
        assert answered(broker, acks=1) == 0
        broker.flush()
        broker.crash()


def test_batches_carry_the_epoch_of_the_lead_and_it_begins_where_the_log_ended(broker: Harness, partition: Partition) -> None:
    assert answered(broker, acks=1) == 0
    lose(broker, partition)
    lead(broker, 7)
    assert answered(broker, acks=1) == 0
    assert [(header.base_offset, header.leader_epoch) for header in headers_from(partition.log, 0)] == [(0, 1), (1, 7)]
    assert partition.log.epochs.end_offset_of(1, 2) == (1, 1)


def test_what_a_restarted_broker_has_is_not_taken_for_what_was_visible(tmp_path: Path) -> None:
    """It may have been written by this broker alone, and be truncated when another leads."""
    broker = Harness(tmp_path, watermarks=ScriptedWatermarks())
    broker.create("clicks")
    lead(broker, 1)
    produce(broker, acks=1)
    broker.flush()
    broker.close()
    again = Harness(tmp_path, watermarks=ScriptedWatermarks())
    partition = again.engine.partitions.held("clicks", 0)
    assert partition is not None
    assert (partition.is_led, partition.end_offset, partition.visible_offset) == (False, 1, 0)
    partition.learn_visible(1)
    assert partition.visible_offset == 1


# -- losing leadership -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, -1])
def test_what_a_turn_has_staged_is_discarded_unwritten_when_the_lead_is_lost(
    broker: Harness, partition: Partition, acks: int
) -> None:
    pending = produce(broker, acks=acks, producer_id=5, producer_epoch=0, base_sequence=0)
    lose(broker, partition)
    broker.turn()
    assert code_of(pending) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.end_offset == 0
    lead(broker, 9)
    assert answered(broker, acks=1, producer_id=5, producer_epoch=0, base_sequence=0) == 0
    assert partition.end_offset == 1


@pytest.mark.parametrize("waits_for_flush", [True, False])
def test_who_waits_for_replicas_is_told_at_once_when_the_lead_is_lost(
    tmp_path: Path, judge: ScriptedWatermarks, waits_for_flush: bool
) -> None:
    broker = Harness(tmp_path, log=LogConfig(acks_all_waits_for_flush=waits_for_flush), watermarks=judge)
    broker.create("clicks")
    partition = lead(broker, 1)
    pending, end = produce(broker), latest(broker)
    broker.settle()
    assert not pending.done
    lose(broker, partition)
    assert code_of(pending) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert latest_of(broker, end) == (0, 0), "nothing had been acknowledged"
    assert partition.end_offset == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageError("clicks-0 was deleted"), ErrorCode.KAFKA_STORAGE_ERROR),
        (NotLeaderOrFollower("this broker no longer has a replica of clicks-0"), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
    ids=["deleted", "moved away"],
)
def test_who_waits_for_replicas_is_told_at_once_why_the_partition_is_no_longer_here(
    broker: Harness, partition: Partition, error: BrokerError, code: ErrorCode
) -> None:
    pending = produce(broker)
    broker.settle()
    assert not pending.done
    broker.engine.partitions.take_out(broker.engine.partitions.registry.get("clicks"), 0, error)
    row = produced(pending)
    assert (row.error_code, row.error_message) == (code, str(error))
    with pytest.raises(StorageError, match=str(error)):
        partition.log.require_online()


def test_a_parked_fetch_is_answered_at_once_when_the_lead_is_lost(broker: Harness, partition: Partition) -> None:
    waiting = fetch(broker, wait_ms=10_000)
    assert not waiting.done
    lose(broker, partition)
    assert waiting.done
    assert broker.fetched(waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_that_cannot_be_sure_writes_nothing(broker: Harness, partition: Partition) -> None:
    turn = broker.engine.context.produce_turn
    turn.why_not = lambda partition: NotLeaderOrFollower(f"{partition.name}: not confirmed")
    assert answered(broker, acks=1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.end_offset == 0
    turn.why_not = lambda partition: None
    assert answered(broker, acks=1) == 0


def test_what_a_disk_held_up_until_another_broker_leads_is_not_acknowledged(broker: Harness, partition: Partition) -> None:
    """However soon before the write it was certain that none did. The record stays, for the followers to have or to cut."""
    end_offset = partition.end_offset

    def why_not(partition: Partition) -> BrokerError | None:
        return NotLeaderOrFollower("not confirmed") if partition.end_offset > end_offset else None

    broker.engine.context.produce_turn.why_not = why_not
    assert answered(broker, acks=1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.end_offset == end_offset + 1


def unsure(broker: Harness, partition: Partition, *, is_so: bool) -> None:
    broker.engine.context.produce_turn.why_not = lambda partition: NotLeaderOrFollower("not confirmed") if is_so else None


def without_replicas(broker: Harness, partition: Partition, *, is_so: bool) -> None:
    partition.lacks_replicas = is_so


def not_leading(broker: Harness, partition: Partition, *, is_so: bool) -> None:
    if is_so:
        lose(broker, partition)
    else:
        lead(broker, partition.leader_epoch + 1)


def test_the_second_batch_is_not_taken_either_when_the_first_came_before_this_broker_had_the_partition(
    tmp_path: Path, judge: ScriptedWatermarks
) -> None:
    """Clients learn of a new topic from another broker, and have several requests in flight."""
    broker = Harness(tmp_path, watermarks=judge)

    def answer_to(sequence: int) -> int:
        answer = produce(broker, acks=1, producer_id=7, producer_epoch=0, base_sequence=sequence)
        broker.settle()
        return code_of(answer)

    assert [answer_to(0), answer_to(1)] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    broker.create("clicks")
    assert answer_to(2) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    lead(broker, 1)
    assert answer_to(3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [answer_to(sequence) for sequence in range(4)] == [0] * 4


@pytest.mark.parametrize("refusing", [unsure, without_replicas, not_leading])
def test_the_second_batch_of_a_new_producer_is_not_taken_when_the_first_was_refused_a_moment_ago(
    broker: Harness, partition: Partition, refusing: Callable[..., None]
) -> None:
    first, second = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}, {"base_sequence": 1}
    refusing(broker, partition, is_so=True)
    refused = produce(broker, **first)
    broker.turn()
    refusing(broker, partition, is_so=False)
    on_its_way = produce(broker, **(first | second))
    broker.turn()
    assert code_of(refused) in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert code_of(on_its_way) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for fields in (first, first | second):
        produce(broker, **fields)
        broker.turn()
    assert partition.end_offset == 2


# -- what acks=all waits for -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits_for_flush", [True, False])
def test_acks_all_waits_for_replicas_and_for_their_disks_where_it_is_to(
    tmp_path: Path, judge: ScriptedWatermarks, waits_for_flush: bool
) -> None:
    broker = Harness(tmp_path, log=LogConfig(acks_all_waits_for_flush=waits_for_flush), watermarks=judge)
    broker.create("clicks")
    partition, high_watermark = lead(broker, 1), broker.engine.context.high_watermark
    first = produce(broker, producer_id=5, producer_epoch=0, base_sequence=0)
    broker.turn()
    again = produce(broker, producer_id=5, producer_epoch=0, base_sequence=0)
    at_once = produce(broker, acks=1)
    broker.settle()
    assert (first.done, again.done, code_of(at_once)) == (False, False, 0)
    high_watermark.moved(partition, 2, 0)  # type: ignore[attr-defined]
    assert first.done is again.done is not waits_for_flush
    high_watermark.moved(partition, 2, 2)  # type: ignore[attr-defined]
    assert (code_of(first), code_of(again)) == (0, 0)


@pytest.mark.parametrize(
    ("lacks", "code"), [(False, ErrorCode.REQUEST_TIMED_OUT), (True, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]
)
def test_replicas_that_do_not_come_are_told_when_the_request_allows_no_longer(
    broker: Harness, partition: Partition, lacks: bool, code: int
) -> None:
    pending = produce(broker, timeout_ms=500)
    broker.settle()
    partition.lacks_replicas = lacks
    broker.settle(after_ms=499)
    assert not pending.done
    broker.settle(after_ms=1)
    assert code_of(pending) == code
    assert partition.end_offset == 1


def test_too_few_replicas_in_sync_refuse_acks_all_before_anything_is_written_and_nobody_else(
    broker: Harness, partition: Partition
) -> None:
    partition.lacks_replicas = True
    refused, taken = produce(broker), produce(broker, acks=1)
    broker.turn()
    assert (code_of(refused), code_of(taken)) == (ErrorCode.NOT_ENOUGH_REPLICAS, 0)
    assert partition.end_offset == 1


# -- what consumers get ----------------------------------------------------------------------------------------------------------


def test_consumers_see_what_every_replica_has_flushed(broker: Harness, partition: Partition) -> None:
    for _ in range(2):
        assert answered(broker, acks=1) == 0
    waiting = fetch(broker, wait_ms=10_000)
    broker.settle()
    assert not waiting.done
    broker.engine.context.high_watermark.moved(partition, 2, 1)  # type: ignore[attr-defined]
    row = broker.fetched(waiting)
    assert (row.error_code, row.high_watermark) == (0, 1)
    assert len(row.records) == partition.log.segments.size_bytes // 2


def test_the_latest_offset_waits_for_what_was_replicated_when_it_was_asked_for(broker: Harness, partition: Partition) -> None:
    for _ in range(3):
        assert answered(broker, acks=1) == 0
    moved = broker.engine.context.high_watermark.moved  # type: ignore[attr-defined]
    moved(partition, 2, 0)
    asked = latest(broker)
    moved(partition, 3, 1)
    assert not asked.done
    moved(partition, 3, 3)
    broker.settle()
    assert latest_of(broker, asked) == (0, 2)


def test_a_question_for_the_latest_offset_is_answered_once_when_the_lead_is_lost(broker: Harness, partition: Partition) -> None:
    assert answered(broker, acks=1) == 0
    lose(broker, partition)
    partition = lead(broker, 9)
    asked = latest(broker)
    lose(broker, partition)
    assert latest_of(broker, asked) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    broker.turn(after_ms=5_000)
    assert broker.engine.health.defects == 0
    assert len(broker.engine.context.deadlines) == 0


@pytest.mark.parametrize(("version", "code"), [(7, ErrorCode.OFFSET_NOT_AVAILABLE), (4, ErrorCode.LEADER_NOT_AVAILABLE)])
def test_a_new_leader_tells_no_older_offset_than_the_one_before_it(
    broker: Harness, partition: Partition, version: int, code: int
) -> None:
    """Its log ends at 2, and it does not know how much of that was visible."""
    for _ in range(2):
        assert answered(broker, acks=1) == 0
    lose(broker, partition)
    lead(broker, 9)
    asked = latest(broker, version=version)
    broker.turn(after_ms=4_999)
    assert not asked.done
    broker.turn(after_ms=1)
    assert latest_of(broker, asked, version=version) == (code, -1)
    broker.engine.context.high_watermark.moved(partition, 2, 2)  # type: ignore[attr-defined]
    asked = latest(broker, version=version)
    broker.settle()
    assert latest_of(broker, asked, version=version) == (0, 2)


def test_offsets_may_be_committed_for_partitions_that_others_lead(broker: Harness) -> None:
    partitions = broker.engine.partitions
    partitions.check_exists("clicks", 0)
    assert partitions.has("clicks", 0)
    assert not partitions.has("clicks", 1)
    assert not partitions.has("absent", 0)
