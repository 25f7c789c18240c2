"""Which topics exist: names, ids, partition counts and overrides. A single broker has them in one small JSON file
(`TopicRegistry`), a broker in a cluster in the metadata image (`ImageTopics`). Both have one read side, so look-ups need not know
which they use.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from logbus_broker.cluster import local_files, metadata_image
from logbus_broker.errors import InvalidTopic, StartupError, TopicAlreadyExists, UnknownTopicId, UnknownTopicOrPartition
from logbus_broker.security.state import AUDIT_TOPIC

TOPICS_FILE = "topics.json"
_FORMAT_VERSION = 1
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, AUDIT_TOPIC})
AUDIT_PARTITIONS = 12  # in a cluster: as many brokers can lead one each, and write to it
NO_TOPIC_ID = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic; the id is stable across restarts and never that of an earlier topic of the same name."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    overrides: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = 1

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


def check_topic_name(name: str | None) -> None:
    """Raises InvalidTopic if a name breaks Kafka's rules."""
    if not name or not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidTopic(f"topic name {str(name)[:260]!r} is not 1 to 249 of [a-zA-Z0-9._-], or is '.' or '..'")


def folded(name: str) -> str:
    """The name as in Kafka's metrics, where '.' becomes '_': two topics may not share it."""
    return name.replace(".", "_")


