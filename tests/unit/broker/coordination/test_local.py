from __future__ import annotations

import uuid
from typing import Any

import pytest

from broker.coordination.local import ProducerIds, TopicRegistry, check_topic_name
from broker.errors import InvalidTopic, StartupError, TopicAlreadyExists, UnknownTopicId, UnknownTopicOrPartition


class FilesInMemory:
    def __init__(self) -> None:
        self.files: dict[str, Any] = {}

    def read_json(self, name: str) -> Any | None:
        return self.files.get(name)

    def write_json_atomic(self, name: str, value: Any) -> None:
        self.files[name] = value


def test_topics_survive_a_restart_with_their_ids() -> None:
    files = FilesInMemory()
    created = TopicRegistry(files, uuid.uuid4).add("clicks", 3, {"retention.ms": "-1"})
    assert TopicRegistry(files, uuid.uuid4).get("clicks") == created


def test_a_topic_made_again_has_another_id() -> None:
    registry = TopicRegistry(FilesInMemory(), uuid.uuid4)
    first = registry.add("clicks", 1, {})
    registry.remove(first)
    second = registry.add("clicks", 1, {})
    assert first.topic_id != second.topic_id
    with pytest.raises(UnknownTopicId):
        registry.get_by_id(first.topic_id)


def test_a_second_topic_of_the_same_name_is_refused() -> None:
    registry = TopicRegistry(FilesInMemory(), uuid.uuid4)
    registry.add("clicks", 1, {})
    with pytest.raises(TopicAlreadyExists):
        registry.add("clicks", 1, {})


def test_an_unknown_topic_is_named() -> None:
    with pytest.raises(UnknownTopicOrPartition, match="absent"):
        TopicRegistry(FilesInMemory(), uuid.uuid4).get("absent")


def test_a_file_of_a_newer_format_is_refused() -> None:
    files = FilesInMemory()
    files.files["topics.json"] = {"version": 99, "topics": []}
    with pytest.raises(StartupError, match="format 99"):
        TopicRegistry(files, uuid.uuid4)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../etc/x", "a" * 250, "a b", "ä", "a\n", None])
def test_names_that_could_leave_the_directory_are_refused(name: str | None) -> None:
    with pytest.raises(InvalidTopic):
        check_topic_name(name, [])


def test_names_that_differ_only_in_dot_and_underscore_collide() -> None:
    with pytest.raises(InvalidTopic, match="collides"):
        check_topic_name("a.b", ["a_b"])
    assert check_topic_name("a.b", ["a.b"]) == "a.b"


def test_no_producer_id_is_given_twice_not_even_after_a_crash() -> None:
    files = FilesInMemory()
    given: list[int] = []
    for _ in range(3):
        ids = ProducerIds(files)
        given += [ids.next() for _ in range(1500)]
    assert len(set(given)) == len(given)
