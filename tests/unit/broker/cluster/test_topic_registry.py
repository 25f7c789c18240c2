"""The topics of a cluster as one broker sees them in its image."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from logbus_broker.cluster.dynamic_config import BrokerOverrides
from logbus_broker.cluster.local_files import GroupedWrites
from logbus_broker.cluster.metadata_image import (
    Change,
    DeletionRequested,
    MetadataDelta,
    MetadataImage,
    PartitionState,
    Settings,
    StateChange,
    TopicChange,
    TopicDeleted,
    TopicNode,
    TopicSettingsChange,
    apply,
)
from logbus_broker.cluster.producer_ids import local_producer_ids
from logbus_broker.cluster.topic_registry import ImageTopics, Topic, TopicRegistry, check_topic_name
from logbus_broker.errors import (
    InvalidTopic,
    StartupError,
    StorageError,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)

from tests.support.engine import ManualThreadPool


class FilesInMemory:
    def __init__(self) -> None:
        self.files: dict[str, Any] = {}
        self.writes = 0
        self.is_full = False

    def read_json(self, name: str) -> Any | None:
        return self.files.get(name)

    def write_json_atomic(self, name: str, value: Any) -> None:
        self.write_atomic(name, json.dumps(value).encode())

    def write_atomic(self, name: str, data: bytes) -> None:
        if self.is_full:
            raise StorageError("no space left")
        self.writes += 1
        self.files[name] = json.loads(data)


@pytest.fixture
def files() -> FilesInMemory:
    return FilesInMemory()


def add(registry: TopicRegistry, name: str, partition_count: int = 1, **overrides: str) -> Topic:
    topic = registry.new(name, partition_count, overrides)
    registry.plan(topic)
    registry.write_job()()
    registry.publish(topic)
    return topic


def test_topics_survive_a_restart_with_their_ids(files: FilesInMemory) -> None:
    created = add(TopicRegistry(files, uuid.uuid4), "clicks", 3, **{"retention.ms": "-1"})
    assert TopicRegistry(files, uuid.uuid4).get("clicks") == created


def test_a_topic_is_public_once_it_is_on_the_disk_and_its_name_is_taken_before(files: FilesInMemory) -> None:
    registry = TopicRegistry(files, uuid.uuid4)
    topic = registry.new("clicks", 1, {})
    registry.plan(topic)
    job = registry.write_job()
    with pytest.raises(TopicAlreadyExists):
        registry.new("clicks", 1, {})
    assert "clicks" not in registry
    registry.plan(registry.new("later", 1, {}))
    job()
    assert [row["name"] for row in files.files["topics.json"]["topics"]] == ["clicks"], "what was planned when the job was made"
    registry.publish(topic)
    assert registry.get_by_id(topic.topic_id) is registry.get("clicks") is topic


def test_ids_of_deleted_topics_are_remembered_until_their_directories_are_gone(files: FilesInMemory) -> None:
    registry = TopicRegistry(files, uuid.uuid4)
    topic = add(registry, "clicks")
    registry.forget(topic)
    registry.deleted.add(topic.topic_id)
    registry.write_job()()
    again = TopicRegistry(files, uuid.uuid4)
    assert (again.names(), again.deleted) == ([], {topic.topic_id})


def test_a_file_of_a_newer_format_is_refused(files: FilesInMemory) -> None:
    files.files["topics.json"] = {"version": 99, "topics": []}
    with pytest.raises(StartupError, match="format 99"):
        TopicRegistry(files, uuid.uuid4)


ROW = {"name": "clicks", "id": str(uuid.UUID(int=1)), "partitions": 1, "configs": {}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("topics.json", value) for value in ([], {}, 0, {"version": 1}, {"version": 1, "topics": [{"name": "clicks"}]})),
        *(
            ("topics.json", {"version": 1, "topics": rows})
            for rows in (
                [ROW, ROW],
                [ROW | {"id": "short"}],
                [ROW | {"name": "../clicks"}],
                [ROW | {"partitions": "1"}],
                [ROW | {"partitions": 0}],
                [ROW | {"configs": {"retention.ms": 5}}],
            )
        ),
        *(("producer-ids.json", value) for value in ([], {}, {"next": "x"}, {"next": -1})),
        *(("broker-configs.json", value) for value in ([], {"broker": {"log.retention.ms": 5}}, {"broker": 5})),
    ],
)
def test_a_file_that_no_broker_has_written_is_refused_and_not_taken_for_a_new_one(
    files: FilesInMemory, name: str, value: object
) -> None:
    """Otherwise all topics would be set aside, or producer ids be given a second time."""
    files.files[name] = value
    readers: dict[str, Callable[[], object]] = {
        "topics.json": lambda: TopicRegistry(files, uuid.uuid4),
        "producer-ids.json": lambda: local_producer_ids(files, lambda job, outcome: None),
        "broker-configs.json": lambda: BrokerOverrides(files),
    }
    with pytest.raises(StartupError, match=f"{name} is malformed .*: restore it"):
        readers[name]()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../etc/x", "a" * 250, "a b", "ä", "a\n", None])
def test_names_that_could_leave_the_directory_are_refused(name: str | None) -> None:
    with pytest.raises(InvalidTopic):
        check_topic_name(name)


def test_names_that_differ_only_in_dot_and_underscore_collide() -> None:
    registry = TopicRegistry(FilesInMemory(), uuid.uuid4)
    topic = add(registry, "a_b")
    with pytest.raises(InvalidTopic, match="collides"):
        registry.new("a.b", 1, {})
    registry.forget(topic)
    assert registry.new("a.b", 1, {}).name == "a.b"


def test_no_producer_id_is_given_twice_not_even_after_a_crash(files: FilesInMemory) -> None:
    given: list[int] = []
    for _ in range(3):
        jobs = ManualThreadPool()
        ids = local_producer_ids(files, jobs.store)
        for _ in range(1500):
            ids.take(lambda producer_id, error: given.append(producer_id))
            if len(jobs.jobs):
                jobs.close()
    assert len(given) == 4500
    assert len(set(given)) == len(given)


def test_no_producer_id_is_given_before_its_block_is_on_the_disk() -> None:
    files, jobs, given = FilesInMemory(), ManualThreadPool(), list[int]()
    ids = local_producer_ids(files, jobs.store)
    for _ in range(2_500):
        ids.take(lambda producer_id, error: given.append(producer_id))
    while len(jobs.jobs):
        assert (max(given) if given else 0) < files.files.get("producer-ids.json", {"next": 1})["next"]
        jobs.close()
    assert given == list(range(1000, 3500))


def test_a_disk_that_refuses_the_next_block_fails_those_who_wait_and_is_asked_again() -> None:
    files, jobs = FilesInMemory(), ManualThreadPool()
    ids = local_producer_ids(files, jobs.store)
    answers: list[tuple[int, bool]] = []
    files.is_full = True
    ids.take(lambda producer_id, error: answers.append((producer_id, error is None)))
    jobs.close()
    files.is_full = False
    ids.take(lambda producer_id, error: answers.append((producer_id, error is None)))
    jobs.close()
    assert answers == [(-1, False), (1000, True)]


def test_one_that_cannot_be_told_its_producer_id_keeps_no_other_from_it(defects: list[str]) -> None:
    jobs, given = ManualThreadPool(), list[int]()
    ids = local_producer_ids(FilesInMemory(), jobs.store)
    ids.take(lambda producer_id, error: 1 / 0)  # type: ignore[arg-type, return-value]
    ids.take(lambda producer_id, error: given.append(producer_id))
    jobs.close()
    assert given == [1001]
    assert "ZeroDivisionError" in defects[0]
    defects.clear()


def test_what_is_asked_for_while_a_write_runs_goes_with_the_next() -> None:
    jobs, written, outcomes, state = ManualThreadPool(), list[int](), list[str](), [0]

    def snapshot() -> Callable[[], None]:
        content = state[0]
        return lambda: written.append(content)

    writes = GroupedWrites(jobs.store, snapshot)
    for number in range(1, 5):
        state[0] = number
        writes.write(lambda error, number=number: outcomes.append(f"{number}: {error}"))  # type: ignore[misc]
    jobs.close()
    assert outcomes == ["1: None"]
    jobs.close()
    assert (written, outcomes, len(jobs.jobs)) == ([1, 4], [f"{number}: None" for number in range(1, 5)], 0)


STATE = PartitionState(leader=1, leader_epoch=0, isr=(1, 2), version=0)


class Followed:
    """A registry that gets the same changes as the image."""

    def __init__(self) -> None:
        ids = count(100)
        self.image = MetadataImage()
        self.topics = ImageTopics(lambda: uuid.UUID(int=next(ids)))

    def see(self, *changes: Change) -> list[Topic]:
        self.image, news = apply(self.image, changes)
        return self.topics.image_changed(self.image, MetadataDelta(changes=news))


@pytest.fixture
def followed() -> Followed:
    return Followed()


def creation(name: str, number: int, partitions: int = 1, **settings: str) -> list[Change]:
    topic_id = uuid.UUID(int=number)
    node = TopicNode(name=name, topic_id=topic_id, replicas=((1, 2),) * partitions, version=0)
    states = [StateChange(topic=name, topic_id=topic_id, index=index, state=STATE) for index in range(partitions)]
    return [
        TopicChange(topic=node),
        *states,
        TopicSettingsChange(topic=name, topic_id=topic_id, settings=Settings(values=settings, version=0)),
    ]


def test_a_topic_is_found_by_name_and_id_once_the_image_has_it(followed: Followed) -> None:
    (topic,) = followed.see(*creation("clicks", 1, 3, retention="1"))
    assert (topic.partition_count, topic.replication_factor, topic.overrides) == (3, 2, {"retention": "1"})
    assert followed.topics.get("clicks") == followed.topics.get_by_id(uuid.UUID(int=1)) == topic
    assert "clicks" in followed.topics
    assert followed.topics.names() == ["clicks"]


def test_growth_and_settings_are_news_and_a_new_leader_is_none(followed: Followed) -> None:
    followed.see(*creation("clicks", 1))
    topic_id = uuid.UUID(int=1)
    later = replace(STATE, leader=2, version=1)
    assert followed.see(StateChange(topic="clicks", topic_id=topic_id, index=0, state=later)) == []
    changed = Settings(values={"retention.ms": "5"}, version=1)
    (topic,) = followed.see(TopicSettingsChange(topic="clicks", topic_id=topic_id, settings=changed))
    assert topic.overrides == {"retention.ms": "5"}
    grown = TopicNode(name="clicks", topic_id=topic_id, replicas=((1, 2),) * 4, version=1)
    (topic,) = followed.see(TopicChange(topic=grown))
    assert topic.partition_count == 4


def test_a_topic_that_is_marked_for_deletion_serves_nobody_and_keeps_its_name(followed: Followed) -> None:
    followed.see(*creation("clicks", 1))
    assert followed.see(DeletionRequested(topic="clicks", topic_id=uuid.UUID(int=1))) == []
    with pytest.raises(UnknownTopicOrPartition):
        followed.topics.get("clicks")
    with pytest.raises(UnknownTopicId):
        followed.topics.get_by_id(uuid.UUID(int=1))
    with pytest.raises(TopicAlreadyExists, match="being deleted"):
        followed.topics.new("clicks", 1, {})
    followed.see(TopicDeleted(topic="clicks", topic_id=uuid.UUID(int=1)))
    assert followed.topics.new("clicks", 1, {}).topic_id == uuid.UUID(int=100)


def test_a_topic_made_again_has_only_its_own_id(followed: Followed) -> None:
    followed.see(*creation("clicks", 1))
    followed.see(TopicDeleted(topic="clicks", topic_id=uuid.UUID(int=1)), *creation("clicks", 2))
    assert followed.topics.get("clicks").topic_id == uuid.UUID(int=2)
    with pytest.raises(UnknownTopicId):
        followed.topics.get_by_id(uuid.UUID(int=1))


def test_what_is_not_in_an_image_read_anew_is_gone(followed: Followed) -> None:
    followed.see(*creation("clicks", 1), *creation("views", 2))
    image, _ = apply(MetadataImage(), creation("views", 2))
    assert followed.topics.image_changed(image, MetadataDelta(is_everything=True)) == []
    assert followed.topics.names() == ["views"]
    followed.topics.new("clicks", 1, {})


def test_names_that_differ_in_dots_and_underscores_collide(followed: Followed) -> None:
    followed.see(*creation("a.b", 1))
    for name in ("a_b", "__consumer.offsets"):
        with pytest.raises(InvalidTopic, match="collides"):
            followed.topics.new(name, 1, {})
    with pytest.raises(TopicAlreadyExists):
        followed.topics.new("a.b", 1, {})
    followed.see(TopicDeleted(topic="a.b", topic_id=uuid.UUID(int=1)))
    followed.topics.new("a_b", 1, {})
