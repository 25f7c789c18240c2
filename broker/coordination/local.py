"""The topic registry of a single broker: names, ids, partition counts and overrides, in one small JSON file.

The file is authoritative for which topics exist. It is replaced atomically, before the partition directories of a new topic are
created and before those of a deleted one are removed. So a crash in between leaves a topic whose empty partitions still have to
be created, or directories still to be removed of a topic whose id is listed as deleted: never records without a name.

What is planned and what is public are separate. `plan` and `forget` change what the next write of the file will hold; `publish`
and `hide` change what clients see. The first happen before the write, the second after it: no client sees a topic that a power
failure could still undo.

Blocks of producer ids are recorded in another file before the first id is used: none is assigned twice.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker.coordination.grouped_writes import Store
from broker.coordination.producer_ids import BLOCK_IDS, ProducerIds, Reserved
from broker.errors import InvalidTopic, StartupError, TopicAlreadyExists, UnknownTopicId, UnknownTopicOrPartition

_TOPICS_FILE = "topics.json"
_PRODUCER_IDS_FILE = "producer-ids.json"
_FORMAT_VERSION = 1
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

INTERNAL_TOPICS = frozenset({"__consumer_offsets"})
NO_TOPIC_ID = uuid.UUID(int=0)


class Files(Protocol):
    """The small-file helpers of the data directory; writing may run on any thread."""

    def read_json(self, name: str) -> Any | None: ...

    def write_json_atomic(self, name: str, value: Any) -> None: ...

    def write_atomic(self, name: str, data: bytes) -> None: ...


@contextmanager
def reading(name: str) -> Iterator[None]:
    """What this block does with the contents of a file fails with a StartupError if no broker has written them."""
    try:
        yield
    except (AttributeError, InvalidTopic, KeyError, TypeError, ValueError) as error:
        raise StartupError(
            f"{name} is not what a broker writes ({error!r}): restore it from a copy of the data directory"
        ) from error


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


class ShownTopics:
    """The topics that clients see, by name and by id: the read side of both registries."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}

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


class TopicRegistry(ShownTopics):
    """Every topic, by name and by id; see the module docstring."""

    def __init__(self, files: Files, new_id: Callable[[], uuid.UUID]) -> None:
        super().__init__()
        self._files = files
        self._new_id = new_id
        self._names_folded: dict[str, str] = {folded(name): name for name in INTERNAL_TOPICS}
        self._rows: dict[str, str] = {}  # as the next write of the file will hold them
        self.deleted: set[uuid.UUID] = set()  # ids of deleted topics whose directories may still have their old names
        stored = files.read_json(_TOPICS_FILE)
        if stored is not None:
            with reading(_TOPICS_FILE):
                self._restore(stored)

    def _restore(self, stored: Any) -> None:
        if stored["version"] != _FORMAT_VERSION:
            raise StartupError(
                f"{_TOPICS_FILE} has format {stored['version']}, this broker reads {_FORMAT_VERSION}: "
                "use the release that wrote it"
            )
        for row in stored["topics"]:
            name, count, overrides = row["name"], row["partitions"], row["configs"]
            check_topic_name(name)
            topic = Topic(name=name, topic_id=uuid.UUID(row["id"]), partition_count=count, overrides=overrides)
            if name in self._topics or topic.topic_id in self._by_id:
                raise ValueError(f"topic {name} twice")
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
        other = self._names_folded.get(folded(name), name)
        if other != name and name not in INTERNAL_TOPICS:  # ours are created even if a colliding one exists
            raise InvalidTopic(f"topic {name!r} collides with {other!r}: '.' and '_' count as the same")
        return Topic(name=name, topic_id=self._new_id(), partition_count=partition_count, overrides=dict(overrides))

    def plan(self, topic: Topic) -> None:
        """The next write will hold the topic in this form."""
        row = {
            "name": topic.name,
            "id": str(topic.topic_id),
            "partitions": topic.partition_count,
            "configs": dict(topic.overrides),
        }
        self._rows[topic.name] = json.dumps(row)
        self._names_folded.setdefault(folded(topic.name), topic.name)

    def forget(self, topic: Topic) -> None:
        """The next write will not hold the topic."""
        del self._rows[topic.name]
        if topic.name not in INTERNAL_TOPICS and self._names_folded.get(folded(topic.name)) == topic.name:
            del self._names_folded[folded(topic.name)]

    def write_job(self) -> Callable[[], None]:
        """A job for any thread that writes what is currently planned; StorageError."""
        rows, deleted = list(self._rows.values()), sorted(map(str, self.deleted))

        def write() -> None:
            head = f'{{"version": {_FORMAT_VERSION}, "deleted": {json.dumps(deleted)}, "topics": ['
            self._files.write_atomic(_TOPICS_FILE, "\n".join((head, ",\n".join(rows), "]}", "")).encode())

        return write

    # What clients see

    def publish(self, topic: Topic) -> None:
        """Clients see the topic in this form from now on."""
        self._topics[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def hide(self, topic: Topic) -> None:
        del self._topics[topic.name]
        del self._by_id[topic.topic_id]


def local_producer_ids(files: Files, store: Store) -> ProducerIds:
    """Each is assigned once in the life of the data directory."""
    stored = files.read_json(_PRODUCER_IDS_FILE)
    with reading(_PRODUCER_IDS_FILE):
        start: int = 1000 if stored is None else stored["next"]
        if start < 0:
            raise ValueError(f"the next id is {start}")

    def reserve(then: Reserved) -> None:
        block = range(start, start + BLOCK_IDS)

        def recorded(_: Any, error: BaseException | None) -> None:
            nonlocal start
            if error is None:
                start = block.stop
            then(block if error is None else None, error)

        store(lambda: files.write_json_atomic(_PRODUCER_IDS_FILE, {"next": block.stop}), recorded)

    return ProducerIds(reserve)


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
