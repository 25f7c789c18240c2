"""Thousands of commits in one request: written in batches over several turns, answered together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.groups.offset_store import OFFSETS_TOPIC
from broker.handlers.commits import _CHANGES_PER_TURN
from broker.handlers.reply import Pending
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import request_class, response_class
from tests.support.engine import Harness
from tests.support.logs import headers_from

COUNT = _CHANGES_PER_TURN * 2 + 100


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    harness.create("wide", COUNT)
    yield harness
    harness.close()


def begin_commit(broker: Harness, group: str = "g") -> Pending:
    kind = request_class(ApiKey.OFFSET_COMMIT)
    topic = kind.OffsetCommitRequestTopic
    parts = [
        topic.OffsetCommitRequestPartition(partition_index=index, committed_offset=index, committed_metadata="")
        for index in range(COUNT + 1)  # the last one is not a partition
    ]
    message = kind(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[topic(name="wide", partitions=parts)],
    )
    pending = broker.dispatch(ApiKey.OFFSET_COMMIT, 8, bytes(message.encode(version=8)))
    assert isinstance(pending, Pending)
    return pending


def codes(broker: Harness, pending: Pending) -> list[int]:
    answer: Any = response_class(ApiKey.OFFSET_COMMIT).decode(broker.bytes_of(pending), version=8)
    return [row.error_code for row in answer.topics[0].partitions]


def test_they_are_written_some_hundreds_at_a_time(broker: Harness) -> None:
    pending = begin_commit(broker)
    assert codes(broker, pending) == [0] * COUNT + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    headers = list(headers_from(broker.engine.partitions.get(OFFSETS_TOPIC, 0).log, 0))
    assert [header.record_count for header in headers] == [_CHANGES_PER_TURN, _CHANGES_PER_TURN, 100]
    offsets = broker.engine.context.offsets
    assert {committed.offset for committed in offsets.of_group("g").values()} == set(range(COUNT))


def test_a_disk_that_refuses_is_told_for_all_of_them(broker: Harness) -> None:
    assert codes(broker, begin_commit(broker))[0] == 0
    broker.engine.partitions.get(OFFSETS_TOPIC, 0).log.go_offline("its disk failed")
    refused = codes(broker, begin_commit(broker))
    assert refused == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * COUNT + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_deleted_topic_takes_thousands_of_offsets_with_it(broker: Harness) -> None:
    for group in ("g", "h"):
        assert codes(broker, begin_commit(broker, group))[0] == 0
    assert broker.delete("wide").error_code == 0
    broker.settle()
    assert broker.engine.context.offsets.offset_count == 0
