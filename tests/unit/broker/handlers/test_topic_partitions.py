"""A topic that grows, partitions described in pages, and an empty list of reassignments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.protocol.api import ApiKey
from broker.protocol.control import request_class
from tests.support.admin import grow
from tests.support.engine import Harness


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    harness.create("clicks", 2)
    yield harness
    harness.close()


def describe(broker: Harness, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    request = request_class(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    return broker.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[request.TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else request.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


def pages(broker: Harness, *names: str, limit: int) -> list[list[tuple[str, int]]]:
    """All pages, following the cursor to the end."""
    found, cursor = [], None
    while True:
        answer = describe(broker, *names, limit=limit, cursor=cursor)
        found.append([(topic.name, part.partition_index) for topic in answer.topics for part in topic.partitions])
        if answer.next_cursor is None:
            return found
        cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)


def test_added_partitions_are_there_at_once_and_after_a_restart(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.create("clicks", 2, retention_ms="77")
    assert grow(broker, "clicks", 5) == (0, None)
    row = request_class(ApiKey.METADATA).MetadataRequestTopic(name="clicks")
    (topic,) = broker.ask(ApiKey.METADATA, 12, topics=[row], allow_auto_topic_creation=False).topics
    assert [part.partition_index for part in topic.partitions] == [0, 1, 2, 3, 4]
    assert broker.engine.partitions.get("clicks", 4).log.config.retention_ms == 77
    broker.close()
    again = Harness(tmp_path)
    assert len(again.engine.partitions) == 5
    again.close()


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("absent", 3, None, 3),
        ("clicks", 2, None, 37),
        ("clicks", 1, None, 37),
        ("clicks", 0, None, 37),
        ("clicks", 20_000, None, 37),
        ("clicks", 4, [[0]], 39),
        ("clicks", 3, [[0, 1]], 39),
    ],
)
def test_growth_that_cannot_be_is_refused(
    broker: Harness, name: str, count: int, assignments: list[list[int]] | None, code: int
) -> None:
    refused, text = grow(broker, name, count, assignments=assignments)
    assert refused == code
    assert text
    assert len(broker.engine.partitions) == 2


def test_assignments_to_this_broker_are_taken_and_validate_only_adds_nothing(broker: Harness) -> None:
    assert grow(broker, "clicks", 3, validate_only=True) == (0, None)
    assert len(broker.engine.partitions) == 2
    assert grow(broker, "clicks", 4, assignments=[[0], [0]]) == (0, None)
    assert len(broker.engine.partitions) == 4


def test_partitions_are_described_in_pages_in_the_order_of_names(broker: Harness) -> None:
    broker.create("views", 3)
    broker.create("alerts", 1)
    in_order = [("alerts", 0), ("clicks", 0), ("clicks", 1), ("views", 0), ("views", 1), ("views", 2)]
    for limit in range(1, 8):
        assert [row for page in pages(broker, limit=limit) for row in page] == in_order
        assert all(len(page) <= limit for page in pages(broker, limit=limit))
    assert pages(broker, "views", "clicks", limit=4) == [in_order[1:5], in_order[5:]]


def test_a_described_topic_has_its_id_and_an_unknown_one_its_code(broker: Harness) -> None:
    answer = describe(broker, "clicks", "absent", "a/b")
    rows = {topic.name: topic for topic in answer.topics}
    assert rows["clicks"].topic_id == broker.engine.partitions.registry.get("clicks").topic_id
    assert [part.leader_id for part in rows["clicks"].partitions] == [0, 0]
    assert (rows["absent"].error_code, rows["a/b"].error_code) == (3, 17)
