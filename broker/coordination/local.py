"""The topic registry of a single broker: names, ids, partition counts and overrides, in one small JSON file.

The file is the truth about which topics exist. It is replaced atomically and written before the partition directories of a
new topic and before the removal of a deleted one, so a crash in between leaves a topic with empty partitions to be made, or
directories to be set aside, never records without a name. Producer ids are taken in blocks that are written down before the
first of them is used: none is given twice.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from broker.errors import InvalidTopic, StartupError, TopicAlreadyExists, UnknownTopicId, UnknownTopicOrPartition

_TOPICS_FILE = "topics.json"
_PRODUCER_IDS_FILE = "producer-ids.json"
_FORMAT_VERSION = 1
_PRODUCER_ID_BLOCK = 1000  # as Kafka: one write per thousand producers
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

INTERNAL_TOPICS = frozenset({"__consumer_offsets"})


class Files(Protocol):
    """The storage room's small-file helpers."""

    def read_json(self, name: str) -> Any | None: ...

    def write_json_atomic(self, name: str, value: Any) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic; the id is stable through restarts and never that of an earlier topic of the same name."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


def check_topic_name(name: str | None, existing: Iterable[str]) -> str:
    """The name, or InvalidTopic: Kafka's rules, and no name that collides with another once '.' and '_' are one."""
    if not name or not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidTopic(f"topic name {str(name)[:260]!r} is not 1 to 249 of [a-zA-Z0-9._-], or is '.' or '..'")
    folded = name.replace(".", "_")
    for other in existing:
        if other != name and other.replace(".", "_") == folded:
            raise InvalidTopic(f"topic {name!r} collides with {other!r}: '.' and '_' count as the same")
    return name


class TopicRegistry:
    """Every topic, by name and by id. Changes are on disk when a method returns."""

    def __init__(self, files: Files, new_id: Callable[[], uuid.UUID]) -> None:
        self._files = files
        self._new_id = new_id
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        stored = files.read_json(_TOPICS_FILE) or {"version": _FORMAT_VERSION, "topics": []}
        if stored["version"] != _FORMAT_VERSION:
            raise StartupError(
                f"{_TOPICS_FILE} has format {stored['version']}, this broker reads {_FORMAT_VERSION}: "
                "use the release that wrote it"
            )
        for row in stored["topics"]:
            self._put(
                Topic(
                    name=row["name"], topic_id=uuid.UUID(row["id"]), partition_count=row["partitions"], overrides=row["configs"]
                )
            )

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def names(self) -> list[str]:
        return sorted(self._topics)

    def get(self, name: str) -> Topic:
        try:
            return self._topics[name]
        except KeyError:
            raise UnknownTopicOrPartition(f"no topic {name!r}") from None

    def get_by_id(self, topic_id: uuid.UUID) -> Topic:
        try:
            return self._by_id[topic_id]
        except KeyError:
            raise UnknownTopicId(f"no topic with id {topic_id}") from None

    def add(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        """Register a new topic; its name has been checked."""
        if name in self._topics:
            raise TopicAlreadyExists(f"topic {name!r} exists")
        topic = Topic(name=name, topic_id=self._new_id(), partition_count=partition_count, overrides=dict(overrides))
        self._store([*self._topics.values(), topic])
        self._put(topic)
        return topic

    def change(self, topic: Topic, *, partition_count: int | None = None, overrides: Mapping[str, str] | None = None) -> Topic:
        """The topic with another number of partitions, other settings, or both."""
        changed = replace(
            topic,
            partition_count=topic.partition_count if partition_count is None else partition_count,
            overrides=topic.overrides if overrides is None else dict(overrides),
        )
        self._store([changed if other is topic else other for other in self._topics.values()])
        self._put(changed)
        return changed

    def remove(self, topic: Topic) -> None:
        self._store([other for other in self._topics.values() if other is not topic])
        del self._topics[topic.name]
        del self._by_id[topic.topic_id]

    def _put(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def _store(self, topics: Iterable[Topic]) -> None:
        rows = [
            {"name": t.name, "id": str(t.topic_id), "partitions": t.partition_count, "configs": dict(t.overrides)} for t in topics
        ]
        self._files.write_json_atomic(_TOPICS_FILE, {"version": _FORMAT_VERSION, "topics": rows})


class ProducerIds:
    """Hands out producer ids, each once in the life of the data directory."""

    def __init__(self, files: Files) -> None:
        self._files = files
        stored = files.read_json(_PRODUCER_IDS_FILE) or {"next": 1000}
        self._next: int = stored["next"]
        self._block_end: int = self._next

    def next(self) -> int:
        if self._next == self._block_end:
            self._files.write_json_atomic(_PRODUCER_IDS_FILE, {"next": self._block_end + _PRODUCER_ID_BLOCK})
            self._block_end += _PRODUCER_ID_BLOCK
        producer_id = self._next
        self._next += 1
        return producer_id
