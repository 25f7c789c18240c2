"""ApiVersions and Metadata. A small request must not cause a lot of work or memory: what is named repeatedly is answered once, and caches are bounded.

DescribeLogDirs: the sizes of all partitions, or of those requested.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.api.metadata import BYTES_MAX, ENTRIES_MAX, MetadataCache
from logbus_broker.protocol.api import APIS, ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class

from tests.support.engine import Harness, batch


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def metadata(broker: Harness, names: list[str]) -> dict[str, int]:
    row = request_class(ApiKey.METADATA).MetadataRequestTopic
    topics = [row(name=name) for name in names]
    answer = broker.ask(ApiKey.METADATA, 9, topics=topics, allow_auto_topic_creation=True)
    assert len({topic.name for topic in answer.topics}) == len(answer.topics)
    return {topic.name: topic.error_code for topic in answer.topics}


def test_a_topic_named_a_thousand_times_is_answered_once(broker: Harness) -> None:
    broker.create("wide", 100)
    assert metadata(broker, ["wide"] * 1000 + ["other"]) == {"wide": 0, "other": 0}


def test_a_request_makes_a_few_topics_and_the_client_asks_again_for_the_others(broker: Harness) -> None:
    names = [f"topic-{number}" for number in range(35)]
    found = metadata(broker, names)
    assert sorted(found.values(), reverse=True) == [ErrorCode.LEADER_NOT_AVAILABLE] * 25 + [0] * 10
    for _ in range(3):
        found = metadata(broker, names)
    assert set(found.values()) == {0}


def test_the_cache_of_answers_is_bounded_in_entries_and_bytes() -> None:
    cache = MetadataCache()
    for number in range(10 * ENTRIES_MAX):
        cache.put((9, b"%d" % number), b"answer")
        assert len(cache) <= ENTRIES_MAX
    cache.put((9, b"huge"), bytes(BYTES_MAX + 1))
    assert cache.get((9, b"huge")) is None
    for number in range(100):
        cache.put((9, b"%d" % number), bytes(1 << 20))
        assert cache.size_bytes <= BYTES_MAX
    assert cache.get((9, b"99")) is not None


@pytest.fixture
def two_partitions(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("clicks", 2)
    return harness


def sizes(result: Any) -> dict[tuple[str, int], int]:
    return {(topic.name, part.partition_index): part.partition_size for topic in result.topics for part in topic.partitions}


def test_every_partition_has_the_size_of_its_log(two_partitions: Harness, tmp_path: Path) -> None:
    raw = batch(b"x" * 500)
    two_partitions.produce(raw, index=1)
    two_partitions.turn()
    (result,) = two_partitions.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None).results
    assert (result.error_code, result.log_dir) == (0, str(tmp_path))
    assert sizes(result) == {("clicks", 0): 0, ("clicks", 1): len(raw)}
    assert result.total_bytes >= result.usable_bytes > 0


def test_only_the_partitions_asked_for_are_described(two_partitions: Harness) -> None:
    request = request_class(ApiKey.DESCRIBE_LOG_DIRS)
    asked = [request.DescribableLogDirTopic(topic=name, partitions=[1, 7]) for name in ("clicks", "absent")]
    (result,) = two_partitions.ask(ApiKey.DESCRIBE_LOG_DIRS, 1, topics=asked).results
    assert sizes(result) == {("clicks", 1): 0}


def rows(broker: Harness, *names: str, create: bool = True) -> list[Any]:
    row = request_class(ApiKey.METADATA).MetadataRequestTopic
    asked = [row(name=name, topic_id=uuid.UUID(int=0)) for name in names]
    return broker.ask(ApiKey.METADATA, 12, topics=asked, allow_auto_topic_creation=create).topics


def test_every_offered_api_says_so(broker: Harness) -> None:
    answer = broker.ask(ApiKey.API_VERSIONS, 3, client_software_name="test", client_software_version="1")
    assert {(row.api_key, row.min_version, row.max_version) for row in answer.api_keys} == {
        (k, a.first, a.last) for k, a in APIS.items()
    }


def test_metadata_creates_a_topic_only_where_both_sides_allow_it(broker: Harness) -> None:
    (refused,) = rows(broker, "clicks", create=False)
    assert refused.error_code == 3
    (made,) = rows(broker, "clicks")
    assert (made.error_code, len(made.partitions)) == (0, 1)


def test_metadata_is_kept_and_forgotten_with_a_change(broker: Harness) -> None:
    broker.create("clicks")
    first = rows(broker, "clicks")
    assert rows(broker, "clicks") == first
    assert broker.delete("clicks").error_code == 0
    (again,) = rows(broker, "clicks")
    assert again.topic_id != first[0].topic_id
