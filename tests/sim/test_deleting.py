"""Deleting records in a cluster, in the simulation: every replica's log starts where its leader's does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from logbus_broker.api.handler import Pending
from logbus_broker.log.log_retention import LogRetention
from logbus_broker.log.partition import Partition
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.codec import request_class
from logbus_broker.protocol.framing import Request

from tests.sim.cluster import ClusterStage, quiet_stage
from tests.sim.stage import TOPIC
from tests.sim.world import MS, SECOND


@pytest.fixture
def stage() -> ClusterStage:
    """Three brokers, a topic with records in several segments, and no further writes."""
    stage = quiet_stage(segment_bytes=600)
    assert not stage.finish()
    stage.run(stage.world.now + 5 * SECOND)
    return stage


def held(stage: ClusterStage) -> list[Partition]:
    return [partition for node in stage.nodes if (partition := node.held(TOPIC, 0)) is not None]


def test_what_retention_deletes_at_the_leader_goes_everywhere_though_nobody_writes(stage: ClusterStage) -> None:
    _, _, engine, _, partition = stage.leader()
    assert len(partition.log.segments) > 2
    partition.log.config = replace(partition.log.config, retention_bytes=1)
    retention = LogRetention(engine.partitions, lambda paths: None, stage.nodes[0].clock, engine.config, engine.health)
    retention.work(0)
    assert partition.log_start_offset > 0
    assert stage.until(lambda: {one.log_start_offset for one in held(stage)} == {partition.log_start_offset}, SECOND), [
        one.log_start_offset for one in held(stage)
    ]


def test_deleted_records_are_gone_at_every_replica_when_the_client_is_told(stage: ClusterStage) -> None:
    _, leader, engine, _, partition = stage.leader()
    row = request_class(ApiKey.DELETE_RECORDS).DeleteRecordsTopic
    part = row.DeleteRecordsPartition(partition_index=0, offset=3)
    message = request_class(ApiKey.DELETE_RECORDS)(topics=[row(name=TOPIC, partitions=[part])], timeout_ms=10_000)
    body = memoryview(bytes(message.encode(version=2)))
    began = stage.world.now
    answer = engine.dispatch(Request(int(ApiKey.DELETE_RECORDS), 2, 1, "test", body))
    assert isinstance(answer, Pending)
    leader.wake()
    assert stage.until(lambda: answer.done, 10 * SECOND)
    assert [one.log_start_offset for one in held(stage)] == [3, 3, 3]
    assert stage.world.now - began < 200 * MS, "followers are told at once, and say so at once"
    assert partition.visible_offset > 3
