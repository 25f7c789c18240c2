"""Requests for thousands of items: answered like small ones, with turns for other clients in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from logbus_broker.api.handler import Pending
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.codec import request_class

from tests.support.engine import Harness, batch

PARTITIONS = 40


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    """Every step of a task takes a millisecond, so forty partitions are too many for one slice."""
    harness = Harness(tmp_path)
    harness.create("wide", PARTITIONS)
    for index in range(PARTITIONS):
        harness.produce(batch(b"a", b"b"), "wide", index)
    harness.flush()
    harness.clock.tick_ms = 1
    return harness


def requests() -> dict[str, tuple[ApiKey, int, dict[str, Any]]]:
    list_offsets = request_class(ApiKey.LIST_OFFSETS).ListOffsetsTopic
    epochs = request_class(ApiKey.OFFSET_FOR_LEADER_EPOCH).OffsetForLeaderTopic
    fetch = request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestTopic
    indexes = range(PARTITIONS)
    ends = [list_offsets.ListOffsetsPartition(partition_index=n, current_leader_epoch=-1, timestamp=-1) for n in indexes]
    of_epochs = [epochs.OffsetForLeaderPartition(partition=n, current_leader_epoch=-1, leader_epoch=0) for n in indexes]
    fetched = {"group_id": "g", "topics": [fetch(name="wide", partition_indexes=list(indexes))], "require_stable": False}
    return {
        "list offsets": (
            ApiKey.LIST_OFFSETS,
            7,
            {"replica_id": -1, "isolation_level": 0, "topics": [list_offsets(name="wide", partitions=ends)]},
        ),
        "leader epochs": (
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            4,
            {"replica_id": -1, "topics": [epochs(topic="wide", partitions=of_epochs)]},
        ),
        "fetch offsets": (ApiKey.OFFSET_FETCH, 7, fetched),
        "log directories": (ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}),
    }


@pytest.mark.parametrize("name", requests())
def test_others_have_their_turn_and_the_answer_is_the_same(broker: Harness, name: str) -> None:
    api_key, version, values = requests()[name]
    pending = broker.begin(api_key, version, **values)
    assert isinstance(pending, Pending)
    assert pending.stops_reading, "what the client sends behind it waits"
    turns = 0
    while not pending.done:
        turns += 1
        assert broker.engine.next_deadline() <= broker.clock.monotonic(), "the loop goes on at once"
        broker.thread_pool.run()
        broker.turn()
    assert turns > 5
    answer = broker.read(pending, api_key, version)
    rows = answer.results if api_key is ApiKey.DESCRIBE_LOG_DIRS else answer.topics
    found = [topic for row in rows for topic in row.topics] if api_key is ApiKey.DESCRIBE_LOG_DIRS else rows
    (wide,) = [topic for topic in found if getattr(topic, "name", None) == "wide" or getattr(topic, "topic", None) == "wide"]
    assert len(wide.partitions) == PARTITIONS
    if api_key is ApiKey.LIST_OFFSETS:
        assert {row.offset for row in wide.partitions} == {2}


def test_metadata_of_a_topic_that_changes_meanwhile_is_not_kept(broker: Harness) -> None:
    for number in range(20):
        broker.create(f"t-{number}")
    pending = broker.begin(ApiKey.METADATA, 8, topics=None, allow_auto_topic_creation=False)
    assert isinstance(pending, Pending)
    broker.engine.partitions.on_change()
    broker.settle()
    assert pending.done
    assert len(broker.engine.context.metadata_cache) == 0
    broker.ask(ApiKey.METADATA, 8, topics=None, allow_auto_topic_creation=False)
    assert len(broker.engine.context.metadata_cache) == 1


def test_many_groups_of_which_nothing_is_committed_are_many_rows_too(broker: Harness) -> None:
    asked = request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestGroup
    groups = [asked(group_id=f"g-{number}", topics=None) for number in range(600)]
    pending = broker.begin(ApiKey.OFFSET_FETCH, 8, groups=groups, require_stable=False)
    assert isinstance(pending, Pending)
    assert broker.turns_until_helped() > 100
    assert not pending.done, "a thread encodes the answer"
    answer = broker.read(pending, ApiKey.OFFSET_FETCH, 8)
    assert [group.group_id for group in answer.groups] == [group.group_id for group in groups]
