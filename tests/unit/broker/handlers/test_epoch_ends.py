from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.protocol.api import ApiKey
from broker.protocol.control import request_class
from tests.support.engine import Harness, batch
from tests.support.wire import produce_body


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    """After a crash: offsets 0 and 1 are of epoch 0, offset 2 of epoch 1."""
    before = Harness(tmp_path)
    before.create("clicks")
    produce(before, b"a", b"b")
    before.crash()
    after = Harness(tmp_path)
    produce(after, b"c")
    return after


def produce(broker: Harness, *values: bytes) -> None:
    broker.dispatch(ApiKey.PRODUCE, 9, produce_body({("clicks", 0): batch(*values)}))
    broker.flush()


def ask(broker: Harness, epoch: int, *, current: int = -1, topic: str = "clicks", version: int = 4) -> Any:
    row = request_class(ApiKey.OFFSET_FOR_LEADER_EPOCH).OffsetForLeaderTopic
    part = row.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    asked = [row(topic=topic, partitions=[part])]
    return broker.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=asked).topics[0].partitions[0]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_client_learns_where_the_epoch_that_it_read_in_ended(broker: Harness, version: int) -> None:
    rows = [ask(broker, epoch, version=version) for epoch in (0, 1, 2)]
    assert [(row.error_code, row.leader_epoch, row.end_offset) for row in rows] == [(0, 0, 2), (0, 1, 3), (0, -1, -1)]


def test_a_client_with_another_epoch_than_ours_is_told_so(broker: Harness) -> None:
    assert ask(broker, 0, current=1).error_code == 0
    assert ask(broker, 0, current=0).error_code == 74
    assert ask(broker, 0, current=2).error_code == 75
    assert ask(broker, 0, topic="absent").error_code == 3


def test_metadata_and_offsets_carry_the_epoch(broker: Harness) -> None:
    row = request_class(ApiKey.METADATA).MetadataRequestTopic
    answer = broker.ask(ApiKey.METADATA, 7, topics=[row(name="clicks")], allow_auto_topic_creation=False)
    assert answer.topics[0].partitions[0].leader_epoch == 1