class _ShownTopics:
    """The topics that clients see, by name and by id: the read side of both registries. `new_id` returns ids that no other topic
    has."""

    def __init__(self, new_id: Callable[[], uuid.UUID]) -> None:
        self._new_id = new_id
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        # The names that count as the same, by their folded form: those of existing topics, and of those to come that are ours.
        self._names_folded: dict[str, dict[str, None]] = {folded(name): {name: None} for name in INTERNAL_TOPICS}

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

    def _build(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        """A topic with a new id; InvalidTopic if its name collides with another."""
        other = next((other for other in self._names_folded.get(folded(name), ()) if other != name), None)
        if other is not None and name not in INTERNAL_TOPICS:  # those are needed, whatever is stored
            raise InvalidTopic(f"topic {name!r} collides with {other!r}: '.' and '_' count as the same")
        return Topic(name=name, topic_id=self._new_id(), partition_count=partition_count, overrides=dict(overrides))

    def _take_name(self, name: str) -> None:
        self._names_folded.setdefault(folded(name), {})[name] = None

    def _free_name(self, name: str) -> None:
        names = self._names_folded.get(folded(name), {})
        if name not in INTERNAL_TOPICS:
            names.pop(name, None)
        if not names:
            self._names_folded.pop(folded(name), None)


class TopicRegistry(_ShownTopics):
    """Those of a single broker.

    The file is authoritative for which topics exist. It is replaced atomically, before the partition directories of a new topic
    are created and before those of a deleted one are removed. So a crash in between leaves a topic whose empty partitions still
    have to be created, or directories still to be removed of a topic whose id is listed as deleted: never records without a name.

    What is planned and what is public are separate. `plan` and `forget` change what the next write of the file will hold;
    `publish` and `hide` change what clients see. The first happen before the write, the second after it: no client sees a topic
    that a power failure could still undo."""

    def __init__(self, files: local_files.Files, new_id: Callable[[], uuid.UUID]) -> None:
        super().__init__(new_id)
        self._files = files
        self._rows: dict[str, str] = {}  # as the next write of the file will hold them
        self.deleted: set[uuid.UUID] = set()  # ids of deleted topics whose directories may still have their old names
        stored = files.read_json(TOPICS_FILE)
        if stored is not None:
            with local_files.reading(TOPICS_FILE):
                self._restore(stored)

    def _restore(self, stored: Any) -> None:
        if stored["version"] != _FORMAT_VERSION:
            raise StartupError(
                f"{TOPICS_FILE} has format {stored['version']}, this broker reads {_FORMAT_VERSION}: "
                "use the release that wrote it"
            )
        for row in stored["topics"]:
            name, count, overrides = row["name"], row["partitions"], row["configs"]
            check_topic_name(name)
            topic = Topic(name=name, topic_id=uuid.UUID(row["id"]), partition_count=count, overrides=overrides)
            if name in self._topics or topic.topic_id in self._by_id:
                raise ValueError(f"topic {name} is listed twice")
            if count < 1 or not all(isinstance(value, str) for value in overrides.values()):
                raise ValueError(f"topic {name}: {count} partitions, {overrides}")
            self.plan(topic)
            self.publish(topic)
        self.deleted = {uuid.UUID(text) for text in stored.get("deleted", ())}

    # What the file will hold

    def new(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        """A topic with a new id, not planned yet; raises what is wrong with its name."""
        check_topic_name(name)
        if name in self._rows:
            raise TopicAlreadyExists(f"topic {name!r} exists")
        return self._build(name, partition_count, overrides)

    def plan(self, topic: Topic) -> None:
        """The next write will hold the topic in this form."""
        row = {
            "name": topic.name,
            "id": str(topic.topic_id),
            "partitions": topic.partition_count,
            "configs": dict(topic.overrides),
        }
        self._rows[topic.name] = json.dumps(row)
        self._take_name(topic.name)

    def forget(self, topic: Topic) -> None:
        """The next write will not hold the topic."""
        del self._rows[topic.name]
        self._free_name(topic.name)

    def write_job(self) -> Callable[[], None]:
        """A job for any thread that writes what is currently planned; StorageError."""
        rows, deleted = list(self._rows.values()), sorted(map(str, self.deleted))

        def write() -> None:
            head = f'{{"version": {_FORMAT_VERSION}, "deleted": {json.dumps(deleted)}, "topics": ['
            self._files.write_atomic(TOPICS_FILE, "\n".join((head, ",\n".join(rows), "]}", "")).encode())

        return write

    # What clients see

    def publish(self, topic: Topic) -> None:
        """Clients see the topic in this form from now on."""
        self._topics[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def hide(self, topic: Topic) -> None:
        del self._topics[topic.name]
        del self._by_id[topic.topic_id]


class KnownTopics(Protocol):
    """Every topic that clients may see, by name and by id."""

    def __iter__(self) -> Iterator[Topic]: ...

    def __contains__(self, name: str) -> bool: ...

    def __len__(self) -> int: ...

    def names(self) -> list[str]:
        """Sorted."""

    def get(self, name: str) -> Topic:
        """Raises UnknownTopicOrPartition."""

    def get_by_id(self, topic_id: uuid.UUID) -> Topic:
        """Raises UnknownTopicId."""

    def new(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        """A topic that does not exist yet, with a new id; raises what is wrong with its name."""


class ImageTopics(_ShownTopics):
    """Those of a cluster. They change with the metadata log, whichever broker wrote, and nothing is planned, since names are
    reserved in ZooKeeper. A topic marked for deletion is no longer served, so it is not shown here, though its name is still
    taken."""

    def __init__(self, new_id: Callable[[], uuid.UUID]) -> None:
        super().__init__(new_id)
        self._image = metadata_image.MetadataImage()

    def new(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        """A topic with a new id; raises what is wrong with its name, as far as this broker knows. ZooKeeper has the final say on
        whether it is taken."""
        check_topic_name(name)
        if name in self._image.topics:
            is_marked = name not in self._topics
            raise TopicAlreadyExists(f"topic {name!r} is being deleted" if is_marked else f"topic {name!r} exists")
        return self._build(name, partition_count, overrides)

    def image_changed(self, image: metadata_image.MetadataImage, delta: metadata_image.MetadataDelta) -> list[Topic]:
        """Apply what is new. Returns the shown topics that are new or have changed: created, grown or given other settings."""
        self._image = image
        if delta.is_everything:
            names = dict.fromkeys((*(name for names in self._names_folded.values() for name in names), *image.topics))
        else:
            names = dict.fromkeys(name for change in delta.changes if (name := _topic_of(change)) is not None)
        return [topic for name in names if (topic := self._take(name)) is not None]

    def _take(self, name: str) -> Topic | None:
        shown, topic = self._topics.get(name), _shown(name, self._image)
        if name in self._image.topics:
            self._take_name(name)
        else:
            self._free_name(name)
        if topic == shown:
            return None
        if shown is not None:
            del self._topics[name], self._by_id[shown.topic_id]
        if topic is not None:
            self._topics[name] = self._by_id[topic.topic_id] = topic
        return topic


def _topic_of(change: metadata_image.Change) -> str | None:
    """The topic that the change affects, None for partition states: leadership is not part of the registry."""
    match change:
        case metadata_image.TopicChange(topic=node):
            return node.name
        case (
            metadata_image.TopicSettingsChange(topic=name)
            | metadata_image.DeletionRequested(topic=name)
            | metadata_image.TopicDeleted(topic=name)
        ):
            return name
    return None


def _shown(name: str, image: metadata_image.MetadataImage) -> Topic | None:
    """The topic as clients see it."""
    cluster_topic = image.topics.get(name)
    if cluster_topic is None or name in image.deleting or not cluster_topic.replicas:
        return None
    settings = image.topic_settings.get(name)
    return Topic(
        name=name,
        topic_id=cluster_topic.topic_id,
        partition_count=cluster_topic.partition_count,
        overrides={} if settings is None else settings.values,
        replication_factor=len(cluster_topic.replicas[0]) - len(cluster_topic.adding.get(0, ())),
    )


def partition_of_group(group_id: str, partition_count: int) -> int:
    """Which partition of __consumer_offsets holds a group: abs(Java's hash of the id) % partitions. Its leader coordinates the
    group.

    Clients do not compute this, but Kafka's own tools and people who read the topic do, so it is Kafka's rule. It depends on the
    number of partitions, which therefore never changes once the topic is created."""
    code = _java_hash(group_id)
    # Kafka's absolute value: the smallest integer has no positive counterpart in 32 bits, and counts as 0.
    return 0 if code == -(1 << 31) else abs(code) % partition_count


def _java_hash(text: str) -> int:
    """String.hashCode: over UTF-16 code units, as a signed 32-bit integer."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
