"""Topics are created, grown and deleted outside the loop: many with one write, each all or nothing, failures leave nothing.

A topic that grows, partitions described in pages, and an empty list of reassignments.
"""

from __future__ import annotations

import errno
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.filesystem import FileSystem, OpenFile, OpenFiles
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class

from tests.support.admin import delete_records, grow
from tests.support.engine import Harness, batch

CREATE = request_class(ApiKey.CREATE_TOPICS)


class CountingDisk(FileSystem):
    """Counts flushes, and fails calls whose path contains `refused`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.refused = ""

    def sync_data(self, file: OpenFile) -> None:
        self.counts["sync_data"] += 1
        super().sync_data(file)

    def sync_directory(self, path: Path) -> None:
        self.counts["sync_directory"] += 1
        self._check(str(path) + "/sync")
        super().sync_directory(path)

    def make_directory(self, path: Path) -> None:
        self._check(str(path))
        super().make_directory(path)

    def replace_bytes(self, path: Path, data: Any) -> None:
        self.counts[path.name] += 1
        self._check(str(path))
        super().replace_bytes(path, data)

    def rename(self, path: Path, target: Path) -> None:
        self._check(f"rename {path}")
        super().rename(path, target)

    def _check(self, what: str) -> None:
        if self.refused and self.refused in what:
            raise OSError(errno.ENOSPC, "No space left on device", what)


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest.fixture
def broker(tmp_path: Path, disk: CountingDisk) -> Iterator[Harness]:
    harness = Harness(tmp_path, filesystem=disk)
    yield harness
    disk.refused = ""
    harness.close()


def wanted(name: str, partitions: int = 1) -> Any:
    return CREATE.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])


def create_all(broker: Harness, *topics: Any, validate_only: bool = False) -> dict[str, int]:
    answer = broker.ask(ApiKey.CREATE_TOPICS, 7, topics=list(topics), timeout_ms=1000, validate_only=validate_only)
    return {row.name: row.error_code for row in answer.topics}


def names(broker: Harness) -> list[str]:
    return broker.engine.partitions.registry.names()


def test_a_hundred_topics_take_one_write_and_three_flushes(broker: Harness, disk: CountingDisk) -> None:
    disk.counts.clear()
    assert set(create_all(broker, *(wanted(f"t-{number}", 3) for number in range(100))).values()) == {0}
    assert disk.counts["topics.json"] == 1
    assert disk.counts["sync_data"] + disk.counts["sync_directory"] <= 3, "the file, its name, the directories' names"
    assert len(broker.engine.partitions) == 300


def test_nobody_is_shown_a_topic_before_it_is_on_the_disk(broker: Harness) -> None:
    pending = broker.begin(ApiKey.CREATE_TOPICS, 7, topics=[wanted("t")], timeout_ms=1000, validate_only=False)
    for _ in range(3):
        broker.turn()
    assert not pending.done
    assert names(broker) == []
    broker.settle()
    assert pending.done
    assert names(broker) == ["t"]


def test_topics_that_cannot_be_made_leave_nothing_and_the_others_of_the_request_are_there(
    broker: Harness, disk: CountingDisk, tmp_path: Path
) -> None:
    disk.refused = "second-1"
    codes = create_all(broker, wanted("first", 2), wanted("second", 3), wanted("third", 2))
    assert codes == {"first": 0, "second": ErrorCode.KAFKA_STORAGE_ERROR, "third": 0}
    assert names(broker) == ["first", "third"]
    assert len(broker.engine.partitions) == 4
    disk.refused = ""
    assert not list(tmp_path.glob("second*")), "not even a directory"
    again = Harness(_copied(tmp_path, broker))
    assert names(again) == ["first", "third"]
    again.close()
    assert create_all(broker, wanted("second", 3)) == {"second": 0}, "its name is free"


def test_a_registry_that_cannot_be_written_makes_nothing(broker: Harness, disk: CountingDisk, tmp_path: Path) -> None:
    disk.refused = "topics.json"
    assert set(create_all(broker, wanted("a"), wanted("b")).values()) == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert names(broker) == []
    assert not list(tmp_path.glob("a-*"))
    disk.refused = ""
    assert create_all(broker, wanted("a")) == {"a": 0}


def test_a_directory_that_cannot_be_flushed_makes_nothing(broker: Harness, disk: CountingDisk, tmp_path: Path) -> None:
    create_all(broker, wanted("kept"))
    disk.refused = f"{tmp_path}/sync"
    assert create_all(broker, wanted("a")) == {"a": ErrorCode.KAFKA_STORAGE_ERROR}
    disk.refused = ""
    assert names(broker) == ["kept"]


def test_a_topic_is_checked_against_those_before_it_in_the_same_request(broker: Harness) -> None:
    codes = create_all(broker, wanted("a.b"), wanted("a_b"), wanted("twice"), wanted("twice"), wanted("c", 0))
    assert codes == {
        "a.b": 0,
        "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "twice": ErrorCode.INVALID_REQUEST,
        "c": ErrorCode.INVALID_PARTITIONS,
    }


@pytest.mark.parametrize(
    ("partitions_max", "descriptors_max", "refused"),
    [(5, 1000, ErrorCode.INVALID_PARTITIONS), (1000, 10, ErrorCode.KAFKA_STORAGE_ERROR)],
)
def test_the_limits_of_partitions_count_those_of_the_same_request(
    tmp_path: Path, partitions_max: int, descriptors_max: int, refused: ErrorCode
) -> None:
    broker = Harness(tmp_path, partitions_max=partitions_max)
    broker.engine._filesystem.open_files.partitions_max = OpenFiles(descriptors_max).partitions_max
    codes = create_all(broker, wanted("a", 3), wanted("b", 3), wanted("c", 2))
    assert codes == {"a": 0, "b": refused, "c": 0}


def test_what_is_only_validated_is_not_made(broker: Harness, disk: CountingDisk) -> None:
    disk.counts.clear()
    assert create_all(broker, wanted("a"), validate_only=True) == {"a": 0}
    assert (names(broker), disk.counts["topics.json"]) == ([], 0)


def test_topics_grow_together_or_stay_as_they_were(broker: Harness, disk: CountingDisk) -> None:
    create_all(broker, wanted("a"), wanted("b"))
    disk.counts.clear()
    disk.refused = "b-2"
    row = request_class(ApiKey.CREATE_PARTITIONS).CreatePartitionsTopic
    topics = [row(name=name, count=4, assignments=None) for name in ("a", "b")]
    answer = broker.ask(ApiKey.CREATE_PARTITIONS, 3, topics=topics, timeout_ms=1000, validate_only=False)
    assert [one.error_code for one in answer.results] == [0, ErrorCode.KAFKA_STORAGE_ERROR]
    assert disk.counts["topics.json"] == 2, "one for all, one that takes back what failed"
    counts = {topic.name: topic.partition_count for topic in broker.engine.partitions.registry}
    assert (counts, len(broker.engine.partitions)) == ({"a": 4, "b": 1}, 5)
    disk.refused = ""
    assert grow(broker, "b", 4) == (0, None)
    assert broker.engine.partitions.get("b", 2).end_offset == 0


def delete_all(broker: Harness, *topics: str) -> dict[str, int]:
    row = request_class(ApiKey.DELETE_TOPICS).DeleteTopicState
    answer = broker.ask(ApiKey.DELETE_TOPICS, 6, topics=[row(name=name, topic_id=None) for name in topics], timeout_ms=1000)
    return {one.name: one.error_code for one in answer.responses}


def test_topics_are_deleted_with_one_write(broker: Harness, disk: CountingDisk, tmp_path: Path) -> None:
    create_all(broker, wanted("a", 3), wanted("b", 3), wanted("c"))
    disk.counts.clear()
    assert delete_all(broker, "a", "b", "absent") == {"a": 0, "b": 0, "absent": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert (disk.counts["topics.json"], names(broker)) == (1, ["c"])
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"c-0"}


def test_a_deletion_that_the_disk_refuses_leaves_the_topics_as_they_were(broker: Harness, disk: CountingDisk) -> None:
    create_all(broker, wanted("a"))
    disk.refused = "topics.json"
    assert delete_all(broker, "a") == {"a": ErrorCode.KAFKA_STORAGE_ERROR}
    assert names(broker) == ["a"]
    disk.refused = ""
    assert delete_all(broker, "a") == {"a": 0}


def test_what_a_crash_left_of_a_deleted_topic_goes_with_the_next_start_and_is_nobodys(
    broker: Harness, disk: CountingDisk, tmp_path: Path
) -> None:
    """Here, a directory that cannot be renamed. The topic is gone; a new one with its name does not inherit its records."""
    create_all(broker, wanted("a"), wanted("b"))
    for name in ("a", "b"):
        broker.produce(batch(b"old"), name)
    broker.flush()
    disk.refused = "rename"
    assert delete_all(broker, "a", "b") == {"a": 0, "b": 0}
    assert names(broker) == []
    assert (tmp_path / "a-0").is_dir()
    disk.refused = ""
    assert create_all(broker, wanted("a")) == {"a": 0}
    assert broker.engine.partitions.get("a", 0).end_offset == 0
    again = Harness(_copied(tmp_path, broker))
    assert names(again) == ["a"]
    assert not list(again.engine.config.log_dirs.glob("b-0*")), "removed, and not set aside: it was deleted on purpose"


def test_settings_of_several_topics_are_stored_with_one_write(broker: Harness, disk: CountingDisk) -> None:
    create_all(broker, wanted("a"), wanted("b"))
    disk.counts.clear()
    resource = request_class(ApiKey.INCREMENTAL_ALTER_CONFIGS).AlterConfigsResource
    change = resource.AlterableConfig(name="retention.ms", config_operation=0, value="1000")
    resources = [resource(resource_type=2, resource_name=name, configs=[change]) for name in ("a", "b")]
    answer = broker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=False)
    assert [row.error_code for row in answer.responses] == [0, 0]
    assert disk.counts["topics.json"] == 1
    assert {broker.engine.partitions.get(name, 0).log.config.retention_ms for name in ("a", "b")} == {1000}


def test_deleting_the_records_of_many_partitions_takes_one_checkpoint(broker: Harness, disk: CountingDisk) -> None:
    create_all(broker, wanted("a", 50))
    for index in range(50):
        broker.produce(batch(b"old", b"older"), "a", index)
    broker.flush()
    disk.counts.clear()
    assert set(delete_records(broker, "a", 2, *range(50))) == {(0, 2)}
    assert disk.counts["log-start-offset-checkpoint"] == 1


def test_a_full_disk_refuses_the_deletion_of_records_and_the_periodic_checkpoint_heals(
    broker: Harness, disk: CountingDisk
) -> None:
    """Found in review: the checkpoint that failed here ended the process."""
    create_all(broker, wanted("a"))
    broker.produce(batch(b"old", b"older"), "a")
    broker.flush()
    disk.refused = "checkpoint"
    assert delete_records(broker, "a", 1, 0) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)]
    broker.settle(after_ms=broker.engine.config.checkpoint_interval_ms)
    assert "writing the checkpoints" in broker.engine.health.troubles
    disk.refused = ""
    broker.settle(after_ms=broker.engine.config.checkpoint_interval_ms)
    assert dict(broker.engine.health.troubles) == {}


def _copied(directory: Path, broker: Harness) -> Path:
    """A copy of the data directory, as a crash would leave it now."""
    import shutil

    broker.settle()
    target = directory.parent / f"{directory.name}-copied"
    shutil.copytree(directory, target)
    return target


@pytest.fixture
def clicks(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("clicks", 2)
    return harness


def describe(clicks: Harness, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    request = request_class(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    return clicks.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[request.TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else request.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


def pages(clicks: Harness, *names: str, limit: int) -> list[list[tuple[str, int]]]:
    """All pages, following the cursor to the end."""
    found, cursor = [], None
    while True:
        answer = describe(clicks, *names, limit=limit, cursor=cursor)
        found.append([(topic.name, part.partition_index) for topic in answer.topics for part in topic.partitions])
        if answer.next_cursor is None:
            return found
        cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)


def test_added_partitions_are_there_at_once_and_after_a_restart(tmp_path: Path) -> None:
    clicks = Harness(tmp_path)
    clicks.create("clicks", 2, retention_ms="77")
    assert grow(clicks, "clicks", 5) == (0, None)
    row = request_class(ApiKey.METADATA).MetadataRequestTopic(name="clicks")
    (topic,) = clicks.ask(ApiKey.METADATA, 12, topics=[row], allow_auto_topic_creation=False).topics
    assert [part.partition_index for part in topic.partitions] == [0, 1, 2, 3, 4]
    assert clicks.engine.partitions.get("clicks", 4).log.config.retention_ms == 77
    clicks.close()
    again = Harness(tmp_path)
    assert len(again.engine.partitions) == 5


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
    clicks: Harness, name: str, count: int, assignments: list[list[int]] | None, code: int
) -> None:
    refused, text = grow(clicks, name, count, assignments=assignments)
    assert refused == code
    assert text
    assert len(clicks.engine.partitions) == 2


def test_assignments_to_this_broker_are_taken_and_validate_only_adds_nothing(clicks: Harness) -> None:
    assert grow(clicks, "clicks", 3, validate_only=True) == (0, None)
    assert len(clicks.engine.partitions) == 2
    assert grow(clicks, "clicks", 4, assignments=[[0], [0]]) == (0, None)
    assert len(clicks.engine.partitions) == 4


def test_partitions_are_described_in_pages_in_the_order_of_names(clicks: Harness) -> None:
    clicks.create("views", 3)
    clicks.create("alerts", 1)
    in_order = [("alerts", 0), ("clicks", 0), ("clicks", 1), ("views", 0), ("views", 1), ("views", 2)]
    for limit in range(1, 8):
        assert [row for page in pages(clicks, limit=limit) for row in page] == in_order
        assert all(len(page) <= limit for page in pages(clicks, limit=limit))
    assert pages(clicks, "views", "clicks", limit=4) == [in_order[1:5], in_order[5:]]


def test_a_described_topic_has_its_id_and_an_unknown_one_its_code(clicks: Harness) -> None:
    answer = describe(clicks, "clicks", "absent", "a/b")
    rows = {topic.name: topic for topic in answer.topics}
    assert rows["clicks"].topic_id == clicks.engine.partitions.registry.get("clicks").topic_id
    assert [part.leader_id for part in rows["clicks"].partitions] == [0, 0]
    assert (rows["absent"].error_code, rows["a/b"].error_code) == (3, 17)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"name": "a/b"}, 17),
        ({"num_partitions": 0}, 37),
        ({"num_partitions": 20_000}, 37),
        ({"replication_factor": 3}, 38),
        ({"configs": {"retention.seconds": "1"}}, 40),
        ({"configs": {"cleanup.policy": "compact,shred"}}, 40),
        ({"name": "exists"}, 36),
    ],
)
def test_a_topic_that_cannot_be_made_says_why(broker: Harness, changes: dict[str, Any], code: int) -> None:
    broker.create("exists")
    row = request_class(ApiKey.CREATE_TOPICS).CreatableTopic
    configs = [row.CreatableTopicConfig(name=k, value=v) for k, v in changes.pop("configs", {}).items()]
    values = {"name": "clicks", "num_partitions": 1, "replication_factor": 1} | changes
    topic = row(assignments=[], configs=configs, **values)
    (result,) = broker.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout_ms=1000, validate_only=False).topics
    assert result.error_code == code
    assert result.error_message


def test_a_topic_is_deleted_by_name_or_by_id(broker: Harness) -> None:
    broker.create("first")
    second = broker.create("second")
    row = request_class(ApiKey.DELETE_TOPICS).DeleteTopicState
    asked = [
        row(name="first", topic_id=uuid.UUID(int=0)),
        row(name=None, topic_id=second.topic_id),
        row(name="absent", topic_id=uuid.UUID(int=0)),
    ]
    answer = broker.ask(ApiKey.DELETE_TOPICS, 6, topics=asked, timeout_ms=1000)
    assert [r.error_code for r in answer.responses] == [0, 0, 3]
    assert len(broker.engine.partitions) == 0


def test_a_topic_that_is_named_twice_is_not_deleted(broker: Harness) -> None:
    topic_id = broker.create("clicks").topic_id
    row = request_class(ApiKey.DELETE_TOPICS).DeleteTopicState
    asked = [row(name="clicks", topic_id=None), row(name=None, topic_id=topic_id)]
    (answer,) = broker.ask(ApiKey.DELETE_TOPICS, 6, topics=asked, timeout_ms=1000).responses
    assert (answer.name, answer.topic_id, answer.error_code) == ("clicks", topic_id, 42)
    assert len(broker.engine.partitions) == 1


def test_records_are_deleted_up_to_an_offset(broker: Harness) -> None:
    broker.create("clicks")
    broker.produce(batch(b"a", b"b", b"c"))
    broker.turn()  # acknowledged, not flushed: a client may delete what it has just sent
    assert [delete_records(broker, "clicks", offset, 0) for offset in (2, 99, -1)] == [[(0, 2)], [(1, -1)], [(0, 3)]]
    assert broker.engine.partitions.get("clicks", 0).log_start_offset == 3
