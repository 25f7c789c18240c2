"""DeleteRecords with other replicas: answered once every in-sync replica has deleted the records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from logbus_broker.api.handler import Pending
from logbus_broker.log.high_watermark import ReplicatedHighWatermark
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class
from logbus_broker.protocol.replica_fetch import ReplicaPartition

from tests.support.engine import Harness
from tests.support.leading import waiting, wants
from tests.support.replicas import append
from tests.unit.broker.replication.test_leader import REPLICAS, STATE, Scene

TIMEOUT_MS = 1_000


class Deleting:
    """A broker that leads one partition of three replicas, with four records that all of them have."""

    def __init__(self, directory: Path) -> None:
        self.scene = Scene(directory / "clicks-0", STATE)
        leader = self.scene.leader
        self.broker = Harness(directory / "broker", watermarks=leader)
        self.broker.create("clicks")
        context = self.broker.engine.context
        assert isinstance(context.high_watermark, ReplicatedHighWatermark)
        context.leader = leader
        leader.on_moved = context.high_watermark.moved
        partition = self.broker.engine.partitions.held("clicks", 0)
        assert partition is not None
        self.partition = partition
        leader.lead(partition, STATE, REPLICAS, 2)
        self.broker.engine.partitions.lead(partition, 1)
        append(self.broker, partition, 4)
        self.broker.flush()
        self.followers = [waiting(self.scene, self.has(0), broker_id=member) for member in (1, 2)]
        self.turn()

    def has(self, log_start: int, flushed: int = 4) -> ReplicaPartition:
        return wants(0, 4, flushed=flushed, epoch=1, last_epoch=1, topic_id=self.partition.topic_id.bytes, log_start=log_start)

    def turn(self) -> None:
        self.broker.settle()
        self.scene.leader.turn_ends()

    def delete(self, offset: int) -> Pending:
        row = request_class(ApiKey.DELETE_RECORDS).DeleteRecordsTopic
        part = row.DeleteRecordsPartition(partition_index=0, offset=offset)
        topics = [row(name="clicks", partitions=[part])]
        answer = self.broker.begin(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout_ms=TIMEOUT_MS)
        assert isinstance(answer, Pending)
        self.turn()
        return answer

    def result(self, answer: Pending) -> tuple[int, int]:
        """Low watermark and error code."""
        ((row,),) = [topic.partitions for topic in self.broker.read(answer, ApiKey.DELETE_RECORDS, 2).topics]
        return row.low_watermark, row.error_code


@pytest.fixture
def deleting(tmp_path: Path) -> Iterator[Deleting]:
    deleting = Deleting(tmp_path)
    yield deleting
    deleting.broker.close()


def test_the_answer_waits_until_every_replica_in_sync_has_deleted(deleting: Deleting) -> None:
    answer = deleting.delete(3)
    assert deleting.partition.log_start_offset == 3
    assert [follower.last().partitions[0].log_start_offset for follower in deleting.followers] == [3, 3], "told at once"
    first, second = deleting.followers
    first.send(deleting.has(3))
    deleting.turn()
    assert not answer.done
    second.send(deleting.has(2))
    deleting.turn()
    assert not answer.done
    second.send(deleting.has(3))
    assert deleting.result(answer) == (3, ErrorCode.NONE)


def test_what_is_not_deleted_everywhere_in_time_is_refused(deleting: Deleting) -> None:
    answer = deleting.delete(3)
    deleting.followers[0].send(deleting.has(3))
    deleting.broker.clock.advance_ms(TIMEOUT_MS)
    assert deleting.result(answer) == (-1, ErrorCode.REQUEST_TIMED_OUT)
    deleting.followers[1].send(deleting.has(3))
    assert deleting.result(deleting.delete(3)) == (3, ErrorCode.NONE), "the client's next one finds it done"


def test_what_does_not_become_visible_in_time_is_refused_and_stays(deleting: Deleting) -> None:
    append(deleting.broker, deleting.partition, 1)
    answer = deleting.delete(5)
    deleting.broker.clock.advance_ms(TIMEOUT_MS)
    assert deleting.result(answer) == (-1, ErrorCode.REQUEST_TIMED_OUT)
    assert deleting.partition.log_start_offset == 0


def test_nobody_waits_for_a_replica_that_leaves_the_set(deleting: Deleting) -> None:
    answer = deleting.delete(3)
    deleting.followers[0].send(deleting.has(3))
    deleting.scene.overwrite(replace(STATE, isr=(0, 1)))
    deleting.scene.leader.learn(deleting.partition, deleting.scene.stored(), REPLICAS, 2)
    assert deleting.result(answer) == (3, ErrorCode.NONE)


def test_who_loses_the_lead_says_so(deleting: Deleting) -> None:
    answer = deleting.delete(3)
    deleting.broker.engine.partitions.resign(deleting.partition)
    deleting.scene.leader.end(deleting.partition)
    assert deleting.result(answer) == (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_sole_member_waits_for_nobody(deleting: Deleting) -> None:
    alone = replace(STATE, isr=(0,), version=1)
    deleting.scene.leader.learn(deleting.partition, alone, REPLICAS, 1)
    assert deleting.result(deleting.delete(2)) == (2, ErrorCode.NONE)
